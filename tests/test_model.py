"""The model: numpy alone, the same numbers as the networks that were trained, and bad inputs are refused."""

import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.runtime import KINDS, random_model
from iel.distances import LatentGoal, undiscounted_steps
from iel.errors import ConfigError, GeometryError, IELError, RunError
from iel.files import seal
from iel.learner import Spec
from iel.methods import METHODS
from iel.model import load_model, save_model
from iel.model.networks import products
from iel.nn import apply_heads, head, scalars, unit
from iel.planning import Atlas, Mixture, Region, Sequence, make_planner, planners_for
from iel.serial import save_arrays
from model_worlds import inputs, made, straight


@pytest.fixture
def saved(tmp_path):
    """A small directed model on disk."""
    save_model(made("directed"), tmp_path / "model")
    return tmp_path / "model"


# ---------------------------------------------------------------- distances of one, policy of another


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"goal"}))
def test_a_model_can_be_driven_by_the_policy_of_another(kind, tmp_path):
    model, waypoint_policy, (states, goals) = made(kind), made("waypoint", seed=1), inputs()
    before = model.cost(states, goals, goals)
    driven = model.driven_by(waypoint_policy)
    np.testing.assert_array_equal(driven.cost(states, goals, goals), before)  # a critic evaluates its own policy
    np.testing.assert_array_equal(straight(driven, states, goals), straight(waypoint_policy, states, goals))
    commands = straight(waypoint_policy, states, goals)
    np.testing.assert_array_equal(driven.act(states, commands), waypoint_policy.act(states, commands))
    assert type(model.conditioning) is type(made(kind).conditioning) and model.command_size == made(kind).command_size
    save_model(driven, tmp_path)
    loaded = load_model(tmp_path)
    np.testing.assert_array_equal(loaded.cost(states, goals, goals), before)
    np.testing.assert_array_equal(loaded.act(states, straight(loaded, states, goals)), driven.act(states, commands))
    assert planners_for(loaded) == planners_for(model) and loaded.conditioning == waypoint_policy.conditioning
    if model.metric.discount is not None:
        np.testing.assert_array_equal(loaded.steps(states, goals), model.steps(states, goals))


def test_a_policy_that_reads_its_own_embedding_cannot_follow_other_distances():
    with pytest.raises(ConfigError, match="conditioned on its own embedding"):
        made("waypoint").driven_by(made("directed"))
    with pytest.raises(ConfigError, match="same robot"):
        random_model("goal", (8, 8), 4, 3, 8, 0).driven_by(made("waypoint"))


# ---------------------------------------------------------------- numbers


@pytest.mark.optimised  # agreement to the last digits is with the programs users run
@pytest.mark.parametrize("name", ["iel", "hilp", "gcbc", "gcivl", "gciql", "gccql"])
def test_numpy_agrees_with_the_networks_that_were_trained(name):
    """Every network of a method in JAX and in numpy, to 1e-5 (other methods have this test in their own files)."""
    settings = {"training": "phased"} if name == "hilp" else {}
    algo, spec = METHODS[name].preset("smoke", hidden=(32, 32), **settings), Spec(5, 3)

    shapes = jax.eval_shape(lambda key: {p.slot: p.learner.init(key, spec) for p in algo.phases()}, jax.random.key(3))
    rng = np.random.default_rng(7)  # drawn by numpy: compiling the networks' own start takes longer than all the rest

    def draw(leaf):
        return jnp.asarray(rng.normal(size=leaf.shape) / np.sqrt(leaf.shape[-2] if leaf.ndim > 1 else 9), leaf.dtype)

    moved = jax.tree.map(draw, shapes)
    model, (states, goals) = algo.model(moved, spec), inputs()
    pair = jnp.concatenate([states, goals], -1)
    agree = lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)  # noqa: E731
    if name in ("iel", "hilp"):
        agree(model.embed(states), jax.jit(lambda x: head(moved["embedding"], 0)(x))(states))
        if name == "iel":
            agree(model.omega(goals), jax.jit(lambda x: unit(moved["omega"](x)))(goals))
        z = np.asarray(unit(jax.random.normal(jax.random.key(0), (64, algo.dimension))))
        policy = jax.jit(lambda x: jnp.clip(moved["policy"].policy(x), -1, 1))
        agree(model.act(states, z), policy(jnp.concatenate([states, z], -1)))
        return
    networks = moved["train"]
    action = jax.jit(lambda x: jnp.clip((networks if name == "gcbc" else networks.policy)(x), -1, 1))(pair)
    agree(model.act(states, goals), action)
    if name == "gccql":
        cost = jax.jit(lambda x, a: jnp.maximum(-scalars(networks.critic, x, a).min(0), 1e-3))(pair, action)
        agree(model.cost(states, goals, goals), cost)
    elif name != "gcbc":
        cost = jax.jit(lambda x: jnp.maximum(-apply_heads(networks.value, x)[..., 0].mean(0), 1e-3))(pair)
        agree(model.cost(states, goals, goals), cost)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_survives_its_files(kind, tmp_path):
    model, (states, goals) = made(kind), inputs()
    save_model(model, tmp_path)
    loaded = load_model(tmp_path)
    command = straight(model, states, goals)
    assert np.array_equal(loaded.act(states, straight(loaded, states, goals)), model.act(states, command))
    assert loaded.conditioning == model.conditioning and planners_for(loaded) == planners_for(model)
    assert model.act(states, command).std() > 0.05, "actions of these models vary"
    if model.metric is not None:
        assert np.array_equal(loaded.cost(states, goals, goals), model.cost(states, goals, goals))
        assert loaded.metric.discount == model.metric.discount


