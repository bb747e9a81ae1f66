"""Which columns networks see, in which units, and what is exported of them: `standardise`, `goal_columns`, policies."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

import iel
from iel.data import Trajectories
from iel.data.scaling import scaling_of
from iel.errors import ConfigError
from iel.learner import Spec
from iel.methods import METHODS
from iel.methods.goal_conditioned import GoalInputs, OwnPolicy
from iel.nn import MLP, GaussianPolicy, Lens, TanhGaussianPolicy, apply_heads, ensemble, frozen, frozen_policy
from iel.training.loop import Trainer

TINY = {"steps": 4, "hidden": (16,), "batch_size": 16}
GOALS = [name for name, method in METHODS.items() if issubclass(method, GoalInputs)]
OWN = [name for name, method in METHODS.items() if issubclass(method, OwnPolicy)]


@pytest.fixture(scope="module")
def robot() -> Trajectories:
    """A position of large numbers (0, 1), and two joints of small and of large ones."""
    rng = np.random.default_rng(0)
    episodes = []
    for length in (30, 25, 40):
        actions = rng.uniform(-1, 1, (length, 2))
        position = np.concatenate([np.zeros((1, 2)), actions.cumsum(0)]) * 3.0 + 50.0
        joints = rng.standard_normal((length + 1, 2)) * [0.01, 20.0]
        episodes.append((np.concatenate([position, joints], 1).astype(np.float32), actions.astype(np.float32)))
    return Trajectories.from_episodes(episodes, "robot")


@functools.cache
def trained(robot, name, **settings):
    """(trained networks by slot, model) of a tiny run of one seed; tests share the runs that have the same settings."""
    algo = METHODS[name].preset("smoke", **{**TINY, **settings})
    if algo.policy is not None and not algo.policy.steps:
        algo = dataclasses.replace(algo, policy=dataclasses.replace(algo.policy, steps=4))
    trainer = Trainer(robot, algo, [0], {})
    for phase in trainer.phases:
        trainer.stepper(phase)(phase.steps)
    return {slot: own.params for slot, own in trainer.state[0].items()}, trainer.models()[0]


def policy_of(own):
    """The network that acts, of whatever learner holds it."""
    state = own.get("policy", own.get("joint", own.get("train")))
    state = getattr(state, "policy_params", getattr(state, "params", state))
    network = getattr(state, "low", None) or getattr(state, "policy", state)
    return network, lambda x: jnp.tanh(network(x)) if isinstance(network, MLP) else network(x)


@pytest.mark.parametrize("kind", ["plain", "heads", "gaussian", "tanh"])
def test_a_frozen_network_takes_all_inputs_as_they_are(kind):
    import jax

    lens, key = Lens((0, 2, 3), (50.0, -1.0, 0.0), (10.0, 0.02, 1.0)), jax.random.key(0)
    x = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32) * [9, 1, 0.1, 1, 1] + [50, 0, -1, 0, 0]
    x = x.astype(np.float32)
    if kind in ("plain", "heads"):
        network = MLP(key, 5, (8,), 3, lens=lens) if kind == "plain" else ensemble(key, 2, 5, (8,), 3, lens=lens)
        seen = network(jnp.asarray(x)) if kind == "plain" else apply_heads(network, jnp.asarray(x)).mean(0)
        exported = frozen(network, "observation").mean(x)
    else:
        network = (GaussianPolicy if kind == "gaussian" else TanhGaussianPolicy)(key, 5, (8,), 2, lens=lens)
        exported, seen = frozen_policy(network, "observation")(x), network(jnp.asarray(x))
        exported = np.tanh(exported[:, :2]) if kind == "tanh" else exported
    assert frozen(network.mean if kind == "gaussian" else getattr(network, "network", network), "x").sizes[0] == 5
    np.testing.assert_allclose(exported, seen, atol=2e-4)
    x[:, [1, 4]] += 100.0  # what it does not see
    changed = frozen(network, "observation").mean(x) if kind in ("plain", "heads") else None
    assert changed is None or np.array_equal(changed, exported)


def test_a_lens_selects_goals_and_standardises_for_policies_alone():
    scaling = scaling_of(Trajectories.from_episodes([(np.eye(4, 3) * 9 + 1, np.zeros((3, 2)))], "x"))
    spec = Spec(3, 2, policy_columns=scaling, goal=(1,))
    assert Spec(3, 2).lens("observation", "goal") is None and Spec(3, 2).lens("goal", policy=True) is None
    assert spec.lens("observation", "goal", 2) == Lens((0, 1, 2, 4, 6, 7), (0.0,) * 6, (1.0,) * 6)
    own = spec.lens("observation", "goal", 2, policy=True)
    assert own.columns == (0, 1, 2, 4, 6, 7) and own.mean[3] == scaling.mean[1] and own.mean[4:] == (0.0, 0.0)
    np.testing.assert_allclose(own.deviation, [*scaling.std, scaling.std[1], 1.0, 1.0])
    blind = Spec(3, 2, (0,), policy_columns=scaling).lens("without_position", 1, policy=True)
    assert blind.columns == (0, 1, 2) and blind.mean == (*scaling.mean[1:], 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_with_a_standardised_policy_the_export_acts_as_what_was_trained(robot, name):
    own, model = trained(robot, name, standardise="policy", **({"goal_columns": (0, 1)} if name in GOALS else {}))
    network, act = policy_of(own)
    states, command = robot.observations[:20], robot.observations[-20:]
    if model.conditioning.kind != "goal":
        command = np.random.default_rng(0).standard_normal((20, model.command_size)).astype(np.float32)
    hidden = model.conditioning.columns if model.conditioning.kind == "waypoint" else ()
    seen = np.delete(states, hidden, 1)
    expected = np.clip(act(jnp.concatenate([seen, command], -1)), -1, 1)
    np.testing.assert_allclose(model.act(states, command), expected, atol=1e-4)
    lens = getattr(network, "mean", getattr(network, "network", network)).lens
    first = next(column for column in range(4) if column not in hidden)
    assert lens is not None and lens.deviation[0] == pytest.approx(scaling_of(robot).std[first])


APART = ("iel", "gas", "qrl", "cmd", "tmd", "crl", "gcivl", "gciql", "hiql")
"""Methods whose geometry does not depend on their policy."""


@pytest.mark.slow
@pytest.mark.parametrize("name", APART)
def test_a_standardised_policy_leaves_the_geometry_as_it_is(robot, name):
    settings = {"training": "phased"} if name == "hilp" else {}
    changes: tuple[dict, ...] = ({}, {"standardise": "policy"}, {"standardise": "all"})
    plain, other, whole = (trained(robot, name, **settings, **change)[1] for change in changes)
    states, goals = robot.observations[:20], robot.observations[-20:]
    if name == "crl":  # its critic is evaluated at the policy's action
        phi, features = (m.networks["goal_features"](goals) for m in (plain, other))
    else:
        phi, features = (m.cost(states, goals, goals) for m in (plain, other))
        assert not np.allclose(phi, whole.cost(states, goals, goals), rtol=1e-3)
    np.testing.assert_allclose(phi, features, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", GOALS)
def test_goal_columns_are_all_that_is_seen_of_a_goal(robot, name):
    _, model = trained(robot, name, goal_columns="position")
    states, goals = robot.observations[:20], robot.observations[-20:].copy()
    other = goals.copy()
    other[:, 2:] = 7.0

    def answers(goals):
        plan = iel.planning.make_planner("direct", model, robot).plan(goals)
        embedded = model.embed(states)
        return model.act(states, model.command(states, plan.target(embedded), embedded))

    acted = answers(goals)
    np.testing.assert_array_equal(acted, answers(other))
    goals[:, 0] += 30.0
    assert not np.array_equal(acted, answers(goals))  # how much it heeds goals is a matter of training
    if model.metric is not None and name not in ("qrl", "cmd", "tmd", "fb", "psm", "crl", "clearning", "gccql"):
        # (Distances of embeddings compare states, and critics are evaluated at a state whose own pose counts.)
        np.testing.assert_allclose(model.cost(states, goals, goals), model.cost(states, goals * [1, 1, 0, 0], goals))


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_every_own_policy_takes_the_same_settings(robot, name):
    """LayerNorm is exported, its step size moves it alone, and half a cosine ends at 0."""
    settings = {"training": "phased"} if name == "hilp" else {}
    _, plain = trained(robot, name, **settings)
    own, model = trained(robot, name, policy_norm=True, policy_decay=True, policy_learning_rate=1e-2, **settings)
    assert model.networks["policy"].has_norm and not plain.networks["policy"].has_norm
    act = policy_of(own)[1]
    command = np.ones((5, model.command_size), np.float32)
    expected = np.clip(act(jnp.concatenate([robot.observations[:5], command], -1)), -1, 1)
    np.testing.assert_allclose(model.act(robot.observations[:5], command), expected, atol=1e-4)
    if name in APART and name != "crl":
        states, goals = robot.observations[:20], robot.observations[-20:]
        np.testing.assert_allclose(model.cost(states, goals, goals), plain.cost(states, goals, goals), rtol=1e-4)


def test_the_even_presets_give_every_own_policy_the_same():
    for name, method in METHODS.items():
        even = method.preset("laptop-robot-even")
        assert even.standardise == "policy", name
        if name in OWN:
            assert even.policy_norm and even.policy_decay, name
        if hasattr(even, "target_rate") and even.target_rate:
            assert even.target_rate == 0.02, name
        for temperature in ("awr_temperature", "high_temperature", "low_temperature"):
            assert getattr(even, temperature, 1.0) == 1.0 or name in ("gciql", "qrl"), name  # these climb their critics


def test_a_policy_whose_step_size_has_fallen_to_nothing_stands_still(robot):
    algo = METHODS["gcivl"].preset("smoke", **{**TINY, "policy_decay": True})
    trainer = Trainer(robot, algo, [0], {})
    advance = trainer.stepper(trainer.phases[0])
    advance(4)
    before = trainer.states()[0]["train"].params
    advance(3)
    after = trainer.states()[0]["train"].params
    assert np.array_equal(before.policy.mean.layers[0].kernel, after.policy.mean.layers[0].kernel)
    assert not np.array_equal(before.value.layers[0].kernel, after.value.layers[0].kernel)


def test_goals_of_the_actor_may_be_near(robot):
    import jax

    from iel.data.goals import to_device
    from iel.methods.goal_conditioned import actor_goals

    data, rows = to_device(robot), jnp.arange(20)
    for furthest, most in ((0, 30), (5, 5)):
        sampler = actor_goals(1.0, furthest)
        ahead = np.stack([sampler.goals(jax.random.key(k), data, rows) - rows for k in range(300)])
        assert ahead.min() == 1 and ahead.max() >= min(most, 20) and ahead.max() <= most


def test_impossible_columns(robot):
    with pytest.raises(ConfigError, match="columns from 0 to 3"):
        METHODS["gcivl"].preset("smoke", goal_columns=(9,)).spec(robot)
    with pytest.raises(ConfigError, match="columns from 0 to 3"):
        METHODS["gcivl"].preset("smoke", goal_columns=()).spec(robot)
    with pytest.raises(ConfigError, match="standardise"):
        METHODS["gcivl"].preset("smoke", standardise="some")
