"""Policies on any geometry: waypoints, directions, what is frozen meanwhile, and data cut at jumps."""

import dataclasses
import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from algo_worlds import fresh, learner, started

import iel
from iel.data import Trajectories
from iel.data.goals import draw_states, to_device
from iel.data.positions import cut_at_jumps
from iel.errors import ConfigError, DataError
from iel.learner import Spec, adam, with_multiplier
from iel.methods import HTP, IEL, METHODS, QRL, Method, check_algo, config_dict, config_from_dict, policy_from
from iel.model import Direction, Waypoint, load_model, save_model
from iel.nn import unit
from iel.planning import make_planner
from iel.policies import POLICIES, Directions, StateDirections, Waypoints
from iel.policies.state_directions import column_weights
from iel.training.loop import Trainer

TINY = {"hidden": (8,), "batch_size": 16, "steps": 4}
PHASED = {"hilp": {"training": "phased"}}
"""What a method needs besides a policy."""
SPEC = Spec(4, 2, (1, 2))


def paired(name: str, policy, **settings):
    """A tiny method with this policy."""
    return METHODS[name].preset("smoke", **{**TINY, **PHASED.get(name, {}), **settings}, policy=policy)


def robot(seed: int = 0) -> Trajectories:
    """A robot that goes where its action points: columns are a pose (noise), x, y in metres, and another pose.

    Headings change every 15 steps, so that where the trajectory goes says what was done.
    """
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(12):
        heading = np.repeat(rng.uniform(0, 2 * np.pi, 10), 15)
        actions = 0.7 * np.column_stack([np.cos(heading), np.sin(heading)])
        position = np.concatenate([np.zeros((1, 2)), np.cumsum(actions, 0)]) + rng.normal(size=2) * 20
        pose = rng.normal(size=(len(position), 2))
        episodes.append((np.column_stack([pose[:, 0], position, pose[:, 1]]), actions))
    return Trajectories.from_episodes(episodes, "robot")


# ---------------------------------------------------------------- every geometry with every policy


EMBEDDINGS = [name for name in METHODS if METHODS[name].embedding is not Method.embedding]


def test_geometries_with_an_embedding_are_those_known():
    """So that no test below is about nothing."""
    assert {"htp", "iel", "hilp", "gas", "qrl", "cmd", "tmd"} == set(EMBEDDINGS)


@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_every_embedding_with_every_policy_is_trained_saved_loaded_and_acts(name, kind, tmp_path):
    data = robot()
    model = iel.train(data, paired(name, POLICIES[kind](steps=3)), progress=False).model
    assert isinstance(model.conditioning, Direction if kind == "directions" else Waypoint)
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    states, goals = data.observations[:5], data.observations[-5:]
    answers = []
    for each in (model, loaded):
        target = make_planner("direct", each, data).plan(goals).target(each.embed(states))
        answers.append((each.cost(states, goals, goals), each.act(states, each.command(states, target))))
    assert all(np.array_equal(mine, theirs) for mine, theirs in zip(*answers, strict=True))
    assert np.isfinite(answers[0][0]).all() and answers[0][1].shape == (5, 2)


@pytest.mark.parametrize("name", METHODS)
def test_settings_survive_json_with_every_policy(name):
    own = [] if name in ("htp", "iel", "hilp") else [None]
    directions = Directions(extraction="cloning", heads=2, norm=True, future_share=0.25)
    for policy in (*own, Waypoints(columns=(0, 1), steps=7), Waypoints(), directions, Directions()):
        algo = paired(name, policy)
        settings = json.loads(json.dumps(config_dict(algo)))
        assert config_from_dict(type(algo), settings) == algo
        assert (settings["policy"] is None) == (policy is None)
    for preset in METHODS[name].presets:
        algo = METHODS[name].preset(preset)
        assert config_from_dict(type(algo), config_dict(algo)) == algo
        assert config_from_dict(type(algo), {"preset": preset}) == algo


