"""The one-way residual: the formula in three places, what it promises, and a street with no way back is learned."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iel.data import Trajectories
from iel.data.goals import to_device
from iel.distances import directed, rise
from iel.errors import ConfigError
from iel.methods import IEL, check_algo
from iel.methods.contract import Spec
from iel.metrics import DirectedResidual, LatentGoal
from iel.model import load_model, save_model
from iel.planning import make_planner, planners_for
from iel.training import train

TINY = IEL.preset("smoke", hidden=(16, 16), batch_size=32, dimension=4, residual=16)


def points(seed: int, count: int = 200) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    omega = rng.standard_normal(4)
    return *rng.standard_normal((3, count, 20)), np.append(omega / np.linalg.norm(omega), np.zeros(16))


def by_hand(source, target, omega, beta):
    delta = (target - source)[:, :4]
    length = np.linalg.norm(delta, axis=1)
    up = [sum(max(0.0, max(row[4 + 8 * g : 12 + 8 * g])) for g in range(2)) for row in target - source]
    return length * np.exp(beta * (1 - delta @ omega[:4] / length)) + np.array(up)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_the_formula_is_the_same_in_numpy_jax_and_for_planners(beta):
    source, target, _, omega = points(0)
    expected = by_hand(source, target, omega, beta)
    np.testing.assert_allclose(directed(source, target, omega, beta, 16), expected, rtol=1e-9)
    fast = jax.jit(lambda s, t: directed(s, t, jnp.asarray(omega), beta, 16))
    np.testing.assert_allclose(fast(source, target), expected, rtol=1e-4)
    metric, goal = DirectedResidual(16, beta), LatentGoal(target[0], omega)
    np.testing.assert_allclose(metric.row_costs(source, target, [goal] * len(source)), expected, rtol=1e-9)
    np.testing.assert_allclose(np.diag(metric.costs(source, target, goal)), expected, rtol=1e-9)


def test_the_triangle_inequality_holds_and_the_way_back_has_no_bound():
    first, second, third, omega = points(1, 2000)
    for beta in (0.0, 0.5, 1.0):
        there = directed(first, third, omega, beta, 16)
        over = directed(first, second, omega, beta, 16) + directed(second, third, omega, beta, 16)
        assert (there <= over + 1e-9).all()
    assert (rise(first[:, 4:], first[:, 4:]) == 0).all()
    high = first.copy()
    high[:, 4] += 1000.0  # up here it costs, down again it does not
    assert (directed(first, high, omega, 0.1, 16) > 900).all()
    assert (directed(high, first, omega, 0.1, 16) < 1).all()


def test_contract_settings_and_files(tmp_path):
    with pytest.raises(ConfigError, match="multiple of 8"):
        IEL(residual=12)
    state = TINY.init(jax.random.key(0), Spec(2, 2))
    model = TINY.model(state, Spec(2, 2))
    assert model.dimension == 20 and model.directions == 4
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    x, g = np.random.default_rng(0).standard_normal((2, 50, 2)).astype(np.float32)
    assert isinstance(again.metric, DirectedResidual)
    assert np.array_equal(again.steps(x, g), model.steps(x, g))
    # The metric of planners and the model's own answer agree.
    phi, omega = again.goals(g)
    goals = [LatentGoal(*row) for row in zip(phi, omega, strict=True)]
    np.testing.assert_allclose(again.metric.row_costs(again.embed(x), phi, goals), again.cost(x, g, g), rtol=1e-4)


def test_without_a_residual_nothing_changes():
    plain = dataclasses.replace(TINY, residual=0)
    state = plain.init(jax.random.key(0), Spec(2, 2))
    assert state.embedding.layers[-1].bias.shape[-1] == 4
    assert not hasattr(plain.model(state, Spec(2, 2)).metric, "residual")


def test_clusters_that_serve_all_goals_are_not_offered_with_a_residual():
    for residual, offered in ((0, True), (16, False)):
        algo = dataclasses.replace(TINY, residual=residual)
        model = algo.model(jax.tree.map(np.asarray, algo.init(jax.random.key(0), Spec(2, 2))), Spec(2, 2))
        assert ("gas-graph" in planners_for(model)) == offered


@pytest.mark.long
def test_contract():
    check_algo(dataclasses.replace(TINY, hidden=(16,), batch_size=16))


@pytest.mark.long
@pytest.mark.optimised
def test_a_ring_that_is_walked_one_way_is_learned_one_way(tmp_path):
    ring = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    walk = np.arange(61)
    episodes = [
        (np.stack([np.cos(ring[(s + walk) % 24]), np.sin(ring[(s + walk) % 24])], 1), np.ones((60, 1)))
        for s in range(0, 24, 2)
    ]
    data = Trajectories.from_episodes(episodes, trust=True)
    near = []
    for residual in (0, 16):
        method = IEL.preset(
            "smoke", steps=2500, omega_share=0.05, embedding_share=0.9, residual=residual, learner="cloning"
        )
        model = train(data, method, out=tmp_path / str(residual), progress=False).model
        states = np.stack([np.cos(ring), np.sin(ring)], 1).astype(np.float32)
        ahead, back = model.steps(states, np.roll(states, -4, 0)), model.steps(states, np.roll(states, 4, 0))
        near.append(float(np.median(back / ahead)))
    assert near[0] < 1.6 and near[1] > 2.5  # exact: 20 steps against 4
    planner = make_planner("asym-graph", model, data, nodes=24, neighbours=4)
    planner.prepare(states[0])
    assert planner.predicted_steps(states[4]) > 2 * planner.predicted_steps(states[20])


def test_the_batch_reads_phi_alone_for_hitting_times():
    data = to_device(Trajectories.from_episodes([(np.cumsum(np.ones((30, 2)), 0), np.ones((29, 2)))], trust=True))
    state = TINY.init(jax.random.key(0), Spec(2, 2))
    tables = TINY.tables("embedding", state, data)
    batch = TINY.sample("embedding", jax.random.key(1), data, tables)
    assert batch.omega.shape[-1] == 4
    _, metrics = TINY.embedding_loss(state.embedding, state.embedding_target, batch)
    raised = lambda bias: bias.at[..., 4:].add(3.0)  # noqa: E731  psi of every state alike
    moved = eqx.tree_at(lambda network: network.layers[-1].bias, state.embedding, replace_fn=raised)
    _, after = TINY.embedding_loss(moved, state.embedding_target, batch)
    assert after["embedding/hitting"] == metrics["embedding/hitting"]
    assert TINY.tables("policy", state, data).shape[-1] == 4