def test_a_log_odds_becomes_a_cost_that_falls_with_it():
    """By hand: f = min_e <v_e(x, a), w_e(g)> at the actor's action, cost -log sigmoid(f); never called steps."""
    model, (states, goals) = made("contrast"), inputs()
    action = np.clip(model.networks["actor"](np.concatenate([states, goals], 1)), -1, 1)
    rows = np.concatenate([states, action], 1)
    pairs = zip(model.networks["value"].heads, model.networks["goal_features"].heads, strict=True)
    odds = np.min([(v(rows).astype(np.float64) * w(goals)).sum(1) for v, w in pairs], axis=0)
    cost = model.cost(states, goals, goals)
    np.testing.assert_allclose(cost, np.maximum(-np.log(1 / (1 + np.exp(-odds))), 1e-3), rtol=1e-4)
    assert (np.argsort(cost) == np.argsort(-odds))[odds[np.argsort(-odds)] < 5].all()
    with pytest.raises(GeometryError, match="not in steps"):
        model.steps(states, goals)
    goal = LatentGoal(goals[0], goals[0])
    np.testing.assert_allclose(np.diagonal(model.metric.costs(states, goals, goal)), cost, rtol=1e-4)


def test_a_value_of_a_representation_is_reported_it_at_length_sqrt_c():
    model, (states, goals) = made("hierarchy"), inputs()
    inner = model.networks["representation"](np.concatenate([states, goals], 1))
    condition = 2.0 * inner / np.linalg.norm(inner, axis=1, keepdims=True)
    value = np.mean([h(np.concatenate([states, condition], 1))[:, 0] for h in model.networks["value"].heads], axis=0)
    np.testing.assert_allclose(model.cost(states, goals, goals), np.maximum(-value, 1e-3), rtol=1e-4, atol=1e-5)


def test_predicted_steps_are_the_undiscounted_cost():
    """By hand: d = l exp(beta (1 - c)) and H = log(1 - (1 - gamma) d) / log(gamma); the sign of beta matters."""
    model, (states, goals) = made("directed", 64), inputs()
    ahead, omega = model.embed(goals) - model.embed(states), model.omega(goals)
    length = np.sqrt(np.maximum((ahead**2).sum(1), 1e-6))
    cost = length * np.exp(0.3 * (1.0 - (ahead * omega).sum(1) / length))
    np.testing.assert_allclose(model.cost(states, goals, goals), cost, rtol=1e-5)
    np.testing.assert_allclose(model.steps(states, goals), np.log(1 - 0.01 * cost) / np.log(0.99), rtol=1e-4, atol=1e-5)
    wrong = length * np.exp(-0.3 * (1.0 - (ahead * omega).sum(1) / length))
    assert np.abs(wrong - cost)[8:].min() > 1e-3
    value = made("goal-value")
    inside = np.concatenate([states, goals], 1)
    mean = np.mean([network(inside)[:, 0] for network in value.networks["value"].heads], axis=0)
    np.testing.assert_allclose(value.cost(states, goals, goals), np.maximum(-mean, 1e-3), rtol=1e-5)
    expected = undiscounted_steps(np.maximum(-mean, np.float32(1e-3)), 0.99)
    np.testing.assert_allclose(value.steps(states, goals), expected, rtol=1e-4)
    with pytest.raises(GeometryError, match="no distances"):
        made("goal").steps(states, goals)


