"""FB and PSM: losses against float64 numpy with a wrong sign each, exact measures, prompts, and a ring to learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algo_worlds import fresh, learner
from measure_worlds import COUNT, EXACT, RING, pairs, reaches_goal, step, wandering
from scipy.stats import spearmanr

from iel.distances import LatentGoal
from iel.errors import ConfigError, GeometryError
from iel.learner import Spec
from iel.losses import measure_loss, orthonormality_loss, pessimistic
from iel.methods import FB, PSM, check_algo
from iel.methods.measures import Tasks, Transitions
from iel.methods.psm import Batch, code_actions, code_bits
from iel.model import Measure, Model, Network, Perceptron, Subgoal
from iel.nn import apply_heads, on_sphere
from iel.planning import Atlas, make_planner, planners_for
from iel.policies import Waypoints
from iel.training import train

TINY = {"hidden": (8,), "batch_size": 6, "dimension": 4, "steps": 8}
SPEC = Spec(2, 1)


@pytest.fixture(scope="module")
def batch() -> Transitions:
    keys = jax.random.split(jax.random.key(5), 4)
    state, after, later = (jax.random.normal(key, (6, 2)) for key in keys[:3])
    return Transitions(state, jnp.tanh(jax.random.normal(keys[3], (6, 1))), after, later)


def moved(tree):
    """A target copy that cannot be taken for the networks."""
    return jax.tree.map(lambda leaf: 1.2 * leaf, tree)


def double(x) -> np.ndarray:
    return np.asarray(x, np.float64)


# ---------------------------------------------------------------- the losses by hand


def test_the_measure_loss_by_hand():
    """Two rows: the squares of what is off the diagonal, less what is on it; its minimum is the visit of a step."""
    measures = jnp.array([[[3.0, 2.0], [1.0, 5.0]], [[0.0, 4.0], [2.0, 1.0]]])
    target = jnp.array([[9.0, 2.0], [4.0, 9.0]])
    # off the diagonal, gamma = 0.5: (2 - 1)^2, (1 - 2)^2 and (4 - 1)^2, (2 - 2)^2; on it the means 4 and 0.5
    expected = 0.5 * (1 + 1) / 2 - 4 + 0.5 * (9 + 0) / 2 - 0.5
    assert float(measure_loss(measures, target, 0.5)) == pytest.approx(expected)
    downhill = -jax.grad(lambda m: measure_loss(m, target, 0.5))(measures)
    assert (jnp.diagonal(downhill, axis1=1, axis2=2) > 0).all(), "where one goes next, the measure rises"
    assert downhill[0, 0, 1] < 0 and downhill[0, 1, 0] > 0, "elsewhere it goes to gamma times the target"


def test_the_orthonormality_loss_by_hand():
    features = jnp.array([[1.0, 2.0], [3.0, -1.0], [0.0, 2.0]])
    gram = double(features) @ double(features).T
    expected = np.mean([gram[i, j] ** 2 for i in range(3) for j in range(3) if i != j]) - 2 * np.trace(gram) / 3
    assert float(orthonormality_loss(features)) == pytest.approx(expected)
    whitened = jnp.sqrt(2.0) * jnp.array([[1.0, 0.0], [0.0, 1.0]] * 500)
    losses = [float(orthonormality_loss(scale * whitened)) for scale in (0.9, 1.0, 1.1)]
    assert losses[1] == min(losses), "least where E[B B^T] is the identity"


def test_pessimism_of_a_half_is_the_minimum():
    values = jnp.array([[1.0, 5.0], [3.0, -2.0]])
    assert np.allclose(pessimistic(values, 0.5), values.min(0)) and np.allclose(
        pessimistic(values, 0.0), values.mean(0)
    )


def heads(network, *parts) -> np.ndarray:
    return double(apply_heads(network, jnp.concatenate(parts, -1)))


def by_hand(measures: np.ndarray, target: np.ndarray, discount: float) -> float:
    """The equation of the docs, row by row and column by column."""
    total, count = 0.0, len(target)
    for head in measures:
        for i in range(count):
            total -= head[i, i] / count
            for j in range(count):
                total += 0.0 if i == j else 0.5 * (head[i, j] - discount * target[i, j]) ** 2 / (count * (count - 1))
    return total


def apart_by_hand(points: np.ndarray) -> float:
    gram, count = points @ points.T, len(points)
    off = sum(gram[i, j] ** 2 for i in range(count) for j in range(count) if i != j) / (count * (count - 1))
    return off - 2 * np.trace(gram) / count


def test_the_loss_of_fb_by_hand(batch):
    """Wrong signs of the diagonal, the discount or the orthonormality would all show."""
    algo = FB.preset("smoke", **TINY, orthonormality=0.7, noise=1e-6)
    networks = fresh(algo, SPEC)["train"]
    target = moved(algo.target_of(networks))
    z = on_sphere(jax.random.normal(jax.random.key(3), (6, 4)))
    loss, metrics = jax.jit(algo.measure_loss)(networks, target, z, batch, jax.random.key(4))
    action = jnp.tanh(networks.policy(jnp.concatenate([batch.next_state, z], -1)))
    points = double(on_sphere(networks.backward(batch.next_state)))
    old = heads(target.forward, batch.next_state, action, z) @ double(on_sphere(target.backward(batch.next_state))).T
    measures = heads(networks.forward, batch.state, batch.action, z) @ points.T
    expected = by_hand(measures, old.min(0), algo.discount) + 0.7 * apart_by_hand(points)
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    assert float(metrics["train/visits"]) == pytest.approx(np.diagonal(measures, axis1=1, axis2=2).mean(), rel=1e-4)
    wrong = expected + 2 * np.diagonal(measures, axis1=1, axis2=2).mean(1).sum()
    assert abs(float(loss) - wrong) > 0.1, "the visit with the wrong sign is another number"


def test_the_policy_climbs_the_value_of_its_task_and_clones_only_its_own_future(batch):
    settings = FB.preset("smoke", **TINY, noise=1e-6, bc_weight=2.0, future_share=0.3)
    networks = fresh(settings, SPEC)["train"]
    z, own = on_sphere(jax.random.normal(jax.random.key(3), (6, 4))), jnp.array([1.0, 0, 0, 1, 0, 0])
    loss, _ = settings.actor_loss(jax.random.key(1), networks.policy, networks.forward, Tasks(z, own), batch)
    action = jnp.tanh(networks.policy(jnp.concatenate([batch.state, z], -1)))
    q = (heads(networks.forward, batch.state, action, z) * double(z)).sum(-1).min(0)
    error = np.square(double(action - batch.action)).sum(-1)
    expected = -q.mean() / np.abs(q).mean() + 2.0 * 0.5 * (double(own) * error).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    gradient = jax.grad(lambda f: settings.actor_loss(jax.random.key(1), networks.policy, f, Tasks(z, own), batch)[0])
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient(networks.forward))), "F is only looked at"


def test_the_losses_of_psm_by_hand(batch):
    algo = PSM.preset("smoke", **TINY, orthonormality=0.3, noise=1e-6)
    trained = fresh(algo, SPEC)
    proto, params = trained["basis"], trained["train"]
    target, code = moved(proto), jnp.array([0, 1, 77, 65535, 9, 1])
    loss, _ = jax.jit(learner(algo, "basis").coded_loss)(proto, target, code, batch)
    action, bits = code_actions(code, batch.next_state, 1), code_bits(code)
    points = double(on_sphere(proto.basis(batch.next_state)))
    old = heads(target.forward, batch.next_state, action, bits) @ double(on_sphere(target.basis(batch.next_state))).T
    measures = heads(proto.forward, batch.state, batch.action, bits) @ points.T
    expected = by_hand(measures, old.mean(0), algo.discount) + 0.3 * apart_by_hand(points)
    assert float(loss) == pytest.approx(expected, rel=1e-4)

    forward_target = moved(params.forward)
    whole = Batch(batch, jnp.asarray(points, jnp.float32))
    loss, metrics = jax.jit(learner(algo, "train").loss)(params, forward_target, whole, jax.random.key(4))
    z = algo.draw_tasks(jax.random.split(jax.random.key(4), 3)[0], whole.points, None).z
    action = jnp.tanh(params.policy(jnp.concatenate([batch.next_state, z], -1)))
    old = heads(forward_target, batch.next_state, action, z) @ points.T
    measures = heads(params.forward, batch.state, batch.action, z) @ points.T
    assert float(metrics["train/measure"]) == pytest.approx(by_hand(measures, old.mean(0), algo.discount), rel=1e-4)
    assert float(loss) == pytest.approx(float(metrics["train/measure"] + metrics["train/actor"]), rel=1e-5)


# ---------------------------------------------------------------- tasks and codes


def test_tasks_are_on_the_sphere_and_are_what_their_shares_say():
    states, future = (on_sphere(jax.random.normal(jax.random.key(k), (4000, 3))) for k in (0, 1))
    algo = FB.preset("smoke", state_share=0.5, future_share=0.25)
    tasks = algo.draw_tasks(jax.random.key(2), states, future)
    assert np.allclose(np.linalg.norm(tasks.z, axis=1), np.sqrt(3), atol=1e-4)
    own = np.asarray(tasks.own) == 1.0
    assert own.mean() == pytest.approx(0.25, abs=0.03) and np.array_equal(tasks.z[own], future[own])
    known = {row.tobytes() for row in np.asarray(states)}
    from_data = np.array([row.tobytes() in known for row in np.asarray(tasks.z)])
    assert from_data[~own].mean() == pytest.approx(0.5, abs=0.03)
    assert not np.asarray(algo.draw_tasks(jax.random.key(2), states, None).own).any()


def test_a_code_is_one_policy_and_codes_together_are_all_actions():
    states = jax.random.normal(jax.random.key(0), (3000, 3))
    codes = jnp.arange(3000)
    drawn = np.asarray(code_actions(codes, states, 2))
    assert np.array_equal(drawn, code_actions(codes, states, 2)) and drawn.min() >= -1 and drawn.max() < 1
    for actions in (drawn, code_actions(codes, jnp.tile(states[:1], (3000, 1)), 2), code_actions(codes * 0, states, 2)):
        assert np.abs(np.asarray(actions).mean(0)).max() < 0.06
        assert np.abs(np.asarray(actions).var(0) - 1 / 3).max() < 0.03
        assert abs(np.corrcoef(np.asarray(actions).T)[0, 1]) < 0.06
    assert np.asarray(code_bits(jnp.array([5])))[0, :4].tolist() == [1, 0, 1, 0]


# ---------------------------------------------------------------- what is exported: exact measures, prompts, files


def linear(matrix: np.ndarray, *inputs: str, width: int | None = None, squash: bool = False) -> Network:
    """x -> x W of the first inputs; whatever follows them is ignored."""
    kernel = np.zeros((width or len(matrix), matrix.shape[1]), np.float32)
    kernel[: len(matrix)] = matrix
    return Network(inputs, (Perceptron((kernel,), (np.zeros(matrix.shape[1], np.float32),)),), squash)


def exact_model(transitions: np.ndarray, gamma: float) -> Model:
    """Positions are one-hot, the data visits all alike, and F is the exact measure of one policy for every task."""
    count = len(transitions)
    measure = transitions @ np.linalg.inv(np.eye(count) - gamma * transitions)  # visits from the next step on
    root = np.sqrt(count)
    networks = {
        "policy": linear(np.zeros((2 * count, 1)), "observation", "command"),
        "high": linear(root * np.eye(count), "goal"),  # E[B B^T] = 1, ||B||^2 = d
        # measure / density = F^T B: one in `count` states is each position
        "forward": linear(root * measure, "observation", "action", "command", width=2 * count + 1),
    }
    return Model("exact", count, 1, networks, Subgoal(), metric=Measure(gamma))


def first_visits(transitions: np.ndarray, gamma: float, goal: int) -> np.ndarray:
    """E[gamma^H] for the first visit of `goal`, by value iteration: 1 there, else gamma times that of the next."""
    worth = np.zeros(len(transitions))
    for _ in range(3000):
        worth = np.where(np.arange(len(worth)) == goal, 1.0, gamma * transitions @ worth)
    return worth


def test_the_cost_of_an_exact_measure_is_the_discounted_first_visit():
    """On any chain: p(s, t) = E[gamma^H]; where the goal is always reached after H steps, the cost is H."""
    gamma, rng = 0.9, np.random.default_rng(0)
    random = rng.dirichlet(np.ones(5), size=5)
    model = exact_model(random, gamma)
    positions = np.eye(5, dtype=np.float32)
    for goal in range(5):
        others = [s for s in range(5) if s != goal]
        expected = np.log(first_visits(random, gamma, goal))[others] / np.log(gamma)
        cost = model.cost(positions[others], positions[[goal] * 4], positions[[goal] * 4])
        np.testing.assert_allclose(cost, expected, rtol=2e-3)
    round_trip = exact_model(np.roll(np.eye(6), 1, axis=1), gamma)  # 0 -> 1 -> ... -> 5 -> 0
    positions = np.eye(6, dtype=np.float32)
    table = round_trip.metric.costs(positions, positions, LatentGoal(positions[0], positions[0]))
    steps = (np.arange(6)[None] - np.arange(6)[:, None]) % 6
    np.testing.assert_allclose(table[steps > 0], steps[steps > 0], rtol=2e-3)
    assert table[0, 1] < table[1, 0], "a measure is directed; with the wrong sign the two would be swapped"
    rows = round_trip.metric.row_costs(positions, np.roll(positions, 2, axis=0), [])
    np.testing.assert_allclose(rows, [table[i, (i - 2) % 6] for i in range(6)], rtol=1e-5)
    with pytest.raises(GeometryError, match="not in steps"):
        round_trip.steps(positions, positions)


def test_negative_measures_cost_more_the_more_negative_they_are():
    model = exact_model(np.roll(np.eye(4), 1, axis=1), 0.9)
    kernel = model.networks["forward"].heads[0].kernels[0]
    kernel[:4, 0] = [-1e3, -10.0, -0.1, 0.0]
    positions = np.eye(4, dtype=np.float32)
    cost = model.metric.costs(positions, positions[:1], LatentGoal(positions[0], positions[0]))[:, 0]
    assert np.isfinite(cost).all() and (np.diff(cost) < 0).all()


def test_a_goal_is_its_own_reward_and_rewards_add_up():
    """E[r B] of one rewarded position is its task; of two, the middle of theirs; of a penalised one, the opposite."""
    model = exact_model(np.roll(np.eye(6), 1, axis=1), 0.9)
    positions = np.eye(6, dtype=np.float32)
    data = np.tile(positions, (50, 1))
    condition = model.command(
        positions[:1], make_planner("direct", model, Atlas(positions)).plan(positions[3:4]).target(positions[:1])
    )
    np.testing.assert_allclose(model.reward_command(data, data[:, 3]), condition[0], atol=1e-4)
    np.testing.assert_allclose(model.reward_command(data, -data[:, 3]), -condition[0], atol=1e-4)
    two = model.reward_command(data, 2.0 * data[:, 3] + data[:, 1])
    np.testing.assert_allclose(two, np.sqrt(6) * np.array([0, 1, 0, 2, 0, 0]) / np.sqrt(5), atol=1e-4)
    with pytest.raises(ConfigError, match="one per state"):
        model.reward_command(data, data[:3, 0])
    with pytest.raises(GeometryError, match="worth nothing"):
        model.reward_command(data, 0.0 * data[:, 0])
    waypoint, spec = FB.preset("smoke", **TINY, policy=Waypoints()), Spec(2, 1, (0, 1))
    with pytest.raises(GeometryError, match="takes no task vectors"):
        waypoint.model(fresh(waypoint, spec), spec).reward_command(RING, RING[:, 0])


@pytest.mark.parametrize("method", [FB, PSM])
def test_the_packaged_model_says_what_was_trained(method):
    """Command, action and cost in numpy against the networks in JAX."""
    algo = method.preset("smoke", **TINY)
    trained = jax.tree.map(lambda leaf: leaf + 0.1, fresh(algo, SPEC))
    model, own = algo.model(trained, SPEC), trained["train"]
    forward, policy = own.forward, own.policy
    backward = own.backward if method is FB else trained["basis"].basis
    states, goals = pairs()
    target = make_planner("direct", model, Atlas(RING)).plan(goals).target(model.embed(states))
    z = on_sphere(backward(goals))
    np.testing.assert_allclose(model.command(states, target), z, atol=1e-5)
    action = jnp.tanh(policy(jnp.concatenate([states, z], -1)))
    np.testing.assert_allclose(model.act(states, z), action, atol=1e-5)
    own = jnp.tanh(policy(jnp.concatenate([goals, z], -1)))
    measure, most = ((heads(forward, s, a, z) * double(z)).sum(-1).mean(0) for s, a in ((states, action), (goals, own)))
    likely = algo.discount * measure / (4 + algo.discount * np.maximum(most, 0))
    expected = np.log(0.01 * np.log1p(np.exp(likely / 0.01))) / np.log(algo.discount)
    np.testing.assert_allclose(model.cost(states, goals, goals), np.maximum(expected, 1e-3), rtol=1e-3, atol=1e-3)
    deviation = model.act(states[:1].repeat(2000, 0), z[:1].repeat(2000, 0), np.random.default_rng(0)).std()
    noise = 0.2 * np.random.default_rng(1).standard_normal(20_000)
    trained = np.clip(float(action[0, 0]) + noise, -1, 1).std()
    assert deviation == pytest.approx(trained, rel=0.1), "noise is added after the tanh, as in training"
    assert planners_for(model) == ("direct", "sym-graph", "asym-graph")


@pytest.mark.parametrize("method", [FB, PSM])
def test_both_keep_the_contract_with_a_waypoint_policy(method):
    """And when they clone their own future; the contract as published is checked with all methods' (test_iel.py)."""
    settings = {"policy": Waypoints(columns=(0, 1)), "future_share": 0.5, "bc_weight": 0.1}
    check_algo(method.preset("smoke", **{**TINY, "batch_size": 8}, **settings))


