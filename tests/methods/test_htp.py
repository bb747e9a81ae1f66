"""HTP: the programme's loss against float64 numpy, signs, batches, exact answers in small worlds, what it exports."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from algo_worlds import CIRCLE, SQUARE, fresh, grid, grid_steps, one_way, one_way_steps

from iel.data import Trajectories
from iel.data.goals import to_device
from iel.distances import FLOOR, SupportFunction
from iel.errors import ConfigError
from iel.learner import Spec
from iel.methods import HTP
from iel.methods.htp import ENTERED, LED, Batch, Networks, outcomes
from iel.model import load_model, save_model
from iel.policies import Waypoints
from iel.theory.calibration import spearman
from iel.training import train

TINY = {"hidden": (8,), "batch_size": 6, "dimension": 4}
PLANE = Waypoints(steps=1, columns=(0, 1))


def wide(array) -> np.ndarray:
    return np.asarray(array, np.float64)


def test_the_programme_pushes_goals_away_and_pays_for_steps_longer_than_one():
    """By hand; with the sign of the push or of the price turned round the number is another."""
    algo = HTP.preset("smoke", **TINY, push_offset=7.0, push_scale=0.5)
    network = jax.tree.map(lambda leaf: 3.0 * leaf, fresh(algo, Spec(2, 2, (0, 1)))["geometry"].network)
    networks = Networks(network, jnp.log(jnp.array(3.0)))
    rows, steps = jax.random.normal(jax.random.key(1), (24, 2)), jnp.array([1.0, 2.0, 3.0, 1.0, 2.0, 3.0])
    loss = jax.jit(jax.value_and_grad(algo.loss, has_aux=True))
    (whole, metrics), slope = loss(networks, None, Batch(rows, steps), jax.random.key(2))

    x, after, later, goal = np.split(wide(network(rows))[:, :4], 4)
    omega = wide(network(rows))[18:, 4:]
    value = np.array([(goal[i] - x[i]) @ omega[i] for i in range(6)])
    push = np.mean(3.5 * np.log1p(np.exp((7.0 - value) / 3.5)))
    far = lambda y, i: max((y[i] - x[i]) @ omega[j] for j in range(6))  # noqa: E731
    excess = np.mean([max(far(after, i) - 1.0, 0.0) ** 2 for i in range(6)])
    excess += np.mean([max(far(later, i) - float(steps[i]), 0.0) ** 2 / float(steps[i]) for i in range(6)])
    assert excess > 0.05 and float(metrics["geometry/loss"]) == pytest.approx(push + 3.0 * excess, rel=1e-4)
    assert float(whole) == pytest.approx(push + 3.0 * excess + 3.0 * (algo.epsilon - excess), rel=1e-4)
    assert float(metrics["geometry/excess"]) == pytest.approx(excess, rel=1e-4)
    assert float(slope.log_multiplier) == pytest.approx(3.0 * (algo.epsilon - excess), rel=1e-3), "the price alone"

    def paid(network):
        metrics = algo.loss(networks._replace(network=network), None, Batch(rows, steps), jax.random.key(2))[1]
        return metrics["geometry/push"] + 3.0 * metrics["geometry/excess"]

    # A shift of all phi changes nothing: that gradient is 0 to rounding.
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-2)  # noqa: E731
    jax.tree.map(close, slope.network, jax.jit(jax.grad(paid))(network))


def test_batches_stay_on_their_trajectory_and_goals_behind_are_behind():
    data = grid()
    arrays = to_device(data)
    offsets = np.asarray(data.offsets)
    find = lambda rows: np.searchsorted(offsets, rows, side="right")  # noqa: E731
    number = {row.tobytes(): index for index, row in enumerate(np.asarray(SQUARE, np.float32))}
    numbered = arrays._replace(observations=jnp.arange(data.num_states, dtype=jnp.float32)[:, None])
    assert len(number) == 25
    for shares, check in {
        (1.0, 0.0): lambda state, goal: (goal > state) & (find(goal) == find(state)),
        (0.0, 1.0): lambda state, goal: (goal <= state) & (goal >= state - 7) & (find(goal) == find(state)),
        (0.0, 0.0): lambda state, goal: np.ones(len(state), bool),
    }.items():
        algo = HTP.preset("smoke", batch_size=512, p_ahead=shares[0], p_behind=shares[1], behind_steps=7, max_steps=5)
        batch = algo.sample(jax.random.key(2), numbered, None)
        state, after, later, goal = np.split(np.asarray(batch.rows)[:, 0].astype(int), 4)
        steps = np.asarray(batch.steps).astype(int)
        assert (after == state + 1).all() and (find(after) == find(state)).all()
        assert (later == state + steps).all() and (find(later) == find(state)).all()
        assert steps.min() == 1 and steps.max() == 5
        assert check(state, goal).all()
    assert (goal[None] != state[:, None]).any() and len(np.unique(find(goal))) > 10, "random goals are anywhere"


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("world", "positions", "exact"), [(one_way, CIRCLE, one_way_steps()), (grid, SQUARE, grid_steps())]
)
def test_distances_are_shortest_steps_in_both_directions(world, positions, exact):
    """On a circle that is only ever walked one way the neighbour behind is seven steps away."""
    data = world()
    algo = HTP.preset("smoke", steps=4_000, push_offset=20.0, p_behind=0.2, policy=PLANE)
    model = train(data, algo, [0], progress=False).models[0]
    count = len(positions)
    first, second = np.nonzero(~np.eye(count, dtype=bool))
    steps = model.steps(positions[first], positions[second])
    assert spearman(steps, exact[first, second]) > 0.95  # many exact steps are equal
    assert np.median(steps / exact[first, second]) == pytest.approx(1.0, abs=0.25)
    along = model.displacement(positions[first], positions[second])
    assert spearman(along, exact[first, second]) > 0.9, "read along the goal's own direction"


def test_what_is_exported_keeps_values_and_measures_lengths_in_steps(tmp_path):
    data = grid()
    algo = HTP.preset("smoke", steps=20, policy=PLANE, landmarks=16)
    model = train(data, algo, [0], progress=False).models[0]
    metric = model.metric
    assert isinstance(metric, SupportFunction) and metric.discount == 1.0
    moment = metric.directions.T @ metric.directions / len(metric.directions)
    values = np.linalg.eigvalsh(moment)
    assert values.max() == pytest.approx(1.0, rel=0.02), "1 in every direction that the landmarks have, less elsewhere"
    lengths = np.linalg.norm(model.embed(data.observations[:50]) - model.embed(data.observations[50:100]), axis=1)
    moved = (model.embed(data.observations[50:100]) - model.embed(data.observations[:50])) @ metric.directions.T
    assert np.allclose(lengths, np.sqrt(np.square(moved).mean(axis=1)), rtol=0.05, atol=1e-3)
    x, y = data.observations[:200], data.observations[300:500]
    phi_x, phi_y = model.embed(x), model.embed(y)
    by_hand = np.max((phi_y - phi_x) @ metric.directions.T, axis=1)
    assert np.allclose(model.steps(x, y), np.maximum(by_hand, FLOOR), atol=1e-4)
    assert np.allclose(model.displacement(x, y), ((phi_y - phi_x) * model.omega(y)).sum(1), atol=1e-5)
    rows = data.transitions
    typical = np.median(model.steps(data.observations[rows], data.observations[rows + 1]))
    assert typical == pytest.approx(1.0, abs=0.05), "a step of the data is one step"
    save_model(model, tmp_path / "model")
    assert np.array_equal(load_model(tmp_path / "model").metric.directions, metric.directions)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"p_ahead": 0.7, "p_behind": 0.6}, "at most 1"),
        ({"push_scale": 0.0}, "push_scale is"),
        ({"policy": None}, "choose directions or waypoints"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        HTP(**settings)


# ---------------------------------------------------------------- teleports, in expectation


GAMBLE = {"cut_jumps": True, "expect_jumps": True, "policy": Waypoints(columns=(0,))}


def gambling(seed: int = 0) -> Trajectories:
    """A corridor of 40 steps with a teleport at its end, which leads to its beginning or 100 further on, by chance."""
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(60):
        there = np.arange(int(rng.integers(0, 30)), 41, dtype=np.float32)
        on = np.arange(0 if rng.random() < 0.5 else 140, 1000, dtype=np.float32)[:150]
        x = np.concatenate([there, on])
        states = np.column_stack([x, rng.normal(size=(len(x), 2)) * 0.1]).astype(np.float32)
        episodes.append((states, np.zeros((len(x) - 1, 1), np.float32)))
    return Trajectories.from_episodes(episodes, "gambling", trust=True)


def test_teleports_are_grouped_by_where_they_are_entered():
    data = gambling()
    found = outcomes(data, None)
    assert len(found.before) == len(data.jumps) >= 50 and found.alike.shape[1] == LED
    ends = np.asarray(found.after)[np.asarray(found.alike)][..., 0]
    assert set(np.unique(ends)) == {0.0, 140.0}, "both ends are seen from every entrance"
    assert np.abs((ends == 0.0).mean(1) - 0.5).max() < 0.2
    spec = HTP.preset("smoke", **GAMBLE).spec(data.cut(data.jumps), None, data)
    assert spec.teleports is not None
    plain = HTP.preset("smoke", **{**GAMBLE, "expect_jumps": False})
    assert plain.spec(data.cut(data.jumps), None, data).teleports is None


def test_a_teleport_is_bounded_by_where_it_goes_on_average():
    """By hand: c gains (max_g <mean phi(x') - phi(x), omega_g> - 1)_+^2. One lucky end does not count by itself."""
    algo = HTP.preset("smoke", **TINY)
    network = jax.tree.map(lambda leaf: 3.0 * leaf, fresh(algo, Spec(2, 2, (0, 1)))["geometry"].network)
    networks = Networks(network, jnp.zeros(()))
    rows, steps = jax.random.normal(jax.random.key(1), (24, 2)), jnp.ones(6)
    entered, left = jax.random.normal(jax.random.key(2), (3, 2)), jax.random.normal(jax.random.key(3), (3, 5, 2))
    alone = algo.loss(networks, None, Batch(rows, steps), jax.random.key(4))[1]["geometry/excess"]
    both = algo.loss(networks, None, Batch(rows, steps, entered, left), jax.random.key(4))[1]["geometry/excess"]
    omega = wide(network(rows))[18:, 4:]
    mean = wide(network(left.reshape(15, 2)))[:, :4].reshape(3, 5, 4).mean(1)
    progress = ((mean - wide(network(entered))[:, :4]) @ omega.T).max(1)
    assert (progress > 1.0).any()
    assert float(both - alone) == pytest.approx(np.mean(np.maximum(progress - 1.0, 0.0) ** 2), rel=1e-3)


def test_batches_have_the_same_states_with_and_without_teleports():
    data = gambling()
    algo = HTP.preset("smoke", **GAMBLE)
    cut = data.cut(data.jumps)
    spec, arrays = algo.spec(cut, None, data), to_device(cut)
    with_jumps = algo.sample(jax.random.key(0), arrays, algo.tables({}, arrays, spec))
    without = algo.sample(jax.random.key(0), arrays, None)
    assert np.array_equal(with_jumps.rows, without.rows) and without.entered is None
    assert with_jumps.left.shape == (ENTERED, LED, 3) and (np.asarray(with_jumps.entered)[:, 0] == 40.0).all()