@pytest.mark.parametrize("kind", KINDS)
def test_what_can_be_requested_is_right_or_refused_in_a_sentence(kind):
    """Predicted steps, regions, mixtures, sequences and paths, for every kind of model and every planner it allows."""
    model, (states, goals) = made(kind), inputs()
    for name in planners_for(model):
        planner = make_planner(name, model, Atlas(np.concatenate([states, goals])))
        planner.prepare(goals[0])
        assert np.isfinite(planner.act(states[20])).all()
        if model.metric is None:
            for refused in (Region(goals[:2]), Mixture(goals[:2]), Sequence(goals[:2])):
                with pytest.raises(GeometryError):
                    planner.prepare(refused)
            continue
        if model.metric.discount is None:
            assert np.isfinite(planner.path(states[20]).costs).all()
            with pytest.raises(GeometryError, match="not in steps"):
                planner.predicted_steps(states[20])
            with pytest.raises(GeometryError, match="sequence"):
                planner.prepare(Sequence(goals[:2]))
            continue
        if name in ("direct", "rec-mid"):
            steps = float(model.steps(states[20:21], goals[:1])[0])
            assert planner.predicted_steps(states[20]) == pytest.approx(steps, rel=1e-4, abs=1e-5)
        route = planner.path(states[20])
        assert route.total == pytest.approx(planner.predicted_steps(states[20]), rel=1e-6)
        alone = []
        for goal in goals[:2]:
            planner.prepare(goal)
            alone.append(planner.predicted_steps(states[20]))
        planner.prepare(Region(goals[:2]))
        assert planner.predicted_steps(states[20]) in [pytest.approx(steps, rel=1e-5, abs=1e-6) for steps in alone]
        planner.prepare(Sequence([goals[0], goals[1]]))
        assert len(planner.path(states[20]).stages) in (1, 2)
        if not model.metric.spatial:
            with pytest.raises(GeometryError, match="mixture"):
                planner.prepare(Mixture(goals[:2]))
        elif kind in ("waypoint", "mrn") and name == "direct":  # their policies receive states
            planner.prepare(Mixture(goals[:2]))
            with pytest.raises(GeometryError, match="not a state"):
                planner.act(states[20])
        else:
            planner.prepare(Mixture(goals[:2]))
            mean = model.embed(goals[:2]).mean(0)
            np.testing.assert_allclose(planner.prepared.pursuit.points[0], mean, atol=1e-5)
            assert np.isfinite(planner.act(states[20])).all()


# ---------------------------------------------------------------- conditioning


def test_a_direction_points_from_here_to_the_target_in_the_latent():
    model, (states, goals) = made("directed"), inputs()
    ahead = model.embed(goals) - model.embed(states)
    expected = ahead[8:] / np.linalg.norm(ahead[8:], axis=1, keepdims=True)
    command = straight(model, states, goals)
    np.testing.assert_allclose(command[8:], expected, atol=1e-5)
    np.testing.assert_allclose(command[:8], model.omega(goals[:8]), atol=1e-5)


def test_a_waypoint_points_to_the_targets_state_and_the_policy_does_not_know_where_it_is():
    model, (states, goals) = made("waypoint"), inputs()
    ahead = (goals - states)[:, :2] / np.array([1.5, 2.0])
    command = straight(model, states, goals)
    np.testing.assert_allclose(command[8:], ahead[8:] / np.linalg.norm(ahead[8:], axis=1, keepdims=True), atol=1e-5)
    elsewhere = states + np.float32([100.0, -50.0, 0.0, 0.0, 0.0])
    assert np.array_equal(model.act(states, command), model.act(elsewhere, command))
    planner = make_planner("asym-graph", model, Atlas(goals), coreset="all")
    target = planner.plan(goals[:1]).target(model.embed(states[20:21]))
    assert (goals == target.observation[0]).all(1).any(), "the target stands for a state of the data"


def test_a_goal_reaches_the_policy_as_it_is_and_a_subgoal_through_its_network():
    states, goals = inputs()
    assert np.array_equal(straight(made("goal"), states, goals), goals)
    model = made("subgoal")
    answer = model.networks["high"](np.concatenate([states, goals], 1))
    expected = 2.0 * answer / np.linalg.norm(answer, axis=1, keepdims=True)
    np.testing.assert_allclose(straight(model, states, goals), expected, rtol=1e-4)


