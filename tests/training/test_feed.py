"""Training from a store on the disk: the same rows in the same step, the same model, resumed to the same bits."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import iel
from iel.data import Trajectories
from iel.data.goals import to_device
from iel.data.remote import Facts, Shape
from iel.data.rows import Rows
from iel.data.store import write_store
from iel.errors import ContractError, DataError
from iel.learner import Spec
from iel.methods import GCBC, GCCQL, IEL
from iel.training.feed import CHUNK, Fed, step_keys
from iel.training.loop import Trainer
from iel.training.seeds import Separate, Stacked

TINY = {"steps": 120, "batch_size": 16, "hidden": (8, 8)}
METHODS = [
    IEL.preset("smoke", **TINY, dimension=4, omega_share=0.2, embedding_share=0.4, standardise=True),
    IEL.preset("smoke", **TINY, dimension=4, steering="waypoint", place=(0, 1), future_share=0.5),
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
    seen = Shape.of(memory).seen(facts, lambda name, rows: rows)
    everything = jnp.arange(memory.num_states)
    assert np.array_equal(seen.final[everything], memory.final)
    assert np.array_equal(seen.transitions[everything[: memory.num_transitions]], memory.transitions)
    assert len(seen.observations) == memory.num_states and len(seen.transitions) == memory.num_transitions


@pytest.mark.parametrize("algo", METHODS[:3], ids=lambda algo: f"{algo.name}-{getattr(algo, 'steering', '')}")
def test_every_step_sees_the_batch_it_sees_in_memory(algo, memory, disk):
    """Observations, actions, steps and flags to the bit; what networks make of them to rounding."""
    algo = replace(algo, standardise=False)
    spec = Spec(3, 2, algo.place_of(memory))
    resident = to_device(memory, spec.place)
    key, fed = jax.random.key(7), Fed(disk, algo, spec, None, Separate(1))
    state = jax.jit(lambda key: algo.init(key, spec))(jax.random.key(1))
    for phase in algo.phases() if not spec.place else algo.phases()[-1:]:
        fed.begin(phase.name, (state,), (key,))
        (given,) = fed.give(100, 40)

        @jax.jit
        def both(state, given, offset, phase=phase.name):
            sample_key = step_keys(key, 100 + offset)[0]
            mine = algo.sample(phase, sample_key, *fed.look(state, given, fed.data, offset))
            return mine, algo.sample(phase, sample_key, resident, algo.tables(phase, state, resident))

        for offset in (0, 1, 39):
            mine, theirs = both(state, given, offset)
            assert jax.tree.structure(mine) == jax.tree.structure(theirs)
            for name, one, other in zip(theirs._fields, mine, theirs, strict=True):
                if other is None:
                    continue
                if name == "omega" or (name in ("displacement", "future") and not spec.place):
                    assert np.allclose(one, other, atol=1e-5), name
                else:
                    assert np.array_equal(one, other), name


@pytest.mark.long
def test_a_model_trained_from_the_disk_is_the_one_trained_in_memory(memory, disk):
    """To rounding where networks of an earlier phase are asked, which Adam makes larger along directions that do not
    matter (a shift of all embeddings); so costs are compared."""
    one, other = (iel.train(data, METHODS[0], progress=False).model for data in (memory, disk))
    states, goals, commands = memory.observations[:9], memory.observations[-9:], np.ones((9, 4), np.float32)
    assert np.allclose(one.cost(states, goals, goals), other.cost(states, goals, goals), rtol=1e-3)
    assert np.allclose(one.act(states, commands), other.act(states, commands), atol=1e-2)


def after(data: Trajectories, each, counts: tuple[int, ...]) -> list:
    """The leaves of both seeds' states after so many steps, in so many goes."""
    trainer = Trainer(data, METHODS[-1], [3, 4], {}, each)
    advance = trainer.stepper("train")
    for count in counts:
        advance(count)
    return [leaf for index in (0, 1) for leaf in jax.tree.leaves(trainer.each.part(trainer.state, index))]


def test_where_nothing_is_frozen_it_is_the_same_to_the_bit_wherever_chunks_end(memory, disk):
    whole, broken = after(memory, Separate(2), (100, 20)), after(disk, Separate(2), (30, 70, 7, 13))
    assert all(np.array_equal(one, other) for one, other in zip(whole, broken, strict=True))


@pytest.mark.long
def test_seeds_can_be_stacked(memory, disk):
    apart, stacked = after(memory, Separate(2), (100, 20)), after(disk, Stacked(), (100, 20))
    assert all(np.allclose(one, other, atol=1e-4) for one, other in zip(apart, stacked, strict=True))


def test_runs_are_resumed_from_a_store_and_know_its_path(disk, tmp_path):
    algo = METHODS[-1]
    whole = iel.train(disk, algo, out=tmp_path / "a", checkpoint_every=50, progress=False, data_file=disk.stored.path)
    run = whole.runs[0]
    assert run.data().stored is not None and run.data().fingerprint == disk.fingerprint


def test_what_needs_all_rows_at_once_is_refused_where_they_do_not_fit(disk, monkeypatch):
    monkeypatch.setenv("IEL_MEMORY_BUDGET", "1kB")
    with pytest.raises(DataError, match="to look for jumps, needs"):
        iel.train(disk, replace(METHODS[-1], cut_jumps=True), progress=False)


@dataclass(frozen=True, kw_only=True)
class Chooser(GCBC):
    """A method that chooses rows by what is in other rows."""

    def sample(self, phase, key, data, tables):
        batch = super().sample(phase, key, data, tables)
        rows = jnp.abs(batch[0][:, 0] * 10).astype(jnp.int32) % len(data.observations)
        return batch._replace(goal=data.observations[rows])


def test_a_method_whose_rows_depend_on_rows_is_refused(disk):
    with pytest.raises(ContractError, match="chooses rows by what is in other rows"):
        iel.train(disk, Chooser(**TINY), progress=False)
    assert CHUNK == 100
