"""Waypoint steering: a policy over the place columns, blind to its own place; data cut at jumps."""

import dataclasses

import jax
import numpy as np
import pytest
from iel.methods.contract import Spec
from iel.methods.skills import policy_optimiser
from iel.methods.waypoints import Steerable

import iel
from iel.data import Trajectories
from iel.data.goals import to_device
from iel.data.jumps import cut_at_jumps
from iel.errors import ConfigError, DataError
from iel.methods import ALGOS, GCIVL, HILP, IEL, check_algo
from iel.model import Waypoint
from iel.planning import make_planner

WALKER = {"steering": "waypoint", "learner": "cloning", "future_share": 1.0, "policy_norm": True, "decay": True}
TINY = {"hidden": (32, 32), "batch_size": 128, "dimension": 4, "learning_rate": 3e-3, "standardise": True}


def body(seed: int = 0) -> Trajectories:
    """A body that goes where its action points: columns are a pose (noise), x, y in metres, and another pose.

    Headings change every 15 steps, so that where the trajectory goes says what was done.
    """
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(12):
        heading = np.repeat(rng.uniform(0, 2 * np.pi, 10), 15)
        actions = 0.7 * np.column_stack([np.cos(heading), np.sin(heading)])
        place = np.concatenate([np.zeros((1, 2)), np.cumsum(actions, 0)]) + rng.normal(size=2) * 20
        pose = rng.normal(size=(len(place), 2))
        episodes.append((np.column_stack([pose[:, 0], place, pose[:, 1]]), actions))
    return Trajectories.from_episodes(episodes, "body")


@pytest.mark.parametrize("method", [IEL, HILP])
def test_both_methods_keep_the_contract_when_steered_by_waypoints(method):
    phased = {"training": "phased"} if method is HILP else {}
    check_algo(method.preset("smoke", **WALKER, **{**TINY, "hidden": (8,), "batch_size": 16}, **phased), body())


@pytest.mark.parametrize("method", [IEL, HILP])
def test_a_policy_may_be_wider_than_the_map_and_may_see_its_place(method):
    phased = {"training": "phased"} if method is HILP else {}
    small = {**TINY, "hidden": (8,), "policy_hidden": (12, 12), "batch_size": 16, "sees_place": True}
    algo = method.preset("smoke", **WALKER, **small, **phased)
    check_algo(algo, body())
    state = algo.init(jax.random.key(0), Spec(4, 2, (1, 2)))
    policy, embedding = state.skills.policy.mean.layers, state.embedding.layers
    assert [layer.kernel.shape for layer in policy] == [(4 + 2, 12), (12, 12), (12, 2)]  # all columns and the way
    assert embedding[0].kernel.shape == (2, 4, 8)
    with pytest.raises(ConfigError, match="steering waypoint"):
        method.preset("smoke", sees_place=True)
    with pytest.raises(ConfigError, match="policy_hidden must be positive"):
        method.preset("smoke", policy_hidden=(8, 0))


@pytest.mark.parametrize("method", [IEL, HILP])
def test_both_methods_keep_the_contract_with_several_policies(method):
    phased = {"training": "phased"} if method is HILP else {}
    small = {**TINY, "hidden": (8,), "batch_size": 16, "policy_heads": 3, "learner": "cloning", "future_share": 1.0}
    check_algo(method.preset("smoke", **small, **phased), body())
    with pytest.raises(ConfigError, match="policy_heads must be positive"):
        method.preset("smoke", policy_heads=0)


@pytest.mark.optimised
def test_the_policy_goes_where_it_is_sent_and_does_not_know_where_it_is():
    data = body()
    run = iel.train(data, IEL.preset("smoke", **WALKER, **TINY, steps=500, embedding_share=0.2), progress=False)
    model = run.model
    assert isinstance(model.steering, Waypoint) and model.steering.columns == (1, 2)
    spread = data.observations[:, 1:3].std(0)
    np.testing.assert_allclose(model.steering.scale, spread, rtol=1e-3)
    assert 0.7 < model.steering.reach * spread.mean() < 20 * 0.7  # metres: between one step and twenty
    states = data.observations[::50]
    for way in np.array([[1.0, 0.0], [0.0, -1.0], [-0.6, 0.8]]):
        goals = states + np.float32([0.0, *(5.0 * way), 0.0])
        target = make_planner("direct", model, data).plan(goals).target(model.embed(states))
        actions = model.act(states, model.command(states, target))
        cosine = (actions @ way) / np.linalg.norm(actions, axis=1)
        assert cosine.mean() > 0.9, way
        elsewhere = states + np.float32([0.0, 300.0, -100.0, 0.0])
        assert np.array_equal(model.act(elsewhere, model.command(states, target)), actions)


# ---------------------------------------------------------------- one walker for every geometry

STEERABLE = sorted(name for name, entry in ALGOS.items() if issubclass(entry.config, Steerable))


@pytest.mark.long
@pytest.mark.parametrize("name", STEERABLE)
def test_any_steerable_method_keeps_the_contract_when_steered_by_waypoints(name):
    algo = ALGOS[name].config.preset("smoke", steering="waypoint", hidden=(8,), batch_size=16, steps=20)
    assert algo.phases()[0].name == "policy"
    check_algo(algo, body())