def test_policies_are_named_and_unknown_ones_refused():
    assert policy_from("own") is None and policy_from("waypoints") == Waypoints()
    assert policy_from({"kind": "directions", "steps": 3}) == Directions(steps=3)
    for given, message in (("waypoint", "did you mean waypoints"), ({"kind": "waypoints", "step": 1}, "mean steps")):
        with pytest.raises(ConfigError, match=message):
            policy_from(given)
    for name in ("gcivl", "fb"):
        with pytest.raises(ConfigError, match="learns no embedding"):
            paired(name, Directions()).phases()
    with pytest.raises(ConfigError, match="steps is"):
        Waypoints(steps=-1)
    with pytest.raises(ConfigError, match="heads is"):
        Directions(heads=0)


@pytest.mark.parametrize(
    "algo", [paired("iel", Waypoints()), paired("hilp", Directions(extraction="cloning", heads=3))]
)
def test_the_contract_holds_with_another_policy(algo):
    check_algo(algo, robot())


@pytest.mark.long
@pytest.mark.parametrize("kind", POLICIES)
@pytest.mark.parametrize("name", METHODS)
def test_the_contract_holds_with_every_policy(name, kind):
    if name in EMBEDDINGS or kind == "waypoints":
        check_algo(paired(name, POLICIES[kind]()), robot())


def test_a_policy_may_be_wider_than_its_geometry():
    algo = paired("iel", Waypoints(), policy_hidden=(12, 12))
    trained = jax.eval_shape(lambda key: {p.slot: p.learner.init(key, SPEC) for p in algo.phases()}, jax.random.key(0))
    sizes = [layer.kernel.shape for layer in trained["policy"].mean.layers]
    assert sizes == [(2 + 2, 12), (12, 12), (12, 2)]  # the pose and the direction
    assert trained["embedding"].layers[0].kernel.shape == (2, 4, 8)
    with pytest.raises(ConfigError, match="policy_hidden is"):
        paired("iel", Waypoints(), policy_hidden=(8, 0))


# ---------------------------------------------------------------- what is frozen


FROZEN = {
    "iel": paired("iel", Directions()),
    "psm": paired("psm", Waypoints(), future_share=0.5),
    "gas": paired("gas", None),
    "htp": paired("htp", Directions()),
    "gccql": paired("gccql", None, warmup_share=0.5),
}


def same(one, other) -> bool:
    equal = jax.tree.map(lambda a, b: bool(np.array_equal(a, b)), one, other)
    return all(jax.tree.leaves(equal))


@pytest.mark.parametrize("name", FROZEN)
def test_a_phase_changes_its_own_slot_and_no_other(name):
    """Networks, target copies and moments of the optimiser, to the bit."""
    trainer = Trainer(robot(), FROZEN[name], [0], {})
    for phase in trainer.phases:
        (before,) = trainer.states()
        trainer.stepper(phase)(3)
        (after,) = trainer.states()
        assert before.keys() == after.keys()
        assert [slot for slot in before if not same(before[slot], after[slot])] == [phase.slot]
    slots = {"gccql": {"train"}, "gas": {"embedding", "policy"}, "htp": {"geometry", "policy"}}
    assert set(after) == slots.get(name, set(after)) and len(after) >= 1


class Priced(NamedTuple):
    network: jax.Array
    log_multiplier: jax.Array


@pytest.mark.parametrize("method", [QRL, HTP])
def test_a_multiplier_has_a_step_size_of_its_own(method):
    """Adam's first step is its step size, whatever the gradient."""
    optimiser = method.preset("smoke", learning_rate=0.25, dual_learning_rate=2.0).optimiser
    params = Priced(jnp.ones(3), jnp.zeros(()))
    change, _ = optimiser.update(Priced(jnp.full(3, 7.0), jnp.array(-0.1)), optimiser.init(params), params)
    np.testing.assert_allclose(change.network, -0.25, rtol=1e-4)
    np.testing.assert_allclose(change.log_multiplier, 2.0, rtol=1e-4)


def test_clipping_the_networks_gradient_does_not_look_at_the_multiplier():
    optimiser = with_multiplier(optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(1.0)), 0.5)
    params = Priced(jnp.zeros(1), jnp.zeros(()))
    change, _ = optimiser.update(Priced(jnp.array([0.5]), jnp.array(1e6)), optimiser.init(params), params)
    np.testing.assert_allclose(change.network, -0.5, rtol=1e-6)
    np.testing.assert_allclose(change.log_multiplier, -0.5, rtol=1e-4)


