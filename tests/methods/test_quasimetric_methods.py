"""QRL, CMD and TMD: losses against float64 numpy, signs, exact answers on a ring and a grid, what they ship."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algo_worlds import (
    CIRCLE,
    POSITIONS,
    SQUARE,
    fresh,
    grid,
    grid_steps,
    one_way,
    one_way_steps,
    symmetric,
    two_way_steps,
)

from iel.data.goals import Relabelled
from iel.distances import Quasimetric
from iel.errors import ConfigError
from iel.learner import Spec, dual_loss
from iel.methods import CMD, METHODS, QRL, TMD
from iel.nn import apply_heads, head
from iel.planning import planners_for
from iel.quasimetrics import distance
from iel.theory.calibration import spearman
from iel.training import train

TINY = {"hidden": (8,), "batch_size": 6, "dimension": 8}
LOG = np.log(2 * np.pi)


SPEC = Spec(2, 2)


@pytest.fixture(scope="module")
def batch() -> Relabelled:
    keys = jax.random.split(jax.random.key(5), 5)
    state, action, after, goal, actor_goal = (jax.random.normal(key, (6, 2)) for key in keys)
    return Relabelled(state, jnp.tanh(action), after, goal, jnp.zeros(6), actor_goal)


def start(algo, scale: float = 3.0):
    """Fresh networks, their weights large enough for distances that matter."""
    return jax.tree.map(lambda leaf: scale * leaf, fresh(algo, SPEC)["train"])


def wide(array) -> np.ndarray:
    return np.asarray(array, np.float64)


def all_pairs(algo, source, target) -> np.ndarray:
    """(heads, n, m) in float64."""
    return distance(algo.head, wide(source)[:, :, None], wide(target)[:, None], algo.groups, 0.5)


def cloned(policy, pair, action) -> np.ndarray:
    """log N(a; mu, 1)."""
    return -np.square(wide(action) - wide(policy(pair))).sum(-1) / 2 - LOG


# ---------------------------------------------------------------- QRL


def test_qrl_pushes_states_apart_and_pays_for_long_steps(batch):
    """By hand; with the sign of the push or of the price turned round the number is another."""
    algo = QRL.preset("smoke", **TINY, component=2, push_offset=7.0, push_scale=2.0)
    networks = start(algo)._replace(log_multiplier=jnp.log(jnp.array(3.0)))
    loss, metrics = jax.jit(algo.geometry_loss)(networks, None, batch)
    here, after, goal = (wide(networks.encoder(x)) for x in (batch.state, batch.next_state, batch.goal))
    d = lambda x, y: distance("iqe", x, y, algo.groups, 0.5)  # noqa: E731
    push = (2.0 * np.log1p(np.exp((7.0 - d(here, goal)) / 2.0))).mean()
    excess = (np.maximum(d(here, after) - 1.0, 0.0) ** 2).mean()
    guess = here + wide(networks.dynamics(jnp.concatenate([networks.encoder(batch.state), batch.action], -1)))
    dynamics = (d(after, guess) + d(guess, after)).mean() / 2
    assert excess > 0.05 and float(loss) == pytest.approx(push + 3.0 * excess + dynamics, rel=1e-4)
    assert float(metrics["train/excess"]) == pytest.approx(excess, rel=1e-4)
    downhill = jax.grad(lambda far: (2.0 * jax.nn.softplus((7.0 - far) / 2.0)).mean())(jnp.ones(3))
    assert (downhill < 0).all(), "longer distances lower the loss"


def test_the_published_push_is_softplus_with_beta_one_hundredth_and_offset_500():
    algo, d = QRL(), np.linspace(0, 1000, 11)
    ours = algo.push_scale * np.log1p(np.exp((algo.push_offset - d) / algo.push_scale))
    np.testing.assert_allclose(ours, np.log1p(np.exp(0.01 * (500 - d))) / 0.01, rtol=1e-12)
    np.testing.assert_allclose(ours, 100 * np.log1p(np.exp(5 - d / 100)), rtol=1e-12)


def test_the_price_of_long_steps_rises_while_they_are_too_long():
    slope = jax.grad(lambda price, excess: dual_loss(price, excess, 0.05), argnums=(0, 1))
    price, excess = slope(jnp.array(0.5), jnp.array(0.2))
    assert float(price) == pytest.approx(np.exp(0.5) * (0.05 - 0.2), rel=1e-5)
    assert float(slope(jnp.array(0.5), jnp.array(0.0))[0]) > 0, "and falls while they are short"
    assert float(excess) == 0.0, "the networks get no gradient to be too long"


def test_the_whole_loss_of_qrl_moves_the_price_by_the_excess_alone(batch):
    algo = QRL.preset("smoke", **TINY, component=2)
    networks = start(algo)._replace(log_multiplier=jnp.array(0.7))
    loss = jax.jit(jax.value_and_grad(algo.loss, has_aux=True))
    (_, metrics), slope = loss(networks, None, batch, jax.random.key(0))
    expected = np.exp(0.7) * (algo.epsilon - float(metrics["train/excess"]))
    assert float(slope.log_multiplier) == pytest.approx(expected, rel=1e-4)
    alone = jax.jit(jax.grad(lambda n: algo.geometry_loss(n, None, batch)[0]))(networks)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)  # noqa: E731
    jax.tree.map(close, slope.encoder, alone.encoder)


@pytest.mark.parametrize("extraction", ["ddpg-bc", "awr"])
def test_the_policy_of_qrl_goes_where_distances_are_short(batch, extraction):
    algo = QRL.preset("smoke", **TINY, component=2, extraction=extraction, bc_weight=0.2, awr_temperature=0.5)
    networks = start(algo)
    loss, _ = jax.jit(algo.actor_loss)(networks, batch)
    pair = jnp.concatenate([batch.state, batch.actor_goal], -1)
    here, goal, after = (networks.encoder(x) for x in (batch.state, batch.actor_goal, batch.next_state))
    d = lambda x, y: distance("iqe", wide(x), wide(y), algo.groups, 0.5)  # noqa: E731
    log_prob = cloned(networks.policy, pair, batch.action)
    if extraction == "ddpg-bc":
        action = jnp.clip(networks.policy(pair), -1, 1)
        q = -d(here + networks.dynamics(jnp.concatenate([here, action], -1)), goal)
        expected = -q.mean() / (np.abs(q).mean() + 1e-6) - 0.2 * log_prob.mean()
    else:
        expected = -(np.minimum(np.exp(0.5 * (d(here, goal) - d(after, goal))), 100) * log_prob).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-4)


# ---------------------------------------------------------------- CMD


def logits_by_hand(algo, networks, batch, rows=(), goals=()) -> tuple[np.ndarray, np.ndarray]:
    """Rows and goals whose actions are left out."""
    action, others = np.array(batch.action), np.roll(batch.action, 1, 0)
    action[list(rows)], others[list(goals)] = 0.0, 0.0
    here = apply_heads(networks.encoder, np.concatenate([batch.state, action], -1))
    there = apply_heads(networks.encoder, np.concatenate([batch.goal, others], -1))
    cost = all_pairs(algo, here, there)
    potential = wide(apply_heads(networks.potential, batch.goal))[..., 0] if algo.potential else np.zeros((2, 6))
    return (potential[:, None, :] - cost) / np.sqrt(8), cost


def test_cmd_contrasts_goals_and_states(batch):
    """By hand; with + d instead of - d the number is another."""
    algo = CMD.preset("smoke", **TINY, components=2, state_share=0.5)
    networks = start(algo, 2.0)
    loss, _ = jax.jit(algo.geometry_loss)(networks, None, batch)
    logits, cost = logits_by_hand(algo, networks, batch, rows=(0, 1, 2), goals=(0, 2, 4))

    def cross_entropy(logits):
        own = np.diagonal(logits, axis1=1, axis2=2)
        rows = np.log(np.exp(logits).sum(2)) - own
        return (rows.mean() + (np.log(np.exp(logits).sum(1)) - own).mean()) / 2

    assert float(loss) == pytest.approx(cross_entropy(logits), rel=1e-4)
    assert abs(cross_entropy(logits + 2 * cost / np.sqrt(8)) - cross_entropy(logits)) > 0.05


def test_cmd_as_a_baseline_is_binary_and_has_no_potential(batch):
    algo = CMD.preset("ogbench", **TINY, components=2)
    networks = start(algo, 2.0)
    assert networks.potential is None
    loss, _ = jax.jit(algo.geometry_loss)(networks, None, batch)
    logits, _ = logits_by_hand(algo, networks, batch)
    right = np.eye(6)
    expected = (right * np.log1p(np.exp(-logits)) + (1 - right) * np.log1p(np.exp(logits))).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_a_missing_action_does_not_tell_whose_goal_it_is(share):
    """Among rows without their action as many goals lack theirs as among all rows."""
    algo = CMD.preset("smoke", state_share=share)
    rows, goals = (np.asarray(part)[:, 0] for part in algo.left_out())
    assert rows.sum() == goals.sum() == round(share * algo.batch_size)
    assert goals[rows].mean() == pytest.approx(share, abs=0.05) if share else not goals.any()


def test_the_baselines_distances_are_no_steps():
    for preset, discount in (("smoke", 1.0), ("ogbench", None)):
        algo = CMD.preset(preset, **TINY, components=2)
        assert algo.model({"train": start(algo)}, SPEC).metric.discount == discount


def test_the_policy_of_cmd_goes_where_distances_are_short(batch):
    algo = CMD.preset("smoke", **TINY, components=2, bc_weight=0.2)
    networks = start(algo)
    loss, _ = jax.jit(algo.actor_loss)(networks, batch)
    pair = jnp.concatenate([batch.state, batch.actor_goal], -1)
    action = jnp.clip(networks.policy(pair), -1, 1)
    here = apply_heads(networks.encoder, jnp.concatenate([batch.state, action], -1))
    there = apply_heads(networks.encoder, jnp.concatenate([batch.actor_goal, jnp.roll(batch.action, 1, 0)], -1))
    q = -distance("mrn", wide(here), wide(there), algo.groups).max(0)
    expected = -q.mean() / (np.abs(q).mean() + 1e-6) - 0.2 * cloned(networks.policy, pair, batch.action).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_cmd_exports_the_encoder_without_an_action():
    algo = CMD.preset("smoke", **TINY, components=2)
    networks = start(algo)
    rows = jax.random.normal(jax.random.key(1), (5, 2))
    expected = head(networks.encoder, 0)(jnp.concatenate([rows, jnp.zeros((5, 2))], -1))
    np.testing.assert_allclose(algo.embedding({"train": networks}, SPEC)(rows), expected, atol=1e-5)


# ---------------------------------------------------------------- TMD


def test_a_backup_is_least_where_one_step_costs_log_one_over_gamma():
    """The minimiser of the wrong sign, gamma e^(N - D) + D, would be on the other side of N."""
    algo = TMD.preset("smoke", **TINY, components=2, discount=0.9)
    costs = jnp.linspace(0.0, 4.0, 4001)
    least = float(costs[algo.backup(costs, jnp.full(4001, 1.5)).argmin()])
    assert least == pytest.approx(1.5 + np.log(1 / 0.9), abs=2e-3)
    luck = np.array([0.5, 2.5])  # two outcomes, equally likely: e^-D = gamma E[e^-N]
    mean = np.mean([algo.backup(costs, jnp.full(4001, n)) for n in luck], axis=0)
    assert float(costs[mean.argmin()]) == pytest.approx(-np.log(0.9 * np.exp(-luck).mean()), abs=2e-3)
    assert float(algo.backup(jnp.array(9.0), jnp.array(1.0))) == pytest.approx(8.0), "far above, it is linear"


def test_tmd_contrasts_forgets_actions_and_backs_up(batch):
    """By hand; every sign counts."""
    algo = TMD.preset("smoke", **TINY, components=2, zeta=0.7, discount=0.9, clip=0.4, diagonal=0.3)
    networks = start(algo, 1.5)
    loss, _ = jax.jit(algo.geometry_loss)(networks, None, batch)
    here, after, goal = (apply_heads(networks.state_encoder, x) for x in (batch.state, batch.next_state, batch.goal))
    doing = apply_heads(networks.action_encoder, jnp.concatenate([batch.state, batch.action], -1))
    cost, later = all_pairs(algo, doing, goal), all_pairs(algo, after, goal)
    logits = -cost / np.sqrt(8)
    nce = (np.log(np.exp(logits).sum(1)) - np.diagonal(logits, axis1=1, axis2=2)).mean()
    invariance = distance("mrn", wide(here), wide(doing), algo.groups).mean()
    change = cost - later
    each = np.where(change > 0.4, change, 0.9 * np.exp(change) - cost)
    assert (change > 0.4).any() and (change < 0.4).any()
    back = 0.7 * each.mean() + 0.3 * np.diagonal(each, axis1=1, axis2=2).mean()
    assert float(loss) == pytest.approx(nce + invariance + 0.7 * back, rel=1e-4)


def test_the_policy_of_tmd_goes_where_distances_are_short(batch):
    algo = TMD.preset("smoke", **TINY, components=2, bc_weight=0.2)
    networks = start(algo)
    loss, _ = jax.jit(algo.actor_loss)(networks, batch)
    pair = jnp.concatenate([batch.state, batch.actor_goal], -1)
    action = jnp.clip(networks.policy(pair), -1, 1)
    doing = apply_heads(networks.action_encoder, jnp.concatenate([batch.state, action], -1))
    goal = apply_heads(networks.state_encoder, batch.actor_goal)
    q = -distance("mrn", wide(doing), wide(goal), algo.groups).max(0)
    expected = -q.mean() / (np.abs(q).mean() + 1e-6) - 0.2 * cloned(networks.policy, pair, batch.action).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-4)


# ---------------------------------------------------------------- all three

QUASIMETRICS = {"qrl": {"component": 2}, "cmd": {"components": 2}, "tmd": {"components": 2}}


@pytest.mark.parametrize("name", QUASIMETRICS)
def test_the_actor_moves_nothing_but_the_policy(batch, name):
    algo = METHODS[name].preset("smoke", **TINY, **QUASIMETRICS[name])
    networks = start(algo)
    gradient = jax.jit(jax.grad(lambda n: algo.actor_loss(n, batch)[0]))(networks)
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient._replace(policy=None)))
    assert any(leaf.any() for leaf in jax.tree.leaves(gradient.policy.mean))


@pytest.mark.parametrize("name", QUASIMETRICS)
def test_the_model_measures_with_the_trained_head_in_steps(name):
    settings = QUASIMETRICS[name] if name == "qrl" else {**QUASIMETRICS[name], "discount": 0.9}
    algo = METHODS[name].preset("smoke", **TINY, **settings)
    networks = start(algo)._replace(mix_logit=jnp.array(0.4))
    model = algo.model({"train": networks}, SPEC)
    x, y = np.random.default_rng(0).normal(size=(2, 9, 2)).astype(np.float32)
    encode = algo.embedding({"train": networks}, SPEC)
    unit = {"qrl": 1.0, "tmd": np.log(1 / 0.9), "cmd": np.sqrt(8) * np.log(1 / 0.9)}[name]
    mix = 1 / (1 + np.exp(-0.4))
    expected = distance(algo.head, wide(encode(x)), wide(encode(y)), algo.groups, mix) / unit
    np.testing.assert_allclose(model.cost(x, y, y), np.maximum(expected, 1e-3), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(model.steps(x, y), model.cost(x, y, y), rtol=1e-6)
    assert isinstance(model.metric, Quasimetric) and model.metric.for_every_goal
    assert ("rec-mid" in planners_for(model)) == (name != "qrl") and "asym-graph" in planners_for(model)


# ---------------------------------------------------------------- exact answers

FAST = {"hidden": (64, 64), "batch_size": 64}
EXACT = {
    "qrl": (grid, SQUARE, grid_steps, {"steps": 600, "learning_rate": 3e-3, "dual_learning_rate": 0.05}),
    "cmd": (one_way, CIRCLE, one_way_steps, {"steps": 8000, "learning_rate": 3e-3, "components": 1, "discount": 0.8}),
    "tmd": (
        symmetric,
        POSITIONS[:12],
        two_way_steps,
        {"steps": 4000, "learning_rate": 2e-3, "components": 2, "discount": 0.8, "zeta": 0.02},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", EXACT)
def test_distances_rank_states_as_the_exact_steps_do(name):
    """Random walks on a square, where routes must be stitched; a circle walked one way only, whose neighbour behind is
    seven steps away; a circle walked in both directions, where the better action counts."""
    world, positions, exact, settings = EXACT[name]
    model = train(world(), METHODS[name].preset("smoke", **FAST, **settings), progress=False).model
    i, j = np.nonzero(exact())
    found = spearman(model.cost(positions[i], positions[j], positions[j]), exact()[i, j])
    print(name, found)
    assert found >= 0.95


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: QRL(bc_weight=-1.0), "bc_weight is"),
        (lambda: QRL(epsilon=0.0), "epsilon is"),
        (lambda: QRL(dimension=20), "does not fall into"),
        (lambda: QRL(head="mrn", dimension=5), "of an even size"),
        (lambda: QRL(actor_p_trajectory=1.5), "actor_p_trajectory is"),
        (lambda: CMD(state_share=2.0), "state_share is"),
        (lambda: CMD(components=7), "does not fall into"),
        (lambda: TMD(zeta=-1.0), "zeta is"),
        (lambda: TMD(discount=1.0), "expected `float` < 1.0"),
    ],
)
def test_impossible_settings_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
