"""FB and PSM: losses against float64 numpy with a wrong sign each, exact measures, prompts, and a ring to learn."""


import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iel.algos import FB, PSM
from iel.algos.contract import Spec
from iel.algos.measures import MeasureSettings, Tasks, Transitions, actor_loss, draw_tasks, on_sphere
from iel.algos.psm import Batch, code_actions, code_bits
from iel.errors import ConfigError
from iel.losses import measure_loss, orthonormality_loss, pessimistic
from iel.nn import apply_heads

TINY = {"hidden": (8,), "batch_size": 6, "dimension": 4, "steps": 8}
SPEC = Spec(2, 1)


@pytest.fixture(scope="module")
def batch() -> Transitions:
    keys = jax.random.split(jax.random.key(5), 4)
    state, after, later = (jax.random.normal(key, (6, 2)) for key in keys[:3])
    return Transitions(state, jnp.tanh(jax.random.normal(keys[3], (6, 1))), after, later)


def start(algo):
    """A fresh state whose copies were moved away, so that nobody can take one for the other."""
    return jax.jit(lambda key: algo.init(key, SPEC))(jax.random.key(0))


def moved(tree):
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
    assert np.allclose(pessimistic(values, 0.5), values.min(0)) and np.allclose(pessimistic(values, 0.0), values.mean(0))


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
    networks, target = start(algo).networks, moved(start(algo).target)
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
    algo = FB.preset("smoke", **TINY)
    networks = start(algo).networks
    settings = MeasureSettings(0.9, 0.5, 0.5, 1e-6, 0.3, 2.0)
    z, own = on_sphere(jax.random.normal(jax.random.key(3), (6, 4))), jnp.array([1.0, 0, 0, 1, 0, 0])
    loss, _ = actor_loss(jax.random.key(1), networks.policy, networks.forward, Tasks(z, own), batch, settings)
    action = jnp.tanh(networks.policy(jnp.concatenate([batch.state, z], -1)))
    q = (heads(networks.forward, batch.state, action, z) * double(z)).sum(-1).min(0)
    error = np.square(double(action - batch.action)).sum(-1)
    expected = -q.mean() / np.abs(q).mean() + 2.0 * 0.5 * (double(own) * error).mean()
    assert float(loss) == pytest.approx(expected, rel=1e-4)
    gradient = jax.grad(lambda f: actor_loss(jax.random.key(1), networks.policy, f, Tasks(z, own), batch, settings)[0])
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient(networks.forward))), "F is only looked at"


def test_the_losses_of_psm_by_hand(batch):
    algo = PSM.preset("smoke", **TINY, orthonormality=0.3, noise=1e-6)
    state = start(algo)
    target, code = moved(state.proto_target), jnp.array([0, 1, 77, 65535, 9, 1])
    loss, _ = jax.jit(algo.proto_loss)(state.proto, target, code, batch)
    action, bits = code_actions(code, batch.next_state, 1), code_bits(code)
    points = double(on_sphere(state.proto.basis(batch.next_state)))
    old = heads(target.forward, batch.next_state, action, bits) @ double(on_sphere(target.basis(batch.next_state))).T
    measures = heads(state.proto.forward, batch.state, batch.action, bits) @ points.T
    expected = by_hand(measures, old.mean(0), algo.discount) + 0.3 * apart_by_hand(points)
    assert float(loss) == pytest.approx(expected, rel=1e-4)

    forward_target = moved(state.forward_target)
    whole = Batch(batch, jnp.asarray(points, jnp.float32))
    loss, metrics = jax.jit(algo.policy_loss)(state.skills, forward_target, whole, jax.random.key(4))
    z = draw_tasks(jax.random.split(jax.random.key(4), 3)[0], whole.points, algo.state_share, None, 0.0).z
    action = jnp.tanh(state.skills.policy(jnp.concatenate([batch.next_state, z], -1)))
    old = heads(forward_target, batch.next_state, action, z) @ points.T
    measures = heads(state.skills.forward, batch.state, batch.action, z) @ points.T
    assert float(metrics["policy/measure"]) == pytest.approx(by_hand(measures, old.mean(0), algo.discount), rel=1e-4)
    assert float(loss) == pytest.approx(float(metrics["policy/measure"] + metrics["policy/actor"]), rel=1e-5)


# ---------------------------------------------------------------- tasks and codes


def test_tasks_are_on_the_sphere_and_are_what_their_shares_say():
    states, future = (on_sphere(jax.random.normal(jax.random.key(k), (4000, 3))) for k in (0, 1))
    tasks = draw_tasks(jax.random.key(2), states, 0.5, future, 0.25)
    assert np.allclose(np.linalg.norm(tasks.z, axis=1), np.sqrt(3), atol=1e-4)
    own = np.asarray(tasks.own) == 1.0
    assert own.mean() == pytest.approx(0.25, abs=0.03) and np.array_equal(tasks.z[own], future[own])
    known = {row.tobytes() for row in np.asarray(states)}
    from_data = np.array([row.tobytes() in known for row in np.asarray(tasks.z)])
    assert from_data[~own].mean() == pytest.approx(0.5, abs=0.03)
    assert not np.asarray(draw_tasks(jax.random.key(2), states, 0.5, None, 0.0).own).any()


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


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("method", [FB, PSM])
def test_settings(method):
    with pytest.raises(ConfigError, match="future_share"):
        method(bc_weight=0.1)
    with pytest.raises(ConfigError, match="state_share"):
        method(state_share=1.2)
    assert sum(phase.steps for phase in method().phases()) == 1_000_000
    assert [phase.steps for phase in PSM().phases()] == [250_000, 750_000]