# ---------------------------------------------------------------- directions of the exported embedding


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_directions_are_those_of_the_exported_embedding(name):
    """A policy follows phi as planners see it: of HTP that is not the network's own output."""
    data, algo = robot(), paired(name, Directions(), standardise="all", hidden=(32,))
    trainer = Trainer(data, algo, [0], {})
    trainer.stepper(trainer.phases[-2])(3)
    trained = {slot: state.params for slot, state in trainer.states()[0].items()}
    exported = trainer.models()[0].embed(data.observations[:200])  # raw rows; training saw them standardised
    rows = trainer.source.data.observations[:200]
    own = jax.jit(lambda rows: algo.embedding(trained, trainer.spec)(rows))(rows)
    np.testing.assert_allclose(own, exported, rtol=1e-4, atol=1e-4)
    policy = learner(algo, "policy")
    table = jax.jit(lambda: policy.tables(trained, trainer.source.data, trainer.spec))()
    np.testing.assert_allclose(table[:200], exported, rtol=1e-4, atol=1e-4)
    assert np.abs(exported).std() > 1e-3
    if name == "htp":
        assert np.abs(trained["geometry"].network(rows)[:, : algo.dimension] - exported).max() > 0.01, "not as trained"


# ---------------------------------------------------------------- one waypoint policy for every geometry


@pytest.mark.parametrize("names", [("gcivl", "qrl"), pytest.param(tuple(METHODS), marks=pytest.mark.long)])
def test_every_geometry_has_the_same_waypoint_policy_bit_for_bit(names):
    """Batch t follows from the seed and t, and the policy is trained first."""
    settings = {"hidden": (16,), "batch_size": 32, "learning_rate": 1e-2}
    policies = {}
    for steps, name in enumerate(names, start=2):  # nor does it matter how long the geometry is trained
        algo = paired(name, Waypoints(steps=40), **{**settings, "steps": steps})
        assert algo.phases()[0].name == "policy" and algo.phases()[0].steps == 40
        model = iel.train(robot(), algo, progress=False).model
        policies[name] = model.networks["policy"].arrays()
        assert isinstance(model.conditioning, Waypoint)
    first = policies[names[0]]
    untrained = fresh(algo, SPEC)["policy"].mean.layers[0].bias
    assert np.abs(first["layers.0.bias"] - untrained).max() > 0.01, "it was trained"
    for name, other in policies.items():
        assert first.keys() == other.keys() and all(np.array_equal(first[key], other[key]) for key in first), name


@pytest.mark.optimised
def test_the_policy_goes_where_it_is_sent_and_does_not_know_where_it_is():
    data, policy = robot(), Waypoints(steps=400)
    settings = {"hidden": (32, 32), "batch_size": 128, "learning_rate": 3e-3, "standardise": "all", "steps": 100}
    model = iel.train(data, IEL.preset("smoke", **settings, policy=policy), progress=False).model
    assert isinstance(model.conditioning, Waypoint) and model.conditioning.columns == (1, 2)
    sigma = data.observations[:, 1:3].std(0)
    np.testing.assert_allclose(model.conditioning.scale, sigma, rtol=1e-3)
    assert 0.7 < model.conditioning.reach * sigma.mean() < 20 * 0.7  # metres: between one step and twenty
    states = data.observations[::50]
    for toward in np.array([[1.0, 0.0], [0.0, -1.0], [-0.6, 0.8]]):
        goals = states + np.float32([0.0, *(5.0 * toward), 0.0])
        target = make_planner("direct", model, data).plan(goals).target(model.embed(states))
        actions = model.act(states, model.command(states, target))
        cosine = (actions @ toward) / np.linalg.norm(actions, axis=1)
        assert cosine.mean() > 0.9, toward
        elsewhere = states + np.float32([0.0, 300.0, -100.0, 0.0])
        assert np.array_equal(model.act(elsewhere, model.command(states, target)), actions)


