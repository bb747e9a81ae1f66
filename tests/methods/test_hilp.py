"""HILP is IEL with beta = 0 and no hitting-time regression: in values, gradients, updates and planners."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algo_worlds import POSITIONS, act, action, cosine, fresh, learner, ring, started, steps

from iel.data.goals import to_device
from iel.distances import Displacement
from iel.errors import ConfigError, GeometryError
from iel.learner import Spec, TrainState
from iel.methods import HILP, IEL
from iel.methods.hilp import Joint
from iel.nn import head
from iel.planning import PLANNERS, make_planner
from iel.policies import Directions, Waypoints
from iel.policies.directions import DirectionBatch
from iel.training import train

SAME = {"hidden": (16,), "batch_size": 32, "dimension": 4}
PLAIN = IEL.preset("smoke", **SAME, beta=0.0, kappa=0.0)
PHASED, JOINT = HILP.preset("smoke", **SAME, training="phased"), HILP.preset("smoke", **SAME)
SPEC = Spec(2, 2)


@functools.cache
def _compiled(algo, phase: str):
    """Compiled as a whole, once for all tests: that is what takes the time."""
    data, own = to_device(ring()), learner(algo, phase)
    sample = lambda trained, key: own.sample(key, data, own.tables(trained, data, SPEC))  # noqa: E731
    return jax.jit(sample), jax.jit(own.update)


def params(states):
    return {slot: state.params for slot, state in states.items()}


def sample(algo, phase: str, states):
    return _compiled(algo, phase)[0](params(states), jax.random.key(1))


def update(algo, phase: str, states, batch):
    return _compiled(algo, phase)[1](states[phase], batch, jax.random.key(2))


@pytest.fixture(scope="module")
def world():
    """The same key gives both methods the same networks; targets are moved away from them to make the test harder."""
    theirs, ours = started(PLAIN, SPEC), started(PHASED, SPEC)
    moved = jax.tree.map(lambda leaf: 1.2 * leaf, theirs["embedding"].target)
    return tuple({**own, "embedding": own["embedding"]._replace(target=moved)} for own in (theirs, ours))


def assert_same(one, other, **tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), one, other)


def test_the_same_key_gives_the_same_networks_and_batches(world):
    theirs, ours = world
    for slot in ("embedding", "policy"):
        assert_same(theirs[slot].params, ours[slot].params, rtol=0)
        their_batch, our_batch = sample(PLAIN, slot, theirs), sample(PHASED, slot, ours)
        for name in ("state", "next_state", "goal", "success", "action", "displacement"):
            if name in their_batch._fields and name in our_batch._fields:
                assert np.array_equal(getattr(their_batch, name), getattr(our_batch, name)), name
    assert_same(fresh(JOINT, SPEC)["joint"], Joint(ours["embedding"].params, ours["policy"].params), rtol=0)


def test_values_losses_and_gradients_are_those_of_iel_without_direction(world):
    theirs, ours = world
    batch = sample(PLAIN, "embedding", theirs)
    batch = batch._replace(success=batch.success.at[0].set(1.0))

    def both(algo, states):
        own, key = states["embedding"], jax.random.key(3)
        loss = lambda embedding: learner(algo, "embedding").loss(embedding, own.target, batch, key)  # noqa: E731
        return jax.jit(jax.value_and_grad(loss, has_aux=True))(own.params)

    (their_loss, their_metrics), their_gradient = both(PLAIN, theirs)
    (our_loss, our_metrics), our_gradient = both(PHASED, ours)
    np.testing.assert_allclose(our_loss, their_loss, rtol=1e-6)
    np.testing.assert_allclose(our_metrics["embedding/distance"], their_metrics["embedding/distance"], rtol=1e-6)
    assert_same(their_gradient, our_gradient, rtol=1e-4, atol=1e-6)
    for name, setting in (
        ("beta", IEL.preset("smoke", **SAME, beta=0.1, kappa=0.0)),
        ("kappa", IEL.preset("smoke", **SAME, beta=0.0, kappa=0.05)),
    ):
        assert abs(float(both(setting, theirs)[0][0]) - float(our_loss)) > 1e-3, name  # the claim is not empty


def test_a_step_of_the_embedding_is_a_step_of_iel(world):
    """The step of the policy is the same code on the same batch, which the first test compares."""
    theirs, _ = update(PLAIN, "embedding", world[0], sample(PLAIN, "embedding", world[0]))
    ours, _ = update(PHASED, "embedding", world[1], sample(PHASED, "embedding", world[1]))
    # Adam's first step is the sign of the gradient, so a gradient that is zero up to rounding moves by chance.
    x = jnp.asarray(POSITIONS, jnp.float32)
    ours_phi, theirs_phi = (head(state.params, 0)(x) for state in (ours, theirs))
    np.testing.assert_allclose(ours_phi - ours_phi[:1], theirs_phi - theirs_phi[:1], atol=2e-3)
    assert_same(theirs.target, ours.target, rtol=1e-5, atol=1e-7)


def test_planners_choose_the_same_paths(world):
    theirs, ours = world
    hilp, plain = PHASED.model(params(ours), SPEC), PLAIN.model(params(theirs), SPEC)
    data, states = ring(), POSITIONS.astype(np.float32)
    goals = np.roll(states, 5, axis=0)
    assert np.array_equal(hilp.steps(states, goals), plain.steps(states, goals))
    for name in PLANNERS:
        one, other = (make_planner(name, model, data).plan(goals) for model in (hilp, plain))
        ours, theirs = (p.target(m.embed(states)) for p, m in ((one, hilp), (other, plain)))
        assert np.array_equal(hilp.command(states, ours), plain.command(states, theirs)), name
        assert np.array_equal(one.costs(hilp.embed(states)), other.costs(plain.embed(states))), name


def test_hilp_has_a_geometry_but_no_directions_of_its_own(world, tmp_path):
    model = PHASED.model(params(world[1]), SPEC)
    assert model.metric == Displacement(0.0, PHASED.discount) and model.metric.for_every_goal
    with pytest.raises(GeometryError, match="no goal directions"):
        model.displacement(POSITIONS[:2], POSITIONS[2:4])
    assert np.array_equal(model.steps(POSITIONS[:6], POSITIONS[6:12]), model.steps(POSITIONS[6:12], POSITIONS[:6]))


def test_a_joint_step_rewards_the_policy_with_the_embedding_before_it(world):
    _, states = world
    both = Joint(states["embedding"].params, states["policy"].params)
    joint = TrainState(both, (states["embedding"].target, states["policy"].target), JOINT.optimiser.init(both))
    batch = sample(JOINT, "joint", {"joint": joint})
    after, metrics = update(JOINT, "joint", {"joint": joint}, batch)
    phi, goals = head(both.embedding, 0), batch.goals
    moves = DirectionBatch(goals.state, batch.action, goals.next_state, phi(goals.next_state) - phi(goals.state))
    alone, _ = update(PHASED, "policy", states, moves)
    assert_same(after.params.policy_params, alone.params, rtol=1e-4, atol=1e-6)
    embedded, _ = update(PHASED, "embedding", states, goals)
    assert_same(after.params.embedding, embedded.params, rtol=1e-5)
    assert_same(after.target, (embedded.target, alone.target), rtol=1e-5)
    assert float(metrics["joint/loss"]) == pytest.approx(float(metrics["embedding/loss"] + metrics["policy/loss"]))


@pytest.mark.slow
def test_hilp_learns_the_ring():
    """Nearly the length of the short route where two lead to the goal, and the policy parts for either at position 0.

    A lower discount than usual: with 0.99 nearly all later goals would be the last states of these short episodes.
    """
    settings = {"hidden": (64, 64), "batch_size": 32, "learning_rate": 3e-3, "discount": 0.9}
    model = train(ring(), HILP.preset("smoke", **settings, steps=1500), progress=False).model
    assert steps(model, 0, 4) == pytest.approx(4.2, abs=0.6)
    assert steps(model, 0, 2) == pytest.approx(2, abs=0.4)
    assert steps(model, 3, 4) == pytest.approx(1, abs=0.4)
    assert cosine(act(model, 0, 2), action(0, 1)) > 0.8
    assert cosine(act(model, 0, 9), action(0, 11)) > 0.8


def test_settings():
    assert [phase.name for phase in HILP().phases()] == ["joint"]
    assert [phase.steps for phase in HILP.preset("laptop-phased").phases()] == [21_000, 21_000]
    assert HILP.preset("laptop").steps == 21_000
    assert [phase.name for phase in HILP(policy=Waypoints()).phases()] == ["policy", "embedding"]
    assert [phase.name for phase in HILP(policy=Directions(decay=True)).phases()] == ["embedding", "policy"]
    with pytest.raises(ConfigError, match="no policy of its own"):
        HILP(policy=None)
