"""CRL, C-Learning and HIQL: losses by hand in float64, exact measures on a ring, goals reached, what is exported."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algo_worlds import POSITIONS, action, cosine, fresh, ring, steps

from iel.data import Trajectories
from iel.data.goals import Relabelled, to_device
from iel.errors import ConfigError, GeometryError
from iel.export import build_graphs
from iel.learner import Spec
from iel.losses import contrastive_loss, recursive_classification_loss
from iel.methods import CRL, HIQL, CLearning, check_algo, get_method
from iel.methods.clearning import Batch as CBatch
from iel.methods.hiql import Batch as HBatch
from iel.model import Subgoal, Waypoint, load_model, save_model
from iel.nn import apply_heads, on_sphere, scalars
from iel.planning import Atlas, make_planner, planners_for
from iel.policies import Waypoints
from iel.theory.calibration import spearman
from iel.training import train

TINY = {"hidden": (8,), "batch_size": 6, "steps": 6}
METHODS = ("crl", "clearning", "hiql")
PLANE = Spec(2, 2)


def start(algo, spec=PLANE):
    """Fresh networks by slot, moved so that no bias is 0."""
    generator = np.random.default_rng(7)
    move = lambda leaf: np.asarray(leaf + 0.1 * generator.normal(size=leaf.shape), leaf.dtype)  # noqa: E731
    return jax.tree.map(move, fresh(algo, spec))


def rows(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(5).normal(size=(count, 6, 2)).astype(np.float32))


def double(x) -> np.ndarray:
    return np.asarray(x, np.float64)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


rated, heads = jax.jit(scalars), jax.jit(apply_heads)
drawn = jax.jit(lambda policy, key, pair: policy.sample(key, pair, 1)[0][0])


# ---------------------------------------------------------------- losses by hand


def test_the_contrast_by_hand_and_its_signs():
    """-log sigmoid of a row's own goal, -log(1 - sigmoid) of the others'; own logits are raised, others lowered."""
    logits = jax.random.normal(jax.random.key(1), (2, 4, 4))
    f = double(logits)
    expected = np.mean(
        [
            -np.log(sigmoid(f[e, i, j])) if i == j else -np.log(1 - sigmoid(f[e, i, j]))
            for e, i, j in itertools.product(range(2), range(4), range(4))
        ]
    )
    assert float(jax.jit(contrastive_loss)(logits)) == pytest.approx(expected, rel=1e-5)
    slope = np.asarray(jax.jit(jax.grad(contrastive_loss))(logits))
    own = np.eye(4, dtype=bool)
    assert (slope[:, own] < 0).all() and (slope[:, ~own] > 0).all()


def test_the_best_contrast_is_the_log_of_how_much_likelier_a_goal_is():
    """Expected gradients vanish at f = log p(g | x) / p(g) - log(B - 1), for B rows a batch."""
    batch, likely = 5, np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    chance = likely.mean(0)
    best = np.log(likely / chance) - np.log(batch - 1)
    # of a row x: one goal drawn from p(. | x), B - 1 from p
    slope = likely * (sigmoid(best) - 1) + (batch - 1) * chance * sigmoid(best)
    np.testing.assert_allclose(slope, 0.0, atol=1e-12)


def test_the_recursive_classifier_by_hand_in_both_of_its_forms():
    """Three terms; and positives of weight 1 - gamma with negatives of soft label y and weight 1 + gamma w."""
    keys = jax.random.split(jax.random.key(2), 3)
    positive, negative = (jax.random.normal(key, (2, 7)) for key in keys[:2])
    ratio = jnp.exp(jax.random.normal(keys[2], (7,)))
    loss = float(recursive_classification_loss(positive, negative, ratio, 0.9))
    c, d, w = sigmoid(double(positive)), sigmoid(double(negative)), double(ratio)
    terms = -(1 - 0.9) * np.log(c) - 0.9 * w * np.log(d) - np.log(1 - d)
    assert loss == pytest.approx(terms.mean(), rel=1e-5)
    label = 0.9 * w / (1 + 0.9 * w)
    soft = (1 + 0.9 * w) * -(label * np.log(d) + (1 - label) * np.log(1 - d)) - (1 - 0.9) * np.log(c)
    assert loss == pytest.approx(soft.mean(), rel=1e-5)


def test_the_fixed_point_of_the_recursion_is_the_exact_measure():
    """On a chain of three states gradients vanish where C / (1 - C) = M / p, M = (1 - gamma) (I - gamma P)^-1 P."""
    gamma, chance = 0.8, np.full(3, 1 / 3)
    moves = np.array([[0.1, 0.9, 0.0], [0.0, 0.2, 0.8], [0.5, 0.0, 0.5]])
    measure = (1 - gamma) * np.linalg.inv(np.eye(3) - gamma * moves) @ moves
    ratio = measure / chance

    def expected(logits):
        total = 0.0
        for s, t, g in itertools.product(range(3), repeat=3):
            one = recursive_classification_loss(
                logits[s, t][None, None], logits[s, g][None, None], jnp.array([ratio[t, g]]), gamma
            )
            total += moves[s, t] * chance[g] * one
        return total

    slope = jax.jit(jax.grad(expected))
    np.testing.assert_allclose(slope(jnp.log(ratio)), 0.0, atol=1e-6)
    assert np.abs(slope(-jnp.log(ratio))).max() > 0.05, "the sign of the logit matters"


def test_the_critic_and_the_actor_of_crl_by_hand():
    algo = CRL.preset("smoke", **TINY, latent=3, bc_weight=0.7)
    networks = start(algo)["train"]
    state, did, after, goal, wanted = rows(5)
    batch = Relabelled(state, jnp.tanh(did), after, goal, jnp.zeros(6), wanted)
    loss, _ = jax.jit(algo.geometry_loss)(networks, None, batch)
    phi = double(heads(networks.phi, jnp.concatenate([state, batch.action], -1)))
    psi = double(heads(networks.psi, goal))
    f = np.einsum("eik,ejk->eij", phi, psi) / np.sqrt(3)
    own = np.eye(6, dtype=bool)
    expected = -np.where(own, np.log(sigmoid(f)), np.log(1 - sigmoid(f))).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-4)

    loss, _ = jax.jit(algo.actor_loss)(networks, batch)
    pair = jnp.concatenate([state, wanted], -1)
    mean = networks.policy(pair)
    phi = double(heads(networks.phi, jnp.concatenate([state, jnp.clip(mean, -1, 1)], -1)))
    q = (phi * double(heads(networks.psi, wanted))).sum(-1).min(0) / np.sqrt(3)
    log_prob = -0.5 * np.square(double(batch.action - mean)).sum(-1) - np.log(2 * np.pi)
    climb, clone = -q.mean() / (np.abs(q).mean() + 1e-6), -0.7 * log_prob.mean()
    assert float(loss) == pytest.approx(climb + clone, rel=1e-4)
    assert abs(climb) > 1e-3, "with the other sign the policy would flee its goals"
    gradient = jax.jit(jax.grad(lambda n: algo.actor_loss(n, batch)[0]))(networks)
    assert not any(leaf.any() for leaf in jax.tree.leaves((gradient.phi, gradient.psi)))


@pytest.mark.parametrize("share", [0.25, pytest.param(0.0, marks=pytest.mark.long)])
def test_the_classifier_and_the_actor_of_c_learning_by_hand(share):
    algo = CLearning.preset("smoke", **TINY, discount=0.7, monte_carlo_share=share, bc_weight=0.4)
    networks, key = start(algo)["train"], jax.random.key(9)
    target = jax.tree.map(lambda leaf: leaf * 2.0, algo.target_of(networks))
    here, did, after, anywhere, later, wanted = rows(6)
    batch = CBatch(jnp.tanh(did), here, after, anywhere, later, wanted)
    classifier, policy = networks
    loss, metrics = jax.jit(algo.classifier_loss)(classifier, target, policy, batch, key)
    pair = jnp.concatenate([after, anywhere], -1)
    ahead = double(rated(target, pair, drawn(policy, key, pair))).min(0)
    w = np.minimum(np.exp(ahead), 1 / (1 - 0.7))
    c, d, e = (sigmoid(double(rated(classifier, here, g, batch.action))) for g in (after, anywhere, later))
    recursion = (-(1 - 0.7) * np.log(c) - 0.7 * w * np.log(d) - np.log(1 - d)).mean()
    expected = (1 - share) * recursion + share * (-np.log(e) - np.log(1 - d)).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    assert float(metrics["train/ratio"]) == pytest.approx(w.mean(), rel=1e-4)
    slope = jax.jit(jax.grad(lambda policy: algo.classifier_loss(classifier, target, policy, batch, key)[0]))(policy)
    assert not any(leaf.any() for leaf in jax.tree.leaves(slope)), "w carries no gradient"

    loss, _ = jax.jit(algo.actor_loss)(policy, classifier, batch, key)
    pair = jnp.concatenate([here, wanted], -1)
    q = np.log(sigmoid(double(rated(classifier, pair, drawn(policy, key, pair))).min(0)))
    climb, clone = -q.mean() / (np.abs(q).mean() + 1e-6), -0.4 * double(policy.log_prob(pair, batch.action)).mean()
    assert climb == pytest.approx(1.0, abs=1e-4), "log C is negative: with the other sign this would be -1"
    assert float(loss) == pytest.approx(climb + clone, rel=1e-4)


def test_the_value_and_both_policies_of_hiql_by_hand():
    algo = HIQL.preset("smoke", **TINY, expectile=0.8, discount=0.9, high_temperature=2.0, low_temperature=1.5)
    own = start(algo)["train"]
    target = jax.tree.map(lambda leaf: leaf * 1.2, algo.target_of(own))
    here, did, after, goal, far, sub, low_sub = rows(7)
    success = jnp.array([0.0, 0, 1, 0, 1, 0])
    batch = HBatch(jnp.tanh(did), success, here, after, goal, far, sub, low_sub)

    def represent(x, g):
        y = double(own.representation(jnp.concatenate([x, g], -1)))
        return jnp.asarray(np.sqrt(10) * y / np.linalg.norm(y, axis=1, keepdims=True), jnp.float32)

    def values(network, x, g):
        return double(rated(network, x, represent(x, g)))

    np.testing.assert_allclose(np.linalg.norm(own.represent(here, goal), axis=1), np.sqrt(10), rtol=1e-4)
    loss, _ = jax.jit(algo.value_loss)(own, target, batch)
    v, old, ahead = values(own.value, here, goal), values(target, here, goal), values(target, after, goal)
    q = (1 - double(success)) * (-1 + 0.9 * ahead)
    weight = np.where(q.min(0) >= old.mean(0), 0.8, 0.2)
    assert float(loss) == pytest.approx(sum((weight * (q[e] - v[e]) ** 2).mean() for e in range(2)), rel=1e-4)

    def awr(gain, error, temperature):
        size = error.shape[-1]
        log_prob = -0.5 * np.square(double(error)).sum(-1) - 0.5 * size * np.log(2 * np.pi)
        return -(np.minimum(np.exp(temperature * gain), 100) * log_prob).mean()

    high, _ = jax.jit(algo.high_loss)(own, batch)
    gain = values(own.value, sub, far).mean(0) - values(own.value, here, far).mean(0)
    error = represent(here, sub) - own.high(jnp.concatenate([here, far], -1))
    assert float(high) == pytest.approx(awr(gain, error, 2.0), rel=1e-4)
    assert float(high) != pytest.approx(awr(-gain, error, 2.0), rel=1e-2), "away from the goal is another loss"
    low, _ = jax.jit(algo.low_loss)(own, batch)
    gain = values(own.value, after, low_sub).mean(0) - values(own.value, here, low_sub).mean(0)
    error = batch.action - own.low(jnp.concatenate([here, represent(here, low_sub)], -1))
    assert float(low) == pytest.approx(awr(gain, error, 1.5), rel=1e-4)
    assert float(low) != pytest.approx(awr(-gain, error, 1.5), rel=1e-2), "away from the subgoal is another loss"
    both = jax.jit(jax.grad(lambda n: algo.high_loss(n, batch)[0] + algo.low_loss(n, batch)[0]))(own)
    assert not any(leaf.any() for leaf in jax.tree.leaves((both.value, both.representation)))


def test_subgoals_of_hiql_lie_ahead_and_never_beyond_the_goal():
    """States are (episode, time), so that a drawn row says where it came from."""
    lengths = (30, 4, 12)
    episodes = [
        (np.column_stack([np.full(n + 1, e), np.arange(n + 1)]), np.zeros((n, 2))) for e, n in enumerate(lengths)
    ]
    data = to_device(Trajectories.from_episodes(episodes, "numbered"))
    for share in (1.0, 0.0):
        algo = HIQL.preset("smoke", subgoal_steps=5, actor_p_trajectory=share, batch_size=400)
        batch = jax.tree.map(np.asarray, algo.sample(jax.random.key(0), data, None))
        episode, time = batch.state.T
        last = np.array(lengths)[episode.astype(int)]
        assert (batch.low_subgoal == np.column_stack([episode, np.minimum(time + 5, last)])).all()
        if share:
            assert (batch.high_goal[:, 0] == episode).all() and (batch.high_goal[:, 1] > time).all()
            ahead = np.minimum(np.minimum(time + 5, last), batch.high_goal[:, 1])
        else:
            assert (batch.high_goal[:, 0] != episode).any()
            ahead = np.minimum(time + 5, last)
        assert (batch.high_subgoal == np.column_stack([episode, ahead])).all()


# ---------------------------------------------------------------- exact answers on rings

SIZE, GAMMA = 12, 0.8
SPOTS = POSITIONS[:SIZE].astype(np.float32)
"""A ring that is walked at random: one action is one step to a neighbour, +0.8 or -0.8."""
TRIPLES = list(itertools.product(range(SIZE), (-1, 1), range(SIZE)))
PAIRS = np.array([(s, g) for s in range(SIZE) for g in range(SIZE) if s != g])
APART = np.minimum((PAIRS[:, 1] - PAIRS[:, 0]) % SIZE, (PAIRS[:, 0] - PAIRS[:, 1]) % SIZE)


def walk() -> Trajectories:
    generator = np.random.default_rng(0)
    episodes = []
    for _ in range(100):
        turns = generator.choice([-1, 1], 100)
        positions = (generator.integers(SIZE) + np.concatenate([[0], turns.cumsum()])) % SIZE
        episodes.append((SPOTS[positions], 0.8 * turns[:, None]))
    return Trajectories.from_episodes(episodes, "ring walk")


def log_ratio(turn: np.ndarray, g: int) -> np.ndarray:
    """log 12 (1 - gamma) sum_k gamma^k P(s_k = g | s_0) for the chain that goes by +1 with probability turn[s]."""
    chain = np.zeros((SIZE, SIZE))
    for s in range(SIZE):
        chain[s, (s + 1) % SIZE] += turn[s]
        chain[s, (s - 1) % SIZE] += 1 - turn[s]
    return np.log(np.maximum(SIZE * (1 - GAMMA) * np.linalg.inv(np.eye(SIZE) - GAMMA * chain)[:, g], 1e-9))


def learned_logits(model) -> np.ndarray:
    """The mean head's f(s, a, g) for every triple."""
    state, turn, goal = (np.array(part) for part in zip(*TRIPLES, strict=True))
    known = {
        "observation": SPOTS[state],
        "goal": SPOTS[goal],
        "action": np.float32(0.8) * turn[:, None].astype(np.float32),
    }
    answers = model.networks["value"].features(model.inputs(model.networks["value"], **known))
    if "goal_features" in model.networks:
        answers = answers * model.networks["goal_features"].features(SPOTS[goal])
    return answers.sum(-1).mean(0)


