"""GCBC, GCIVL, GC-IQL and GC-CQL: losses against float64 numpy, and exact answers on a ring with two routes round."""

import dataclasses
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algo_worlds import POSITIONS, act, action, cosine, fresh, ring, steps

from iel.data import Trajectories
from iel.data.goals import Relabelled, to_device
from iel.errors import ConfigError, GeometryError
from iel.learner import Spec
from iel.methods import GCBC, GCCQL, GCIQL, GCIVL, METHODS
from iel.model import Model
from iel.nn import scalars
from iel.planning import make_planner
from iel.training import train
from iel.training.loop import Trainer

FAST = {"hidden": (64, 64), "batch_size": 64, "learning_rate": 2e-3}
TINY = {"hidden": (8,), "batch_size": 16, "steps": 6}
OWN = {"p_current": 0.3, "p_trajectory": 0.7, "discount": 0.9}
"""No random goals: a position visited in two episodes is two rows, and only one of them would count as reached. With a
discount of 0.99 nearly all later goals would be the last states of these short episodes."""
RIGHT, WRONG = action(0, 1), action(0, 11)
"""At position 0: the first action of the short route to position 4, and that of the long route."""


@pytest.fixture(scope="module")
def batch() -> Relabelled:
    keys = jax.random.split(jax.random.key(5), 5)
    state, action_, after, goal, actor_goal = (jax.random.normal(key, (6, 2)) for key in keys)
    return Relabelled(state, jnp.tanh(action_), after, goal, jnp.array([0.0, 0, 1, 0, 1, 0]), actor_goal)


def start(algo):
    """Fresh networks."""
    return fresh(algo, Spec(2, 2))["train"]


# ---------------------------------------------------------------- losses by hand


def test_the_value_of_gcivl_is_implicit_v_learning_on_its_goals(batch):
    algo = GCIVL.preset("smoke", **TINY, expectile=0.8, discount=0.9)
    networks = start(algo)
    target = jax.tree.map(lambda leaf: leaf * 1.2, algo.target_of(networks))
    loss, _ = jax.jit(algo.geometry_loss)(networks, target, batch)
    v, old, after = (
        np.asarray(scalars(network, where, batch.goal), np.float64)
        for network, where in ((networks.value, batch.state), (target, batch.state), (target, batch.next_state))
    )
    open_ = 1 - np.asarray(batch.success)
    q = open_ * (-1 + 0.9 * after)
    weight = np.where(q.min(0) >= old.mean(0), 0.8, 0.2)
    assert float(loss) == pytest.approx(sum((weight * (q[e] - v[e]) ** 2).mean() for e in range(2)), rel=1e-4)


def test_the_policy_of_gcivl_weighs_actions_by_the_value_they_led_to(batch):
    algo = GCIVL.preset("smoke", **TINY, awr_temperature=2.0)
    networks = start(algo)
    loss, _ = jax.jit(algo.actor_loss)(networks, batch)
    after, here = (scalars(networks.value, s, batch.actor_goal).mean(0) for s in (batch.next_state, batch.state))
    mean = networks.policy(jnp.concatenate([batch.state, batch.actor_goal], -1))
    error = np.square(np.asarray(batch.action - mean, np.float64)).sum(-1)
    weight = np.minimum(np.exp(2.0 * np.asarray(after - here, np.float64)), 100)
    assert float(loss) == pytest.approx((weight * (error / 2 + np.log(2 * np.pi))).mean(), rel=1e-4)


def test_iql_masks_the_goal_and_uses_the_target_critic(batch):
    algo = GCIQL.preset("smoke", **TINY, expectile=0.7, discount=0.9)
    value, critic, _ = networks = start(algo)
    target = jax.tree.map(lambda leaf: leaf * 1.2, algo.target_of(networks))
    loss, _ = jax.jit(algo.geometry_loss)(networks, target, batch)
    v, after = (np.asarray(scalars(value, s, batch.goal)[0], np.float64) for s in (batch.state, batch.next_state))
    q, old = (np.asarray(scalars(c, batch.state, batch.goal, batch.action), np.float64) for c in (critic, target))
    u = old.min(0) - v
    expected = (np.where(u >= 0, 0.7, 0.3) * u**2).mean()
    backup = (1 - np.asarray(batch.success)) * (-1 + 0.9 * after)
    expected += sum(((q[e] - backup) ** 2).mean() for e in range(2))
    assert float(loss) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("extraction", ["ddpg-bc", "awr"])