@pytest.mark.parametrize("names", [("gcivl", "qrl"), pytest.param(STEERABLE, marks=pytest.mark.long)])
def test_every_steerable_method_has_the_same_walker_bit_for_bit(names):
    """And it is the one the data asks for: batch t follows from the seed and t, and the walker is trained first."""
    settings = {"steering": "waypoint", "hidden": (16,), "batch_size": 32, "steps": 40, "learning_rate": 1e-2}
    policies = {}
    for name in names:
        run = iel.train(body(), ALGOS[name].config.preset("smoke", **settings), progress=False)
        policies[name] = run.model.networks["policy"].arrays()
        assert isinstance(run.model.steering, Waypoint) and run.model.metric is not None
    first = policies[names[0]]
    assert len(names) > 1 and np.abs(first["layers.0.bias"]).max() > 0.01, "it was trained"
    for name, other in policies.items():
        assert first.keys() == other.keys() and all(np.array_equal(first[key], other[key]) for key in first), name


def test_a_walker_is_cloned_from_where_the_data_went():
    """By hand: minus the mean log-likelihood of the actions, given the direction and all but the place."""
    algo = GCIVL.preset("smoke", steering="waypoint", hidden=(8,), batch_size=64, future_steps=1)
    data, spec = to_device(body(), (1, 2)), Spec(4, 2, (1, 2))
    state = algo.init(jax.random.key(0), spec)
    batch = algo.draw_walk(jax.random.key(1), data, algo.tables("policy", state, data))
    z = np.asarray(batch.future, np.float64)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    policy = state.walker.skills.policy
    mean = np.asarray(policy(np.concatenate([batch.state, z], 1)), np.float64)
    expected = (np.square(batch.action - mean).sum(1) / 2 + np.log(2 * np.pi)).mean()
    after, metrics = algo.walk(state, batch, jax.random.key(2))
    assert float(metrics["policy/loss"]) == pytest.approx(expected, rel=1e-4)
    assert after.networks is state.networks and algo.walk(after, batch, jax.random.key(2))[1]["policy/loss"] < expected


def test_place_columns_are_found_given_or_refused():
    data = body()
    assert IEL.preset("smoke", **WALKER).place_of(data) == (1, 2)
    assert IEL.preset("smoke", **WALKER, place=(2,)).place_of(data) == (2,)
    assert IEL.preset("smoke").place_of(data) == ()
    rng = np.random.default_rng(0)
    noise = Trajectories.from_episodes([(rng.normal(size=(101, 3)), rng.uniform(-1, 1, (100, 2)))], "noise")
    with pytest.raises(DataError, match="nothing separates place from pose"):
        IEL.preset("smoke", **WALKER).place_of(noise)
    with pytest.raises(ConfigError, match="phased"):
        HILP.preset("smoke", **WALKER)


def test_a_batch_holds_directions_of_the_place_and_no_place():
    algo, data = IEL.preset("smoke", **WALKER, batch_size=64, dimension=4), body()
    arrays, spec = to_device(data, (1, 2)), Spec(4, 2, (1, 2))
    state = algo.init(jax.random.key(0), spec)
    batch = algo.sample("policy", jax.random.key(1), arrays, algo.tables("policy", state, arrays))
    assert batch.state.shape == (64, 2) and batch.future.shape == (64, 2)
    np.testing.assert_allclose(batch.displacement, batch.action, atol=1e-4)  # one step moves the place by the action
    assert state.skills.value is None and state.critic_target is None  # cloning has no critic to carry along


def test_the_policys_step_size_ends_at_zero():
    optimiser = policy_optimiser(0.1, 10, decay=True)
    state, sizes = optimiser.init(np.ones(1)), []
    for _ in range(10):
        change, state = optimiser.update(np.ones(1), state)
        sizes.append(float(-change[0]))
    assert sizes[0] == pytest.approx(0.1, rel=1e-3) and sizes[-1] < 0.01 and sizes == sorted(sizes, reverse=True)


def test_training_on_data_with_jumps_is_training_on_its_pieces():
    data = body()
    observations = data.observations.copy()
    for first in data.offsets[:-1:2]:
        observations[first + 60 : first + 90, 1:3] += 500.0  # thrown far away and back again
    thrown = Trajectories(observations, data.actions, data.offsets, "thrown")
    cut = cut_at_jumps(thrown)
    assert cut.jumps == len(data)
    algo = IEL.preset("smoke", steps=6, hidden=(8,), batch_size=16, dimension=4, cut_jumps=True)
    mine = iel.train(thrown, algo, progress=False).model
    theirs = iel.train(cut.data, dataclasses.replace(algo, cut_jumps=False), progress=False).model
    assert np.array_equal(mine.embed(observations[:5]), theirs.embed(observations[:5]))


def test_a_body_that_is_nothing_but_a_place_can_be_standardised():
    """Then the policy sees nothing but where to go."""
    data = body()
    place = Trajectories(data.observations[:, 1:3], data.actions, data.offsets, "point")
    settings = {**WALKER, **TINY, "hidden": (8,), "batch_size": 16, "steps": 6}
    model = iel.train(place, IEL.preset("smoke", **settings), progress=False).model
    assert (
        model.elsewhere == [] and np.isfinite(model.act(place.observations[:3], np.eye(3, 2, dtype=np.float32))).all()
    )


def test_places_that_do_not_exist_are_refused():
    for place in ((0, 9), (1, 1)):
        with pytest.raises(ConfigError, match="different columns from 0 to 3"):
            IEL.preset("smoke", **WALKER, place=place).place_of(body())
    with pytest.raises(ConfigError, match="steering by waypoints"):
        IEL.preset("smoke", place=(0, 1))