def check_order(model) -> None:
    """Costs at the policy's action rise with the steps of the shorter route, and the policy takes it."""
    cost = model.cost(*(SPOTS[PAIRS[:, side]] for side in (0, 1, 1)))
    assert spearman(cost, APART) >= 0.95
    unique = (APART < 6) & (APART > 0)
    shorter = np.where((PAIRS[:, 1] - PAIRS[:, 0]) % SIZE < 6, 1, -1)
    turns = np.sign(model.act(SPOTS[PAIRS[:, 0]], SPOTS[PAIRS[:, 1]])[:, 0])
    assert (turns == shorter)[unique].mean() >= 0.95
    with pytest.raises(GeometryError, match="not in steps"):
        model.steps(SPOTS[:1], SPOTS[1:2])


@pytest.mark.long
@pytest.mark.optimised
def test_crl_learns_how_likely_the_data_gets_anywhere():
    model = train(walk(), CRL.preset("smoke", discount=GAMMA, bc_weight=0.3), progress=False).model
    exact = np.array([log_ratio(np.full(SIZE, 0.5), g)[(s + a) % SIZE] for s, a, g in TRIPLES])
    learned = learned_logits(model)
    assert spearman(learned, exact) >= 0.95
    assert abs((learned - exact).mean()) < 0.3, "log(B - 1) of the negatives was put back"
    check_order(model)


