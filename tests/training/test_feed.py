"""Training from a store on the disk: the same rows in the same step, the same model, resumed to the same bits."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iel
from iel.data import Trajectories
from iel.data.goals import Facts, seen_from_disk
from iel.data.store import write_store
from iel.data.trajectories import Rows
from iel.errors import DataError
from iel.methods import GAS, GCBC, GCCQL, IEL
from iel.policies import Directions, Waypoints
from iel.training.loop import Trainer
from iel.training.steps import Source, step_keys

TINY = {"steps": 120, "batch_size": 16, "hidden": (8, 8)}
METHODS = [
    IEL.preset("smoke", **TINY, dimension=4, omega_share=0.2, standardise="all", policy=Directions(future_share=0.5)),
    IEL.preset("smoke", **TINY, dimension=4, policy=Waypoints(columns=(0, 1))),
    GAS.preset("smoke", **TINY, dimension=4, reach=0.5),
    GCCQL.preset("smoke", **TINY),
    GCBC.preset("smoke", **TINY),
]


@pytest.fixture(scope="module")
def memory() -> Trajectories:
    rng = np.random.default_rng(0)
    lengths = rng.integers(2, 60, 40)
    return Trajectories.from_episodes(
        [(np.cumsum(rng.normal(size=(n + 1, 3)), 0), rng.uniform(-0.9, 0.9, (n, 2))) for n in lengths], trust=True
    )


@pytest.fixture(scope="module")
def disk(memory, tmp_path_factory) -> Trajectories:
    rows = Rows(memory.observations, memory.actions, memory.offsets, memory.name)
    return write_store([rows], tmp_path_factory.mktemp("disk") / "store", memory.name, trust=True)


def test_ends_and_transitions_follow_from_the_offsets(memory):
    facts = Facts(jnp.asarray(memory.offsets, jnp.int32), *(jnp.zeros(0),) * 3)
    seen = seen_from_disk(memory, facts, lambda name, rows: rows)
    everything = jnp.arange(memory.num_states)
    assert np.array_equal(seen.final[everything], memory.final)
    assert np.array_equal(seen.transitions[everything[: memory.num_transitions]], memory.transitions)
    assert len(seen.observations) == memory.num_states and len(seen.transitions) == memory.num_transitions


@dataclass(frozen=True, kw_only=True)
class Chooser(GCBC):
    """A method that chooses rows by what is in other rows."""

    def sample(self, key, data, tables):
        batch = super().sample(key, data, tables)
        rows = jnp.abs(batch.state[:, 0] * 10).astype(jnp.int32) % len(data.observations)
        return batch._replace(goal=data.observations[rows])


COMPUTED = {"omega", "displacement", "future", "subgoal"}
"""What networks of an earlier phase make of rows."""


@pytest.mark.parametrize("algo", [*METHODS[:4], Chooser(**TINY)], ids=["iel", "waypoints", "gas", "gccql", "chooser"])
def test_every_step_sees_the_batch_it_sees_in_memory(algo, memory, disk):
    """Observations, actions, steps and flags to the bit; what networks make of them to rounding."""
    spec = algo.spec(memory)
    key, sources = jax.random.key(7), (Source(memory, spec, None), Source(disk, spec, None))
    trained = jax.jit(lambda key: {p.slot: p.learner.init(key, spec) for p in algo.phases()})(jax.random.key(1))
    for phase in algo.phases() if not spec.position else algo.phases()[:1]:
        batches = []
        for source in sources:

            def batch(trained, data, step, source=source, learner=phase.learner):
                prepared = source.prepare(learner, trained, data)
                return learner.sample(step_keys(key, step)[0], *source.seen(learner, prepared, data))

            batches.append([jax.jit(batch)(trained, source.data, step) for step in (0, 139)])
        for mine, theirs in zip(*batches, strict=True):
            assert jax.tree.structure(mine) == jax.tree.structure(theirs)
            for name, one, other in zip(theirs._fields, mine, theirs, strict=True):
                if other is None:
                    continue
                if name in COMPUTED and not spec.position:
                    np.testing.assert_allclose(one, other, atol=1e-5, err_msg=name)
                else:
                    assert np.array_equal(one, other), name


@pytest.mark.long
def test_a_model_trained_from_the_disk_is_the_one_trained_in_memory(memory, disk):
    """To rounding where networks of an earlier phase are evaluated, which Adam enlarges along directions that do not
    matter (a shift of all embeddings); so costs are compared."""
    one, other = (iel.train(data, METHODS[0], progress=False).model for data in (memory, disk))
    states, goals, commands = memory.observations[:9], memory.observations[-9:], np.ones((9, 4), np.float32)
    assert np.allclose(one.cost(states, goals, goals), other.cost(states, goals, goals), rtol=1e-3)
    assert np.allclose(one.act(states, commands), other.act(states, commands), atol=1e-2)


def after(data: Trajectories, stacked: bool, counts: tuple[int, ...]) -> list:
    """The leaves of both seeds' states after a number of steps, taken in several calls."""
    trainer = Trainer(data, METHODS[-1], [3, 4], {}, stacked)
    advance = trainer.stepper(trainer.phases[0])
    for count in counts:
        advance(count)
    return jax.tree.leaves(trainer.states())


def test_where_nothing_is_frozen_it_is_the_same_to_the_bit_wherever_chunks_end(memory, disk):
    whole, broken = after(memory, False, (100, 20)), after(disk, False, (30, 70, 7, 13))
    assert all(np.array_equal(one, other) for one, other in zip(whole, broken, strict=True))


def test_seeds_can_be_stacked(memory, disk):
    """Also of a method with one phase, before which there is nothing to map over."""
    apart = after(memory, False, (30,))
    for data in (memory, disk):
        stacked = after(data, True, (30,))
        assert all(np.allclose(one, other, atol=1e-4) for one, other in zip(apart, stacked, strict=True))


def test_runs_are_resumed_from_a_store_and_know_its_path(disk, tmp_path):
    algo = METHODS[-1]
    whole = iel.train(disk, algo, out=tmp_path / "a", checkpoint_every=50, progress=False, data_file=disk.stored)
    run = whole.runs[0]
    assert run.data().stored is not None and run.data().fingerprint == disk.fingerprint


def test_what_needs_all_rows_at_once_is_refused_where_they_do_not_fit(disk, monkeypatch):
    monkeypatch.setenv("IEL_MEMORY_BUDGET", "1kB")
    with pytest.raises(DataError, match="to look for jumps, needs"):
        iel.train(disk, replace(METHODS[-1], cut_jumps=True), progress=False)
