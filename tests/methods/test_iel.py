"""IEL: its contract, its losses against float64 numpy, what is frozen stays frozen, and short ways win."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from iel.methods.contract import Spec, config_dict, config_from_dict
from iel.methods.scaling import spec_of
from iel.methods.skills import SkillBatch

from iel.data import Trajectories
from iel.data.goals import to_device
from iel.errors import ConfigError, ContractError
from iel.methods import ALGOS, IEL, check_algo
from iel.methods.iel import GoalBatch
from iel.nn import apply_heads, head, in_blocks, unit

TINY = IEL.preset("smoke", hidden=(16, 16), batch_size=32, dimension=4)


def walks(seed: int = 0) -> Trajectories:
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1, 1, (6, 50, 2))
    return Trajectories.from_episodes([(np.concatenate([np.ones((1, 2)), 1 + a.cumsum(0)]), a) for a in actions])


@pytest.fixture(scope="module")
def world():
    data = walks()
    arrays = to_device(data)
    state = jax.jit(lambda key: TINY.init(key, Spec(2, 2)))(jax.random.key(0))
    return arrays, state


@pytest.mark.parametrize("name", ALGOS)
def test_contract(name):
    algo = ALGOS[name].config.preset("smoke", hidden=(16,), policy_hidden=(12, 8), batch_size=16)
    check_algo(algo)
    spec = spec_of(algo, walks())
    networks = algo.model(jax.tree.map(np.asarray, algo.init(jax.random.key(0), spec)), spec).networks
    acting = ("policy", "high") if name == "hiql" else ("policy",)  # its high level is a policy too
    for kind, network in networks.items():
        assert network.sizes[1:-1] == ((12, 8) if kind in acting else (16,)), kind


def test_check_algo_finds_a_broken_method():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Frozen(IEL):
        def update(self, phase, state, batch, key):
            return state, {f"{phase}/loss": jnp.zeros(())}

    with pytest.raises(ContractError, match=r"changes nothing|does not matter"):
        check_algo(Frozen.preset("smoke", hidden=(16,), batch_size=16))


def test_embedding_loss_against_float64_numpy(world):
    arrays, state = world
    algo = dataclasses.replace(TINY, beta=0.3, kappa=0.7, hitting_expectile=0.25)
    omega = in_blocks(lambda x: unit(state.omega(x)), arrays.observations)
    batch: GoalBatch = algo.sample("embedding", jax.random.key(1), arrays, omega)
    batch = batch._replace(success=batch.success.at[3].set(1.0))
    target = jax.tree.map(lambda leaf: leaf * 1.1, state.embedding)
    loss, _ = algo.embedding_loss(state.embedding, target, batch)

    online = {k: np.asarray(apply_heads(state.embedding, getattr(batch, k)), np.float64) for k in batch._fields[:4]}
    old = {k: np.asarray(apply_heads(target, getattr(batch, k)), np.float64) for k in batch._fields[:4]}
    w, success = np.asarray(batch.omega, np.float64), np.asarray(batch.success, np.float64)

    def cost(a, b):
        delta = b - a
        length = np.maximum(np.linalg.norm(delta, axis=-1), 1e-3)
        return length * np.exp(0.3 * (1 - (delta * w).sum(-1) / length))

    expected, h = 0.0, (1 - 0.99 ** np.asarray(batch.steps, np.float64)) / (1 - 0.99)
    next_costs = np.stack([cost(old["next_state"][e], old["goal"][e]) for e in range(2)])
    old_costs = np.stack([cost(old["state"][e], old["goal"][e]) for e in range(2)])
    targets = (1 - success) * (1 + 0.99 * next_costs)  # costs, not values
    shorter = targets.max(0) <= old_costs.mean(0)  # the worse target is still no longer than what we thought
    weight = np.where(shorter, algo.expectile, 1 - algo.expectile)
    for e in range(2):
        residual = targets[e] - cost(online["state"][e], online["goal"][e])
        expected += (weight * residual**2).mean()
        gap = h - ((online["intermediate"][e] - online["state"][e]) * w).sum(-1)
        expected += 0.7 * (np.where(gap > 0, 0.25, 0.75) * gap**2).mean() / 2
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_hitting_times_of_goals_elsewhere_may_be_left_out(world):
    arrays, state = world
    omega = in_blocks(lambda x: unit(state.omega(x)), arrays.observations)
    hitting = {}
    for goals in ("all", "ahead"):
        algo = dataclasses.replace(TINY, hitting_goals=goals, p_trajectory=0.5)
        batch = algo.sample("embedding", jax.random.key(1), arrays, omega)
        ahead = (batch.steps > 0) if batch.counted is None else batch.counted > 0
        for name, longer in (("drawn", 0.0), ("elsewhere", jnp.where(ahead, 0.0, 5.0))):
            changed = batch._replace(steps=batch.steps + longer)
            hitting[goals, name] = algo.embedding_loss(state.embedding, state.embedding, changed)[1][
                "embedding/hitting"
            ]
    assert 0 < ahead.mean() < 1 and hitting["ahead", "elsewhere"] == hitting["ahead", "drawn"] < hitting["all", "drawn"]


def test_policy_reward_is_progress_along_the_direction(world):
    arrays, state = world
    table = in_blocks(head(state.embedding, 0), arrays.observations)
    batch: SkillBatch = TINY.sample("policy", jax.random.key(1), arrays, table)
    expected = head(state.embedding, 0)(batch.next_state) - head(state.embedding, 0)(batch.state)
    np.testing.assert_allclose(batch.displacement, expected, atol=1e-5)


def test_precomputed_tables_are_what_the_networks_say(world):
    arrays, state = world
    omega = TINY.tables("embedding", state, arrays)
    np.testing.assert_allclose(omega, unit(state.omega(arrays.observations)), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(omega, axis=-1), 1.0, atol=1e-4)
    phi = TINY.tables("policy", state, arrays)
    np.testing.assert_allclose(phi, head(state.embedding, 0)(arrays.observations), atol=1e-5)
    for block in (1, 7, 64):  # rows do not depend on how they are cut
        np.testing.assert_allclose(
            in_blocks(state.omega, arrays.observations, block), state.omega(arrays.observations), atol=1e-5
        )


TRAINED = {
    "omega": {"omega"},
    "embedding": {"embedding", "embedding_target"},
    "policy": {"skills", "critic_target"},
}


@pytest.mark.parametrize("phase", TRAINED)
def test_frozen_networks_stay_bit_identical(world, phase):
    arrays, state = world
    tables = TINY.tables(phase, state, arrays)

    @jax.jit
    def step(state, key):
        a, b = jax.random.split(key)
        return TINY.update(phase, state, TINY.sample(phase, a, arrays, tables), b)[0]

    after = state
    for t in range(5):
        after = step(after, jax.random.key(t))
    for field in state._fields[:-1]:
        same = jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), getattr(state, field), getattr(after, field))
        assert all(jax.tree.leaves(same)) == (field not in TRAINED[phase]), field
    mine = {"omega": "omega", "embedding": "embedding", "policy": "skills"}[phase]
    for field in state.optimisers._fields:
        same = jax.tree.map(
            lambda a, b: bool(jnp.array_equal(a, b)), getattr(state.optimisers, field), getattr(after.optimisers, field)
        )
        assert all(jax.tree.leaves(same)) == (field != mine), field


def test_targets_follow_the_parameters_before_the_step(world):
    arrays, state = world
    batch = TINY.sample("embedding", jax.random.key(0), arrays, TINY.tables("embedding", state, arrays))
    moved = state._replace(embedding_target=jax.tree.map(jnp.zeros_like, state.embedding_target))
    after, _ = TINY.update("embedding", moved, batch, jax.random.key(0))
    expected = jax.tree.map(lambda leaf: TINY.target_rate * leaf, state.embedding)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-9), after.embedding_target, expected)


def two_routes() -> Trajectories:
    """A ring of 12 places: from place 0 to place 4 a short way (4 steps) and a long way (8), equally often."""
    angle = 2 * np.pi * np.arange(12) / 12
    place = 3 * np.stack([np.cos(angle), np.sin(angle)], 1)
    short, long = place[[0, 1, 2, 3, 4]], place[[0, 11, 10, 9, 8, 7, 6, 5, 4]]
    return Trajectories.from_episodes(
        [(route, np.zeros((len(route) - 1, 2))) for route in (short, long) for _ in range(8)]
    )


@pytest.mark.slow
@pytest.mark.optimised
def test_raising_the_expectile_shortens_learned_distances():
    """The sign of the TD expectile: with tau = 0.95 the short route decides, with tau = 0.05 the long one."""
    from iel.training import train

    data, learned = two_routes(), {}
    for tau in (0.05, 0.95):
        algo = IEL.preset(
            "smoke",
            steps=1600,
            omega_share=0.1,
            embedding_share=0.9,
            expectile=tau,
            kappa=0.0,
            learning_rate=2e-3,
            hidden=(64, 64),
        )
        model = train(data, algo, progress=False).model
        learned[tau] = float(model.cost(data.observations[:1], data.observations[4:5], data.observations[4:5])[0])
    assert learned[0.95] == pytest.approx(4.0, abs=0.8)
    assert learned[0.05] > learned[0.95] + 1.5


def test_presets_and_settings():
    paper = IEL()
    assert (paper.beta, paper.kappa, paper.hitting_expectile, paper.max_steps) == (0.1, 0.05, 0.5, 10)
    assert [phase.steps for phase in paper.phases()] == [20_000, 480_000, 500_000]
    assert IEL.preset("official").beta == 0.3 and IEL.preset("official").noise_units == "raw"
    assert IEL.preset("laptop", hidden=(512, 512, 512)).hidden == (512, 512, 512)  # what is said wins over the preset
    assert sum(phase.steps for phase in IEL(steps=101).phases()) == 101
    assert config_from_dict(IEL, config_dict(IEL.preset("laptop"))) == IEL.preset("laptop")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"betta": 1.0}, "did you mean beta"),
        ({"beta": -0.1}, "may not be negative"),
        ({"discount": 1.0}, "strictly between 0 and 1"),
        ({"steps": 0}, "steps must be positive"),
        ({"hidden": (64, 0)}, "hidden must be positive"),
        ({"omega_share": 0.6, "embedding_share": 0.6}, "at most 1"),
        ({"p_trajectory": 1.2}, "non-negative and sum to 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        IEL.preset("paper", **settings)
    with pytest.raises(ConfigError, match="did you mean laptop"):
        IEL.preset("lapto")
