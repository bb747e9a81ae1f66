"""Standardised training exports a model for raw observations; directions may come from the trajectory's own future."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algo_worlds import fresh

from benchmarks.runtime import random_model
from iel.data import Trajectories
from iel.data.goals import to_device
from iel.data.scaling import scaling_of, standardised
from iel.errors import ConfigError
from iel.learner import Spec
from iel.methods import HILP, get_method
from iel.model.scaling import for_raw_observations
from iel.nn import unit
from iel.planning import make_planner
from iel.policies import Directions, Waypoints
from iel.policies.directions import DirectionBatch, draw_directions


@pytest.fixture(scope="module")
def uneven() -> Trajectories:
    """Columns of very different size, one of them constant."""
    rng = np.random.default_rng(0)
    episodes = []
    for length in (12, 7):
        states = rng.standard_normal((length + 1, 3)) * [30.0, 0.1, 0.0] + [100.0, -2.0, 5.0]
        episodes.append((states.astype(np.float32), rng.uniform(-1, 1, (length, 2)).astype(np.float32)))
    return Trajectories.from_episodes(episodes, "uneven")


def test_standardised_columns_have_mean_zero_and_std_one(uneven):
    columns = standardised(uneven, scaling_of(uneven)).observations
    assert np.allclose(columns.mean(0), 0.0, atol=1e-4)
    assert np.allclose(columns.std(0), [1.0, 1.0, 0.0], atol=1e-3)


@pytest.mark.parametrize(
    "name",
    ["iel", "hilp", "gas", "fb", "gcbc", "gcivl", "gciql", "gccql", "qrl", "cmd", "tmd", "crl", "clearning", "hiql"],
)
def test_the_folded_model_on_raw_observations_is_the_model_on_standardised_ones(uneven, name):
    algo, spec = get_method(name).preset("smoke"), Spec(3, 2)
    model = algo.model(fresh(algo, spec), spec)
    scaling = scaling_of(uneven)
    folded = for_raw_observations(model, scaling)
    raw, scaled = uneven.observations, standardised(uneven, scaling).observations
    target = np.arange(len(raw))[::-1]
    if model.conditioning.kind == "direction":
        z = np.asarray(unit(jax.random.normal(jax.random.key(1), (len(raw), model.dimension))))
        np.testing.assert_allclose(folded.embed(raw), model.embed(scaled), atol=2e-4)
        np.testing.assert_allclose(folded.omega(raw), model.omega(scaled), atol=2e-4)
        np.testing.assert_allclose(folded.act(raw, z), model.act(scaled, z), atol=2e-4)
    else:
        plans = [(m, x, make_planner("direct", m, uneven).plan(x[target])) for m, x in ((folded, raw), (model, scaled))]
        acted = (m.act(x, m.command(x, plan.target(m.embed(x)))) for m, x, plan in plans)
        np.testing.assert_allclose(*acted, atol=2e-3)
    if model.metric is not None:
        costs = (m.cost(x, x[target], x[target]) for m, x in ((folded, raw), (model, scaled)))
        np.testing.assert_allclose(*costs, rtol=1e-3, atol=2e-3)


def test_a_waypoint_keeps_its_direction_when_folded(uneven):
    """z = unit((g - x)[columns] / scale): on raw observations the scale is that of the columns."""
    model = random_model("waypoint", (8,), 3, 2, 4)
    scaling = scaling_of(uneven)
    folded, raw, scaled = for_raw_observations(model, scaling), uneven.observations, standardised(uneven, scaling)
    commands = []
    for m, x in ((folded, raw), (model, scaled.observations)):
        target = make_planner("direct", m, uneven).plan(x[::-1]).target(m.embed(x))
        commands.append(m.command(x, target))
        commands.append(m.act(x, commands[-1]))
    np.testing.assert_allclose(commands[0], commands[2], atol=1e-3)
    np.testing.assert_allclose(commands[1], commands[3], atol=1e-3)


def test_a_standardised_training_does_not_depend_on_units(uneven):
    """In other units the raw training is another one; the standardised training ends in the same function."""
    import iel

    settings = {"steps": 40, "standardise": "all", "hidden": (32, 32), "policy": Waypoints(columns=(0, 1), steps=1)}
    metric = uneven.observations * np.float32(1024.0)  # a power of two: nothing is rounded
    other = Trajectories(metric, uneven.actions, uneven.offsets, "uneven")
    here = iel.train(uneven, iel.IEL.preset("smoke", **settings), progress=False).model
    there = iel.train(other, iel.IEL.preset("smoke", **settings), progress=False).model
    np.testing.assert_allclose(here.embed(uneven.observations), there.embed(metric), atol=1e-4)


def test_future_directions_point_where_the_trajectory_went_and_stay_in_their_episode(uneven):
    policy = Directions(future_share=1.0, future_steps=5)
    learner = policy.learner(HILP.preset("smoke", batch_size=200, policy=policy))
    batch = learner.sample(jax.random.key(0), to_device(uneven), jnp.asarray(uneven.observations))
    state = np.asarray(batch.state)
    for row in range(200):
        start = int(np.argmin(np.abs(uneven.observations - state[row]).sum(1)))
        last = int(uneven.final[start])
        reachable = uneven.observations[start + 1 : min(start + 5, last) + 1] - uneven.observations[start]
        assert np.abs(reachable - np.asarray(batch.future[row])).sum(1).min() < 1e-3
    z = draw_directions(jax.random.key(1), batch, 1.0)
    np.testing.assert_allclose(z, unit(batch.future), atol=1e-6)
    mixed = np.asarray(draw_directions(jax.random.key(1), batch, 0.5))
    own = np.isclose(mixed, np.asarray(z)).all(1).mean()
    assert 0.35 < own < 0.65


def test_without_a_share_directions_are_the_papers_to_the_bit(uneven):
    batch = DirectionBatch(jnp.zeros((9, 3)), jnp.zeros((9, 2)), jnp.zeros((9, 3)), jnp.zeros((9, 4)))
    key = jax.random.key(3)
    assert (draw_directions(key, batch, 0.0) == unit(jax.random.normal(key, (9, 4)))).all()


def test_impossible_settings_are_refused():
    import iel

    with pytest.raises(ConfigError, match="future_share"):
        Directions(future_share=1.5)
    with pytest.raises(ConfigError, match="future_steps"):
        Directions(future_steps=0)
    with pytest.raises(ConfigError, match="noise_units"):
        iel.IEL(standardise="all", noise_units="raw")


@pytest.mark.parametrize("training", ["joint", "phased"])
def test_hilp_takes_the_same_options(uneven, training):
    """Each of them changes what is learned, and the policy with LayerNorm is the one that is exported."""
    import iel

    plain = {"steps": 4, "training": training, "hidden": (16,), "batch_size": 16, "dimension": 4}
    options = (
        {},
        {"policy": Directions(norm=True)},
        {"policy": Directions(future_share=0.5, future_steps=3)},
        {"standardise": "all"},
    )
    actions = []
    for option in options:
        model = iel.train(
            uneven, HILP.preset("smoke", **{**plain, "policy": Directions(), **option}), progress=False
        ).model
        assert model.networks["policy"].has_norm == option.get("policy", Directions()).norm
        z = np.tile(np.eye(1, model.dimension, dtype=np.float32), (len(uneven.observations), 1))
        actions.append(model.act(uneven.observations, z))
    for other in actions[1:]:
        assert not np.array_equal(actions[0], other)