@pytest.mark.long
@pytest.mark.optimised
def test_c_learning_learns_how_likely_its_own_policy_gets_anywhere():
    """Off-policy: the data walks at random, the measure is that of the policy that takes the shorter route."""
    model = train(walk(), CLearning.preset("smoke", discount=GAMMA, bc_weight=0.03), progress=False).model
    turns = np.array([model.act(SPOTS, np.tile(SPOTS[g], (SIZE, 1)))[:, 0] > 0 for g in range(SIZE)])
    exact = np.array([log_ratio(turns[g].astype(float), g)[(s + a) % SIZE] for s, a, g in TRIPLES])
    assert spearman(learned_logits(model), exact) >= 0.95
    check_order(model)


@pytest.mark.long
@pytest.mark.optimised
def test_hiql_reaches_goals_on_the_ring():
    """Two routes from 0 to 4: the short one is taken. What is pursued is a subgoal two steps ahead."""
    settings = {"batch_size": 128, "learning_rate": 2e-3, "discount": 0.9, "p_current": 0.3, "p_trajectory": 0.7}
    algo = HIQL.preset("smoke", **settings, expectile=0.9, subgoal_steps=2, steps=2000)
    model = train(ring(), algo, progress=False).model
    assert steps(model, 0, 4) == pytest.approx(4.3, abs=0.7) and steps(model, 11, 4) == pytest.approx(7, abs=0.7)
    planner = make_planner("direct", model, ring())
    for start_, goal, length in ((0, 4, 4), (0, 2, 2), (0, 8, 4), (10, 6, 4), (1, 4, 3)):
        here = start_
        planner.prepare(POSITIONS[goal])
        for _ in range(length):
            did = planner.act(POSITIONS[here])
            near = [(here + 1) % 12, (here - 1) % 12]
            here = max(near, key=lambda position, did=did, here=here: cosine(did, action(here, position)))
        assert here == goal, (start_, goal)