def test_actions_are_the_mean_or_samples_from_an_explicit_generator():
    model, (states, goals) = made("directed"), inputs()
    states, command = np.repeat(states[20:21], 4000, 0), np.repeat(straight(model, states, goals)[20:21], 4000, 0)
    mean = model.act(states[:1], command[:1])[0]
    sampled = model.act(states, command, np.random.default_rng(0))
    assert np.array_equal(sampled, model.act(states, command, np.random.default_rng(0)))
    deviation = np.exp(model.networks["policy"].log_std)
    inside = np.abs(mean) + 4 * deviation < 1.0
    if inside.any():
        np.testing.assert_allclose(sampled.std(0)[inside], deviation[inside], rtol=0.1)
    assert (np.abs(sampled) <= 1.0).all() and sampled.std() > 0
    squashed = made("goal-critic")
    assert (np.abs(squashed.act(states[:9], states[:9], np.random.default_rng(0))) < 1.0).all()
    with pytest.raises(ConfigError, match="to sample with"):
        made("goal").act(states[:2], states[:2], np.random.default_rng(0))


# ---------------------------------------------------------------- a machine without JAX


def test_acts_and_plans_without_jax(tmp_path):
    """Not imported, not even importable; nor is anything else that a robot does not have."""
    save_model(made("directed"), tmp_path)
    nodes = np.random.default_rng(2).standard_normal((50, 5)).astype(np.float32)
    save_arrays(tmp_path / "planner.safetensors", {"observations": nodes})
    seal(tmp_path, 1, {})
    absent = ["jax", "jaxlib", "equinox", "optax", "tyro", "gymnasium", "mujoco", "matplotlib", "h5py"]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent}))
import numpy as np
from iel import load_model
model = load_model({str(tmp_path)!r})
model.act(np.zeros((1, 5)), np.zeros((1, 8)))
assert not any(name.startswith("scipy") for name in sys.modules)
planner = model.planner("asym-graph")
planner.prepare(np.ones(5))
assert planner.act(np.zeros(5)).shape == (3,)
assert sys.modules["jax"] is None and not any(name.startswith("jax.") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_many_rows_are_the_rows_one_by_one(saved, monkeypatch):
    model = load_model(saved)
    states, _ = inputs()
    whole = model.embed(states)
    monkeypatch.setattr("iel.model.networks.BLOCK", 7)
    np.testing.assert_allclose(model.embed(states), whole, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_input_never_becomes_an_action(saved, bad):
    model = load_model(saved)
    states, commands = np.zeros((2, 5), np.float32), np.zeros((2, 8), np.float32)
    states[1, 2] = bad
    with pytest.raises(GeometryError, match="not finite in row 1"):
        model.act(states, commands)
    commands[0, 0] = bad
    with pytest.raises(GeometryError, match="commands"):
        model.act(np.zeros((2, 5)), commands)
    with pytest.raises(GeometryError, match="absurdly large"):
        model.embed(np.full((1, 5), 3e38))


@pytest.mark.parametrize("case", ["masked", "complex", "text", "ragged", "empty"])
def test_hidden_values_and_imaginary_parts_never_become_an_action(saved, case):
    """They were used, or dropped, without a word; text was a foreign exception."""
    model, good = load_model(saved), np.ones((2, 5))
    bad = {"masked": np.ma.masked_greater(good, 0.5), "complex": good + 1j, "text": good.astype(str).tolist(),
           "ragged": [[1.0] * 5, [1.0]], "empty": [[None] * 5] * 2}[case]  # fmt: skip
    if case == "text":
        bad[1][2] = "fast"
    planner = model.planner("direct")
    planner.prepare(good[0])
    for call in (lambda: model.act(bad, np.zeros((2, 8))), lambda: model.embed(bad), lambda: planner.prepare(bad[1]),
                lambda: planner.act(bad[1])):  # fmt: skip
        if case == "ragged" and call.__code__.co_names[0] == "planner":
            continue
        with pytest.raises(IELError) as caught:
            call()
        assert "\n" not in str(caught.value)
    commands = np.zeros((2, 8), complex)
    with pytest.raises(IELError, match="complex numbers"):
        model.act(good, commands)


def test_wrong_shapes_are_named(saved):
    model = load_model(saved)
    with pytest.raises(ConfigError, match=r"\(n, 5\)"):
        model.embed(np.zeros(5))
    with pytest.raises(ConfigError, match=r"\(2, 8\)"):
        model.act(np.zeros((2, 5)), np.zeros((2, 7)))
    with pytest.raises(RunError, match="--nodes"):
        model.planner("asym-graph")


def test_products_of_features_are_those_of_every_row() -> None:
    first, second = (made("waypoint", seed=seed).networks["embedding"] for seed in (0, 1))
    first, second = (replace(network, heads=network.heads * 2) for network in (first, second))
    states, goals = inputs()
    goals = goals[np.arange(64) % 7]  # few goals, many times
    slow = (first.features(states).astype(np.float64) * second.features(goals)).sum(-1)
    np.testing.assert_allclose(products(first, states, second, goals), slow, rtol=1e-5, atol=1e-5)