def test_a_waypoint_policy_is_cloned_from_where_the_data_went():
    """By hand: minus the mean log-likelihood of the actions, given the direction and all but the position."""
    algo = paired("gcivl", Waypoints(future_steps=1), batch_size=64)
    data, own = to_device(robot(), (1, 2)), learner(algo, "policy")
    state = started(algo, SPEC)["policy"]
    batch = own.sample(jax.random.key(1), data, own.tables({}, data, SPEC))
    assert batch.state.shape == (64, 2) and batch.future.shape == (64, 2)
    np.testing.assert_allclose(batch.future, batch.action, atol=1e-4)  # one step moves the position by the action
    poses = {row.tobytes() for row in robot().observations[:, [0, 3]]}
    assert all(row.tobytes() in poses for row in np.asarray(batch.state)), "all but the position"
    z = np.asarray(batch.future, np.float64)
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    mean = np.asarray(state.params(np.concatenate([batch.state, z], 1)), np.float64)
    expected = (np.square(batch.action - mean).sum(1) / 2 + np.log(2 * np.pi)).mean()
    step = jax.jit(own.update)
    after, metrics = step(state, batch, jax.random.key(2))
    assert float(metrics["policy/loss"]) == pytest.approx(expected, rel=1e-4)
    assert step(after, batch, jax.random.key(2))[1]["policy/loss"] < expected


def test_cloned_directions_have_no_critic():
    networks = fresh(paired("iel", Directions(extraction="cloning")), SPEC)["policy"]
    assert networks.value is None and networks.critic is None
    assert started(paired("iel", Directions(extraction="cloning")), SPEC)["policy"].target is None


def test_position_columns_are_found_given_or_refused():
    data = robot()
    assert paired("iel", Waypoints()).spec(data).position == (1, 2)
    assert paired("iel", Waypoints(columns=(2,))).spec(data).position == (2,)
    assert paired("iel", Directions()).spec(data).position == () == paired("gcivl", None).spec(data).position
    rng = np.random.default_rng(0)
    noise = Trajectories.from_episodes([(rng.normal(size=(101, 3)), rng.uniform(-1, 1, (100, 2)))], "noise")
    with pytest.raises(DataError, match="nothing separates position from pose"):
        paired("iel", Waypoints()).spec(noise)
    for columns in ((0, 9), (1, 1)):
        with pytest.raises(ConfigError, match="different columns from 0 to 3"):
            paired("iel", Waypoints(columns=columns)).spec(data)


def test_the_policys_step_size_is_its_own_and_ends_at_zero():
    method = IEL.preset("smoke", learning_rate=0.5, steps=10)
    for policy, first in ((Waypoints(learning_rate=0.1), 0.1), (Waypoints(steps=10), 0.5)):
        optimiser, sizes = policy.learner(method).optimiser, []
        state = optimiser.init(np.ones(1))
        for _ in range(10):
            change, state = optimiser.update(np.ones(1), state)
            sizes.append(float(-change[0]))
        assert sizes[0] == pytest.approx(first, rel=1e-3) and sizes[-1] < 0.1 * first
        assert sizes == sorted(sizes, reverse=True)
    flat = adam(0.1)
    change, _ = flat.update(np.ones(1), flat.init(np.ones(1)))
    assert float(-change[0]) == pytest.approx(0.1, rel=1e-3)


# ---------------------------------------------------------------- data


def test_training_on_data_with_jumps_is_training_on_its_pieces():
    data = robot()
    observations = data.observations.copy()
    for first in data.offsets[:-1:2]:
        observations[first + 60 : first + 90, 1:3] += 500.0  # thrown far away and back again
    thrown = Trajectories(observations, data.actions, data.offsets, "thrown")
    cut = cut_at_jumps(thrown)
    assert cut.jumps == len(data)
    algo = IEL.preset("smoke", **TINY, dimension=4, cut_jumps=True)
    mine = iel.train(thrown, algo, progress=False).model
    theirs = iel.train(cut.data, dataclasses.replace(algo, cut_jumps=False), progress=False).model
    assert np.array_equal(mine.embed(observations[:5]), theirs.embed(observations[:5]))


