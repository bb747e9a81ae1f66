"""GAS: its losses by hand, its subgoals, and the ring's distances, in steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algo_worlds import fresh, learner, ring
from measure_worlds import COUNT, EXACT, pairs, reaches_goal, wandering
from scipy.stats import spearmanr

from iel.data.goals import to_device
from iel.distances import Displacement
from iel.errors import ConfigError
from iel.learner import Spec
from iel.methods import GAS
from iel.methods.gas import Tables
from iel.methods.hilp import GoalBatch
from iel.nn import apply_heads, head, scalars, unit
from iel.planning import make_planner, planners_for
from iel.policies.directions import DirectionBatch
from iel.training import train

TINY = {"hidden": (8,), "batch_size": 6, "dimension": 4, "steps": 8}
SPEC = Spec(2, 2)


def drawn(*shapes: tuple[int, ...]) -> list[jax.Array]:
    return [jax.random.normal(key, shape) for key, shape in zip(jax.random.split(jax.random.key(5), 9), shapes)]  # noqa: B905


def double(x) -> np.ndarray:
    return np.asarray(x, np.float64)


def test_the_distance_loss_by_hand():
    """The weight is large where the target cost is smaller; with the signs swapped the number is another one."""
    algo = GAS.preset("smoke", **TINY, expectile=0.8, discount=0.9)
    embedding = fresh(algo, SPEC)["embedding"]
    target = jax.tree.map(lambda leaf: 1.2 * leaf, embedding)
    here, after, goal = drawn((6, 2), (6, 2), (6, 2))
    batch = GoalBatch(here, after, goal, jnp.array([0.0, 0, 1, 0, 0, 0]))
    loss, _ = jax.jit(learner(algo, "embedding").loss)(embedding, target, batch, jax.random.key(0))

    def value(network, x):
        return -np.linalg.norm(double(apply_heads(network, x)) - double(apply_heads(network, goal)), axis=-1)

    q = (1 - double(batch.success)) * (-1 + 0.9 * value(target, after))
    better = q.min(0) >= value(target, here).mean(0)
    error = np.square(q - value(embedding, here))
    assert float(loss) == pytest.approx((np.where(better, 0.8, 0.2) * error).mean(-1).sum(), rel=1e-4)
    assert abs(float(loss) - (np.where(better, 0.2, 0.8) * error).mean(-1).sum()) > 1e-2


def test_the_policys_losses_by_hand():
    """The critic on random directions; the actor towards the subgoal, climbing q and close to the data."""
    algo = GAS.preset("smoke", **TINY, policy_expectile=0.8, discount=0.9, bc_weight=0.5)
    own, params = learner(algo, "policy"), fresh(algo, SPEC)["policy"]
    target = jax.tree.map(lambda leaf: 1.2 * leaf, own.target_of(params))
    batch = DirectionBatch(*drawn((6, 2), (6, 2), (6, 2), (6, 4), (6, 4)))
    batch = batch._replace(action=jnp.tanh(batch.action))
    key = jax.random.key(7)
    loss, metrics = jax.jit(own.loss)(params, target, batch, key)
    z = unit(jax.random.normal(key, (6, 4)))
    value, after = (double(scalars(params.value, s, z)[0]) for s in (batch.state, batch.next_state))
    q, old = (double(scalars(c, batch.state, z, batch.action)) for c in (params.critic, target))
    gap = old.min(0) - value
    backup = (double(batch.displacement) * double(z)).sum(-1) + 0.9 * after
    assert float(metrics["policy/value"]) == pytest.approx((np.where(gap >= 0, 0.8, 0.2) * gap**2).mean(), rel=1e-4)
    assert float(metrics["policy/critic"]) == pytest.approx(np.square(q - backup).mean(-1).sum(), rel=1e-4)

    direction = double(batch.future) / np.linalg.norm(double(batch.future), axis=1, keepdims=True)
    condition = jnp.concatenate([batch.state, jnp.asarray(direction, jnp.float32)], -1)
    mean = params.policy(condition)
    climbed = double(scalars(params.critic, condition, jnp.clip(mean, -1, 1))).min(0)
    clone = -0.5 * np.square(double(batch.action - mean)).sum(-1) - np.log(2 * np.pi)
    expected = -climbed.mean() / np.abs(climbed).mean() - 0.5 * clone.mean()
    assert float(metrics["policy/actor"]) == pytest.approx(expected, rel=1e-4)
    assert float(loss) == pytest.approx(
        sum(float(metrics[f"policy/{x}"]) for x in ("value", "critic", "actor")), rel=1e-5
    )
    gradient = jax.grad(lambda critic: own.actor_loss(params.policy, critic, batch)[0])(params.critic)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient)), "the critic is only looked at"


def test_subgoals_lie_ahead_and_no_further_than_the_reach():
    algo = GAS.preset("smoke", **{**TINY, "batch_size": 500}, reach=2.0)
    data = to_device(ring())
    own, trained = learner(algo, "policy"), fresh(algo, SPEC)
    tables = jax.jit(lambda: own.tables(trained, data, SPEC))()
    points, furthest = np.asarray(tables.points), np.asarray(tables.furthest)
    assert np.allclose(points, head(trained["embedding"], 0)(data.observations), atol=1e-5)
    # A line instead of the network's space: the place of a row is its number, so the furthest is two rows ahead.
    line = jnp.arange(len(points), dtype=jnp.float32)[:, None] * jnp.ones((1, 4)) / 2.0
    furthest = jnp.minimum(jnp.arange(len(points)) + 2, data.final)
    batch = own.sample(jax.random.key(1), data, Tables(line, furthest))
    ahead = np.asarray(batch.future)[:, 0] * 2
    assert set(ahead.round(4)) <= {1.0, 2.0} and (ahead == 2.0).mean() > 0.5, "geometric in 0.99, cut at the furthest"
    assert np.allclose(batch.displacement, 0.5)


def test_its_model_has_all_planners_and_steps():
    algo = GAS.preset("smoke", **TINY)
    model = algo.model(fresh(algo, SPEC), SPEC)
    assert model.metric == Displacement(0.0, algo.discount)
    assert planners_for(model) == ("direct", "rec-mid", "greedy", "sym-graph", "asym-graph", "gas-graph")
    with pytest.raises(ConfigError, match="reach"):
        GAS(reach=0.0)
    with pytest.raises(ConfigError, match="bc_weight"):
        GAS(bc_weight=-1.0)
    assert [phase.steps for phase in GAS().phases()] == [1_000_000, 1_000_000]


@pytest.mark.long
def test_gas_learns_the_ring():
    """Distances in steps that rank as the exact ones; its own graph and policy go the short route."""
    data = wandering()
    settings = {"discount": 0.9, "reach": 2.0, "bc_weight": 0.02, "steps": 5000, "learning_rate": 2e-3}
    model = train(data, GAS.preset("smoke", **settings), progress=False).model
    predicted = model.steps(*pairs()).reshape(COUNT, COUNT)
    print("spearman", spearmanr(predicted.ravel(), EXACT.ravel())[0], np.round(predicted[0], 1))
    assert spearmanr(predicted.ravel(), EXACT.ravel())[0] >= 0.95
    assert np.abs(predicted - EXACT).mean() < 0.8

    def acting(planner):
        made = make_planner(planner, model, data, **({"reach": 2.0} if planner == "gas-graph" else {}))
        return lambda states, goals: model.act(
            states, model.command(states, made.plan(goals).target(model.embed(states)))
        )

    shares = {planner: reaches_goal(acting(planner)) for planner in ("direct", "gas-graph")}
    print("success", shares)
    assert shares["gas-graph"] >= 0.95 and shares["direct"] >= 0.7, (
        "over half the ring the straight direction is a guess"
    )