@pytest.mark.parametrize(("mu", "deviation"), [(0.0, 0.177), (1.0, 0.168), (2.0, 0.114), (3.0, 0.102), (4.0, 0.101)])
def test_a_policy_that_saturates_keeps_its_noise_and_its_gradient(mu, deviation):
    """The figures of the authors' truncated normal; inside of the tanh 0.0003 would be left of the last."""
    algo, mean = FB.preset("smoke"), jnp.full((200_000, 1), mu)
    action = algo.noisy(jax.random.key(0), mean)
    assert float(action.std()) == pytest.approx(deviation, abs=0.001)
    assert float(jnp.abs(action).max()) < 1.0 and float(jnp.abs(action - jnp.tanh(mu)).max()) <= 0.3 + 1e-6
    gradient = jax.grad(lambda m: algo.noisy(jax.random.key(0), m).sum())(mean)
    np.testing.assert_allclose(gradient, 1 - np.tanh(mu) ** 2, rtol=1e-3)  # as if it were not clamped


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("method", [FB, PSM])
def test_settings(method):
    with pytest.raises(ConfigError, match="future_share"):
        method(bc_weight=0.1)
    with pytest.raises(ConfigError, match="state_share"):
        method(state_share=1.2)
    assert sum(phase.steps for phase in method().phases()) == 1_000_000
    assert [phase.steps for phase in PSM().phases()] == [250_000, 750_000]