# ---------------------------------------------------------------- what is exported


@pytest.mark.parametrize(
    "name, policy",
    [
        *((name, None) for name in METHODS),
        ("crl", Waypoints()),
        pytest.param("hiql", Waypoints(), marks=pytest.mark.long),
        pytest.param("clearning", Waypoints(), marks=pytest.mark.long),
    ],
)
def test_numpy_and_onnx_say_what_the_trained_networks_say(name, policy, tmp_path):
    spec = Spec(5, 3, () if policy is None else (0, 1))
    settings = {**TINY, "hidden": (16, 16), **({"latent": 4} if name == "crl" else {})}
    algo = get_method(name).preset("smoke", **settings, policy=policy)
    trained = start(algo, spec)
    save_model(algo.model(trained, spec), tmp_path)
    model, own = load_model(tmp_path), trained["train"]
    states, goals = np.random.default_rng(1).standard_normal((2, 40, 5)).astype(np.float32)
    pair = jnp.concatenate([states, goals], -1)
    if name == "hiql":
        cost = -rated(own.value, states, own.represent(states, goals)).mean(0)
    else:
        chosen = jnp.clip(own.policy(pair), -1, 1)
        if name == "crl":
            phi, psi = algo.features(own, (states, chosen), goals)
            f = (phi * psi).sum(-1).min(0) + np.log(algo.batch_size - 1)
        else:
            f = rated(own.classifier, pair, chosen).min(0)
        cost = -jax.nn.log_sigmoid(f)
    cost = np.maximum(cost, 1e-3)
    np.testing.assert_allclose(model.cost(states, goals, goals), cost, rtol=1e-4, atol=1e-5)
    target = make_planner("direct", model, Atlas(states)).plan(goals).target(states)
    command = model.command(states, target)
    if policy is not None:
        assert isinstance(model.conditioning, Waypoint) and command.shape == (40, 2)
        condition = jnp.concatenate([states[:, 2:], command], -1)
        acted = trained["policy"](condition)
    elif name == "hiql":
        assert isinstance(model.conditioning, Subgoal)
        acted = own.low(jnp.concatenate([states, on_sphere(own.high(pair))], -1))
        assert np.allclose(np.linalg.norm(command, axis=1), np.sqrt(10), atol=1e-3)
    else:
        acted = own.policy(pair)
    np.testing.assert_allclose(model.act(states, command), np.clip(acted, -1, 1), atol=1e-4)
    assert planners_for(model) == ("direct", "sym-graph", "asym-graph")

    onnxruntime = pytest.importorskip("onnxruntime")
    content = build_graphs(model)["model.onnx"].SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    (action,) = session.run(None, {"observation": states, "goal": goals})
    np.testing.assert_allclose(action, model.act(states, command), atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("name", METHODS)
def test_the_contract_holds_with_a_waypoint_policy(name):
    check_algo(get_method(name).preset("smoke", **{**TINY, "batch_size": 16}, policy=Waypoints(columns=(0, 1))))


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: CRL(batch_size=1), "at least 2"),
        (lambda: CRL(bc_weight=-1.0), "bc_weight is"),
        (lambda: CRL(actor_p_trajectory=2.0), "actor_p_trajectory is"),
        (lambda: CLearning(monte_carlo_share=2.0), "monte_carlo_share is"),
        (lambda: CLearning(bc_weight=-1.0), "bc_weight is"),
        (lambda: CLearning(discount=1.0), "expected `float` < 1.0"),
        (lambda: HIQL(subgoal_steps=0), "subgoal_steps is"),
        (lambda: HIQL(actor_p_trajectory=-0.1), "actor_p_trajectory is"),
    ],
)
def test_impossible_settings_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