def test_a_robot_that_is_nothing_but_a_position_can_be_standardised():
    """Then the policy sees nothing but where to go."""
    data = robot()
    point = Trajectories(data.observations[:, 1:3], data.actions, data.offsets, "point")
    model = iel.train(point, paired("gcivl", Waypoints(), standardise="all"), progress=False).model
    actions = model.act(point.observations[:3], np.eye(3, 2, dtype=np.float32))
    assert model.elsewhere == [] and np.isfinite(actions).all()


# ---------------------------------------------------------------- directions of the state


def test_columns_are_weighted_by_the_steps_that_the_embedding_gives_them():
    """A linear phi = A x has the slopes A: s_c is the length of its column c, and no column counts for nothing."""
    data = robot()
    spec, matrix = (
        paired("htp", StateDirections()).spec(data),
        np.random.default_rng(0).normal(size=(3, 4)) * [1e-9, 2.0, 1.0, 0.1],
    )

    class Linear:
        def embedding(self, trained, spec):
            return lambda x: x @ matrix.T

    found = np.asarray(column_weights(Linear(), {}, spec))
    worth = np.linalg.norm(matrix, axis=0) * spec.columns.std
    np.testing.assert_allclose(found[1:] * spec.columns.std[1:], worth[1:], rtol=1e-4)
    assert found[0] * spec.columns.std[0] == pytest.approx(1e-3 * worth.max(), rel=1e-3), "the least weight"


def test_a_policy_for_state_directions_acts_on_raw_columns_as_it_was_trained_on_standardised_ones():
    """By hand: the learner's standardised batch through the trained network, and raw columns through the export."""
    data = robot()
    algo = paired("htp", StateDirections(steps=3))
    learner, spec = algo.policy.learner(algo), algo.spec(data)
    trained = {phase.slot: phase.learner.init(jax.random.key(0), spec) for phase in algo.phases()}
    arrays = to_device(data)
    tables = learner.tables(trained, arrays, spec)
    rows = draw_states(jax.random.key(3), arrays, algo.batch_size)
    batch = learner.sample(jax.random.key(3), arrays, tables)
    model = algo.model(trained, spec)
    direction = np.asarray(unit(batch.future))
    wanted = np.clip(trained["policy"](jnp.concatenate([batch.state, direction], -1)), -1.0, 1.0)
    np.testing.assert_allclose(model.act(data.observations[rows], direction), wanted, rtol=1e-3, atol=1e-5)

    states, goals = data.observations[:5], data.observations[-5:]
    target = make_planner("direct", model, data).plan(goals).target(model.embed(states))
    command = model.command(states, target)
    ahead = (goals - states) / np.array(model.conditioning.scale)
    np.testing.assert_allclose(command, ahead / np.linalg.norm(ahead, axis=1, keepdims=True), rtol=1e-4, atol=1e-6)
    later = (spec.examples.later - spec.examples.state) / np.array(model.conditioning.scale)
    assert model.conditioning.reach == pytest.approx(np.linalg.norm(later, axis=1).mean(), rel=1e-5)


def test_a_policy_for_state_directions_goes_where_it_is_sent():
    """The geometry alone says that x and y matter; the pose columns are noise."""
    data = robot()
    policy = StateDirections(steps=600, learning_rate=3e-3)
    model = iel.train(data, paired("htp", policy, hidden=(32, 32), steps=600, batch_size=64), progress=False).model
    weights = 1.0 / np.array(model.conditioning.scale) * data.observations.std(0)
    assert weights[[1, 2]].min() > 3 * weights[[0, 3]].max()
    states = data.observations[::97]
    for heading in np.linspace(0, 2 * np.pi, 8, endpoint=False):
        toward = np.array([0.0, np.cos(heading), np.sin(heading), 0.0]) / np.array(model.conditioning.scale)
        actions = model.act(states, np.tile(toward / np.linalg.norm(toward), (len(states), 1)))
        assert (actions @ [np.cos(heading), np.sin(heading)]).mean() > 0.4