def test_the_actor_of_iql_moves_nothing_but_the_policy(batch, extraction):
    algo = GCIQL.preset("smoke", **TINY, extraction=extraction)
    networks = start(algo)
    gradient = jax.jit(jax.grad(lambda n: algo.actor_loss(n, batch)[0]))(networks)
    assert not any(leaf.any() for leaf in jax.tree.leaves((gradient.value, gradient.critic)))
    assert any(leaf.any() for leaf in jax.tree.leaves(gradient.policy.mean))


@pytest.mark.parametrize("lagrange", [False, True])
def test_the_critic_of_cql_by_hand(batch, lagrange):
    """One backup action, three proposals of two actions, the price of caution at e^0.5."""
    settings = {"action_samples": 2, "max_backup": False, "lagrange": lagrange, "gap": 0.3, "discount": 0.9}
    algo = GCCQL.preset("smoke", **TINY, **settings, conservative_weight=2.0, reward_scale=4.0)
    state, key = start(algo), jax.random.key(9)
    target = jax.tree.map(lambda leaf: leaf * 1.2, algo.target_of(state))
    state = state._replace(prices=state.prices._replace(caution=jnp.array(0.5)))
    loss, _ = jax.jit(algo.critic_loss)(state, target, batch, key)

    here, after = (jnp.concatenate([s, batch.goal], -1) for s in (batch.state, batch.next_state))
    uniform_key, here_key, after_key = jax.random.split(key, 3)
    mine, mine_log = state.policy.sample(here_key, here, 2)
    next_, next_log = state.policy.sample(after_key, after, 2)
    anything = jax.random.uniform(uniform_key, (2, 6, 2), minval=-1.0, maxval=1.0)
    backup = (1 - np.asarray(batch.success)) * (-1 + 0.9 * np.asarray(scalars(target, after, next_[0])).min(0))
    proposals = [(anything[j], np.full(6, -2 * np.log(2))) for j in range(2)]
    proposals += [(next_[j], next_log[j]) for j in range(2)] + [(mine[j], mine_log[j]) for j in range(2)]
    rated = np.stack([4 * np.asarray(scalars(state.critic, here, a), float) - np.asarray(log) for a, log in proposals])
    q = np.asarray(scalars(state.critic, here, batch.action), np.float64)
    excess = np.log(np.exp(rated).sum(0)) - 4 * q
    expected = sum(((q[e] - backup) ** 2).mean() for e in range(2))
    for e in range(2):
        expected += (np.exp(0.5) * 2.0 * (excess[e].mean() - 0.3) if lagrange else 2.0 * excess[e].mean()) / 4**2
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def test_the_prices_of_cql_rise_when_they_should():
    algo = GCCQL.preset("smoke", **TINY, lagrange=True, gap=0.3)
    prices = start(algo).prices

    def downhill(log_prob: float, excess: float):
        gradient = jax.grad(lambda p: algo.price_loss(p, jnp.array(log_prob), jnp.array(excess), 2)[0])(prices)
        return -float(gradient.entropy), -float(gradient.caution)

    assert downhill(3.0, 1.0)[0] > 0 and downhill(1.0, 1.0)[0] < 0  # the entropy wanted is -|A| = -2, log pi = 2
    assert downhill(3.0, 1.0)[1] > 0 and downhill(3.0, 0.0)[1] < 0  # the excess allowed is 0.3


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["laptop", "smoke", "laptop-robot-even", "unreachable"])
def test_on_noisy_data_no_preset_drives_the_price_of_caution_to_its_cap(preset, capsys):
    """And one whose gap is out of reach says so, once: the data's actions are the direction with noise."""
    rng = np.random.default_rng(0)
    episodes = []
    for _ in range(8):
        actions = np.clip(np.array([0.8, -0.3]) + 0.5 * rng.standard_normal((40, 2)), -1, 1)
        episodes.append((np.concatenate([np.zeros((1, 2)), actions.cumsum(0)]), actions))
    data = Trajectories.from_episodes(episodes, "noisy")
    unreachable = {"lagrange": True, "gap": 0.2, "price_learning_rate": 0.1}
    short = {"steps": 400, "hidden": (16,), "batch_size": 32, "warmup_share": 0.0, "price_learning_rate": 0.1}
    short |= {"cut_jumps": False, "cut_rests": False}
    algo = GCCQL.preset("smoke" if preset == "unreachable" else preset, **short)
    algo = dataclasses.replace(algo, **unreachable) if preset == "unreachable" else algo
    trainer = Trainer(data, algo, [0], {})
    trainer.fit(threading.Event(), None, progress=False)
    printed = capsys.readouterr().err.count("reached its cap of 1e+06")
    price = float(np.exp(trainer.states()[0]["train"].params.prices.caution))
    assert (price > 1e6 and printed == 1) if preset == "unreachable" else (price < 10.0 and printed == 0)