# ---------------------------------------------------------------- learning the ring


def goal_actions(model):
    """What the policy does at states[r] when it is sent straight to goals[r]."""
    planner = make_planner("direct", model, Atlas(RING))
    return lambda states, goals: model.act(
        states, model.command(states, planner.plan(goals).target(model.embed(states)))
    )


RINGS = {
    FB: {"steps": 3000, "state_share": 0.9, "target_pessimism": 0.0, "learning_rate": 2e-3, "batch_size": 256},
    PSM: {"steps": 4000, "state_share": 0.9, "learning_rate": 2e-3, "batch_size": 256},
}


@pytest.mark.long
@pytest.mark.parametrize("method", [FB, PSM])
def test_measures_rank_the_ring_and_the_policy_takes_the_short_route(method):
    """Costs of all 144 pairs in the order of the exact steps; and a reward leads to where it is."""
    data = wandering()
    model = train(data, method.preset("smoke", **RINGS[method]), progress=False).model
    cost = model.cost(*pairs(), pairs()[1]).reshape(COUNT, COUNT)
    rank, share = spearmanr(cost.ravel(), EXACT.ravel())[0], reaches_goal(goal_actions(model))
    plain = spearmanr(-model.metric.measure(pairs()[0], model.metric.tasks(pairs()[1])), EXACT.ravel())[0]
    print(
        method.name, "-M", round(plain, 3), "spearman", round(rank, 3), "success", round(share, 3), np.round(cost[0], 1)
    )
    assert rank >= 0.95 and share >= 0.95
    near = EXACT[:, 7] <= 1  # a reward for positions 6, 7 and 8
    position = np.argmin(np.linalg.norm(data.observations[:, None] - RING, axis=-1), axis=1)
    z = model.reward_command(data.observations, near[position].astype(float))
    there = reaches_region(model, z, near)
    print("reward", there)
    assert there >= 0.9


def reaches_region(model, z: np.ndarray, region: np.ndarray) -> float:
    """Share of positions from which the policy, conditioned on z, is in the region after ten steps."""
    positions = np.arange(COUNT)
    for _ in range(10):
        positions = step(positions, model.act(RING[positions], np.tile(z, (COUNT, 1)))[:, 0])
    return float(region[positions].mean())
