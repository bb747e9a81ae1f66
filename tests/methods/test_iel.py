"""IEL: its contract, its losses against float64 numpy, what is frozen stays frozen, and short routes win."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algo_worlds import fresh, learner, started

from iel.data import Trajectories
from iel.data.goals import to_device
from iel.errors import ConfigError
from iel.learner import Spec
from iel.methods import IEL, METHODS, check_algo, config_dict, config_from_dict
from iel.methods.iel import GoalBatch
from iel.nn import apply_heads, head, in_blocks, unit
from iel.policies import Directions, Waypoints
from iel.policies.directions import DirectionBatch

TINY = IEL.preset("smoke", hidden=(16, 16), batch_size=32, dimension=4)
SPEC = Spec(2, 2)


def walks(seed: int = 0) -> Trajectories:
    rng = np.random.default_rng(seed)
    actions = rng.uniform(-1, 1, (6, 50, 2))
    return Trajectories.from_episodes([(np.concatenate([np.ones((1, 2)), 1 + a.cumsum(0)]), a) for a in actions])


@pytest.fixture(scope="module")
def world():
    return to_device(walks()), fresh(TINY, SPEC)


@pytest.mark.parametrize("name", METHODS)
def test_contract(name):
    algo = METHODS[name].preset("smoke", hidden=(16,), policy_hidden=(12, 8), batch_size=16)
    check_algo(algo)
    spec = algo.spec(walks())
    networks = algo.model(fresh(algo, spec), spec).networks
    acting = ("policy", "high") if name == "hiql" else ("policy",)  # its high level is a policy too
    for kind, network in networks.items():
        assert network.sizes[1:-1] == ((12, 8) if kind in acting else (16,)), kind


def test_embedding_loss_against_float64_numpy(world):
    arrays, trained = world
    algo = dataclasses.replace(TINY, beta=0.3, kappa=0.7, hitting_expectile=0.25)
    own, embedding = learner(algo, "embedding"), trained["embedding"]
    batch: GoalBatch = own.sample(jax.random.key(1), arrays, own.tables(trained, arrays, SPEC))
    batch = batch._replace(success=batch.success.at[3].set(1.0))
    target = jax.tree.map(lambda leaf: leaf * 1.1, embedding)
    loss, _ = own.loss(embedding, target, batch, jax.random.key(2))

    online = {k: np.asarray(apply_heads(embedding, getattr(batch, k)), np.float64) for k in batch._fields[:4]}
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
    arrays, trained = world
    embedding, hitting = trained["embedding"], {}
    for goals in ("all", "ahead"):
        own = learner(dataclasses.replace(TINY, hitting_goals=goals, p_trajectory=0.5), "embedding")
        batch = own.sample(jax.random.key(1), arrays, own.tables(trained, arrays, SPEC))
        ahead = (batch.steps > 0) if batch.counted is None else batch.counted > 0
        for name, longer in (("drawn", 0.0), ("elsewhere", jnp.where(ahead, 0.0, 5.0))):
            changed = batch._replace(steps=batch.steps + longer)
            hitting[goals, name] = own.loss(embedding, embedding, changed, jax.random.key(2))[1]["embedding/hitting"]
    assert 0 < ahead.mean() < 1 and hitting["ahead", "elsewhere"] == hitting["ahead", "drawn"] < hitting["all", "drawn"]


def test_policy_reward_is_progress_along_the_direction(world):
    arrays, trained = world
    own, phi = learner(TINY, "policy"), head(trained["embedding"], 0)
    batch: DirectionBatch = own.sample(jax.random.key(1), arrays, own.tables(trained, arrays, SPEC))
    np.testing.assert_allclose(batch.displacement, phi(batch.next_state) - phi(batch.state), atol=1e-5)


def test_precomputed_tables_are_what_the_networks_say(world):
    arrays, trained = world
    omega = learner(TINY, "embedding").tables(trained, arrays, SPEC)
    np.testing.assert_allclose(omega, unit(trained["omega"](arrays.observations)), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(omega, axis=-1), 1.0, atol=1e-4)
    phi = learner(TINY, "policy").tables(trained, arrays, SPEC)
    np.testing.assert_allclose(phi, head(trained["embedding"], 0)(arrays.observations), atol=1e-5)
    for block in (1, 7, 64):  # rows do not depend on how they are cut
        np.testing.assert_allclose(
            in_blocks(trained["omega"], arrays.observations, block), trained["omega"](arrays.observations), atol=1e-5
        )


def test_targets_follow_the_parameters_before_the_step(world):
    arrays, trained = world
    own, state = learner(TINY, "embedding"), started(TINY, SPEC)["embedding"]
    batch = own.sample(jax.random.key(0), arrays, own.tables(trained, arrays, SPEC))
    moved = state._replace(target=jax.tree.map(jnp.zeros_like, state.target))
    after, _ = own.update(moved, batch, jax.random.key(0))
    expected = jax.tree.map(lambda leaf: TINY.target_rate * leaf, state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-9), after.target, expected)


def two_routes() -> Trajectories:
    """A ring of 12 positions: from 0 to 4 a short route (4 steps) and a long route (8), equally often."""
    angle = 2 * np.pi * np.arange(12) / 12
    position = 3 * np.stack([np.cos(angle), np.sin(angle)], 1)
    short, long = position[[0, 1, 2, 3, 4]], position[[0, 11, 10, 9, 8, 7, 6, 5, 4]]
    return Trajectories.from_episodes(
        [(route, np.zeros((len(route) - 1, 2))) for route in (short, long) for _ in range(8)]
    )


@pytest.mark.slow
def test_raising_the_expectile_shortens_learned_distances():
    """The sign of the TD expectile: with tau = 0.95 the short route decides, with tau = 0.05 the long one."""
    from iel.training import train

    data, learned = two_routes(), {}
    for tau in (0.05, 0.95):
        algo = IEL.preset(
            "smoke",
            steps=1600,
            omega_share=0.1,
            policy=Waypoints(steps=1, columns=(0, 1)),  # the cheapest to compile; only distances are read
            expectile=tau,
            kappa=0.0,
            learning_rate=2e-3,
            hidden=(32, 32),
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
    assert IEL.preset("laptop", hidden=(512, 512, 512)).hidden == (
        512,
        512,
        512,
    )  # explicit settings win over the preset
    assert sum(phase.steps for phase in IEL(steps=101).geometry()) == 101
    assert [phase.steps for phase in IEL(steps=100, policy=Directions(steps=7)).phases()] == [4, 96, 7]
    assert config_from_dict(IEL, config_dict(IEL.preset("laptop"))) == IEL.preset("laptop")


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"betta": 1.0}, "did you mean beta"),
        ({"beta": -0.1}, "beta is -0.1; expected `float` >= 0.0"),
        ({"discount": 1.0}, "expected `float` < 1.0"),
        ({"steps": 0}, "steps is"),
        ({"hidden": (64, 0)}, "hidden is"),
        ({"omega_share": 1.2}, "omega_share is"),
        ({"policy": None}, "no policy of its own"),
        ({"p_trajectory": 1.2}, "p_trajectory is"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        IEL.preset("paper", **settings)
    with pytest.raises(ConfigError, match="did you mean laptop"):
        IEL.preset("lapto")