def test_the_warm_up_of_cql_ignores_the_critic(batch):
    algo = GCCQL.preset("smoke", **TINY)
    state = start(algo)
    other = state._replace(critic=jax.tree.map(lambda leaf: 2.0 * leaf, state.critic))
    for phase in algo.phases():
        loss = jax.jit(phase.learner.actor_loss)
        one, two = (loss(networks, batch, jax.random.key(1))[0] for networks in (state, other))
        assert (one == two) == (phase.name == "warmup")
    assert [phase.steps for phase in GCCQL(steps=1000).phases()] == [40, 960]


# ---------------------------------------------------------------- exact answers on the ring


@pytest.mark.slow
def test_cloning_learns_the_mean_action_towards_each_goal():
    """Uniform later goals: from 0, position 4 is one of five on the short route, one of nine on the long one."""
    model = train(ring(), GCBC.preset("smoke", **{**FAST, "batch_size": 512}, steps=800), progress=False).model
    np.testing.assert_allclose(act(model, 0, 4), (9 * RIGHT + 5 * WRONG) / 14, atol=0.1)
    np.testing.assert_allclose(act(model, 0, 2), RIGHT, atol=0.15)
    np.testing.assert_allclose(act(model, 0, 8), WRONG, atol=0.15)
    with pytest.raises(GeometryError, match="gcbc learned no distances"):
        model.steps(POSITIONS[:1], POSITIONS[:1])


def check_values(model: Model, tolerance: float) -> None:
    """Where one way leads to the goal, its length; where two do, nearly that of the short one.

    The 0.9 expectile of 4 and 8 steps is 4.3 (a weight on the wrong side would make it 7.5), and no steps lead from a
    position to itself (a mask left out would make every route endless).
    """
    assert steps(model, 0, 4) == pytest.approx(4.3, abs=tolerance)
    assert steps(model, 0, 2) == pytest.approx(2, abs=tolerance)
    assert steps(model, 11, 4) == pytest.approx(7, abs=tolerance)
    assert steps(model, 3, 4) == pytest.approx(1, abs=tolerance)
    assert max(steps(model, position, position) for position in range(12)) < tolerance


def check_actions(model: Model) -> None:
    """Position 0 is where the routes part; position 4 is reached by both, the others by one."""
    assert cosine(act(model, 0, 4), RIGHT) > 0.9
    assert cosine(act(model, 0, 2), RIGHT) > 0.9
    assert cosine(act(model, 0, 8), WRONG) > 0.9
    assert cosine(act(model, 10, 6), action(10, 9)) > 0.9


@pytest.mark.slow
def test_gcivl_finds_the_short_route():
    check_values(model := train(ring(), GCIVL.preset("smoke", **FAST, **OWN, steps=1200), progress=False).model, 0.6)
    check_actions(model)


@pytest.mark.slow
@pytest.mark.parametrize("extraction", ["ddpg-bc", "awr"])
def test_iql_finds_the_short_route(extraction):
    algo = GCIQL.preset("smoke", **FAST, **OWN, steps=1200, extraction=extraction, bc_weight=1.0)
    check_values(model := train(ring(), algo, progress=False).model, 0.6)
    check_actions(model)


@pytest.mark.slow
def test_cql_finds_the_short_route():
    """Caution makes every route look longer than it is, but nearer stays nearer and the long route does not win."""
    settings = {"policy_learning_rate": 2e-3, "conservative_weight": 1.0, "lagrange": True, "gap": 5.0}
    settings |= {"action_samples": 2, "reward_scale": 10.0, "price_learning_rate": 3e-4}
    model = train(ring(), GCCQL.preset("smoke", **FAST, **OWN, **settings, steps=800), progress=False).model
    assert 0.5 < steps(model, 3, 4) < steps(model, 0, 4) < steps(model, 11, 4) < 15
    assert cosine(act(model, 0, 4), RIGHT) > 0.7
    assert cosine(act(model, 0, 8), WRONG) > 0.7
    assert cosine(act(model, 10, 6), action(10, 9)) > 0.7


# ---------------------------------------------------------------- models, planners, seeds


@pytest.mark.parametrize("name", ["gcbc", "gcivl", "gciql", "gccql"])
def test_the_direct_planner_hands_the_goal_itself_to_the_policy(name):
    algo = METHODS[name].preset("smoke", **TINY)
    model = algo.model(fresh(algo, Spec(2, 2)), Spec(2, 2))
    goals = np.random.default_rng(0).normal(0, 30, (5, 2)).astype(np.float32)
    states = np.random.default_rng(1).normal(0, 30, (5, 2)).astype(np.float32)
    target = make_planner("direct", model, ring()).plan(goals).target(model.embed(states))
    assert np.array_equal(model.command(states, target), goals)
    policy = model.networks["policy"](np.concatenate([states, goals], 1))
    expected = np.tanh(policy[:, :2]) if name == "gccql" else np.clip(policy, -1, 1)
    np.testing.assert_allclose(model.act(states, goals), expected, atol=1e-6)
    assert (model.metric is None) == (name == "gcbc")
    with pytest.raises(GeometryError, match="no goal directions"):
        model.displacement(states, goals)


@pytest.mark.long
@pytest.mark.parametrize("name", ["hilp", "gcbc", "gcivl", "gciql", "gccql"])
def test_seeds_trained_together_are_the_seeds_trained_alone(name):
    """To float tolerance, as for IEL: a mapped matrix product rounds differently."""
    algo, spec = METHODS[name].preset("smoke", **TINY), Spec(2, 2)
    data = to_device(ring())

    def run(seed):
        key = jax.random.key(seed)
        first = {phase.slot: phase.learner for phase in reversed(algo.phases())}
        states = {slot: own.start(key, spec) for slot, own in first.items()}
        for phase in algo.phases():
            own = phase.learner
            tables = own.tables({slot: state.params for slot, state in states.items()}, data, spec)

            def step(t, state, own=own, tables=tables):
                sample_key, update_key = jax.random.split(jax.random.fold_in(key, t))
                return own.update(state, own.sample(sample_key, data, tables), update_key)[0]

            states[phase.slot] = jax.lax.fori_loop(0, phase.steps, step, states[phase.slot])
        return {slot: state.params for slot, state in states.items()}

    together = jax.jit(jax.vmap(run))(jnp.array([3, 0]))
    alone = jax.jit(run)(0)
    states, goals = POSITIONS[:6].astype(np.float32), POSITIONS[6:12].astype(np.float32)

    def behaviour(trained):
        model = algo.model(jax.tree.map(np.asarray, trained), spec)
        cost = np.zeros(6) if model.metric is None else model.cost(states, goals, goals)
        printed = goals if model.conditioning.kind == "goal" else model.omega(goals)
        return np.concatenate([cost, model.act(states, printed).ravel()])

    batched, foreign = (behaviour(jax.tree.map(lambda leaf, i=i: leaf[i], together)) for i in (1, 0))
    np.testing.assert_allclose(batched, behaviour(alone), rtol=1e-3, atol=1e-4)
    assert np.abs(foreign - batched).max() > 1e-3


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: GCBC(p_trajectory=1.5), "p_trajectory is"),
        (lambda: GCIVL(p_current=0.7), "sum to 1"),
        (lambda: GCIVL(expectile=1.0), "expected `float` < 1.0"),
        (lambda: GCIQL(bc_weight=-1.0), "bc_weight is"),
        (lambda: GCCQL(warmup_share=1.2), "warmup_share is"),
        (lambda: GCCQL(action_samples=0), "action_samples is"),
        (lambda: GCCQL(conservative_weight=-1.0), "conservative_weight is"),
    ],
)
def test_impossible_settings_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
