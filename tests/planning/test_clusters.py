"""GAS's graph: which states are efficient, how they are clustered, and the paths over the clusters."""

import jax.numpy as jnp
import numpy as np
import pytest
from planning_worlds import LinearModel, corridor

from iel.data import Trajectories
from iel.distances import Displacement, LatentGoal
from iel.errors import ConfigError, GeometryError
from iel.methods.gas import first_beyond as on_device
from iel.planning import GasGraph, make_planner, planners_for
from iel.planning.clusters import ClusterGraph, clusters, efficient, first_beyond, means
from iel.planning.graph import NO_HOP

EUCLIDEAN = Displacement(0.0)
START, END = np.array([1.0, 0.0], dtype=np.float32), np.array([1.0, 10.0], dtype=np.float32)


def wander(seed: int = 0, lengths: tuple[int, ...] = (60, 35, 3)) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    points = np.concatenate([np.cumsum(rng.normal(size=(length, 2)), axis=0) for length in lengths])
    return points, np.repeat(np.cumsum(lengths) - 1, lengths)


def test_the_first_state_beyond_is_the_first_on_the_device_too():
    points, final = wander()
    for reach in (0.5, 3.0, 1e6):
        found = first_beyond(points, final, reach)
        for i in range(len(points)):
            later = range(i + 1, final[i] + 1)
            far = [j for j in later if np.linalg.norm(points[j] - points[i]) >= reach]
            assert found[i] == (far[0] if far else final[i])
        device = on_device(jnp.asarray(points, jnp.float32), jnp.asarray(final), reach, block=16)
        assert np.array_equal(device, found)


def test_straight_paths_are_efficient_and_detours_are_not():
    """The paper's filter: constant speed on a line passes; a loop that comes back, and standing still, do not."""
    line = np.column_stack([np.arange(40.0), np.zeros(40)])
    assert efficient(line, np.full(40, 39), 4.0, 0.99).all()
    loop = np.concatenate([line[:10], [[9, 1], [8, 1], [7, 1], [7, 0.5], [8, 0.5], [9, 0.5]], line[10:30]])
    retained = efficient(loop, np.full(len(loop), len(loop) - 1), 4.0, 0.99)
    assert retained[:5].all() and retained[-12:].all() and not retained[8:12].any()
    still = np.concatenate([np.zeros((10, 2)), line[1:]])
    assert not efficient(still, np.full(len(still), len(still) - 1), 4.0, 0.99)[:5].any()
    assert efficient(loop, np.full(len(loop), len(loop) - 1), 4.0, -1.0).all()
    backwards = -line
    assert efficient(backwards, np.full(40, 39), 4.0, 0.99).all(), "where to does not matter"


@pytest.mark.parametrize("block", [7, 1024])
def test_clusters_are_those_of_one_pass_in_order(block, monkeypatch):
    monkeypatch.setattr("iel.planning.clusters.BLOCK", block)
    points = np.random.default_rng(3).normal(size=(150, 2)) * 3
    owner = clusters(EUCLIDEAN, points, 1.5)
    centres: list[np.ndarray] = []
    for i, point in enumerate(points):
        gaps = [np.linalg.norm(point - centre) for centre in centres]
        if not gaps or min(gaps) > 1.5:
            centres.append(point)
            gaps.append(0.0)
        assert owner[i] == int(np.argmin(gaps)), i
    nodes, members = means(points, owner)
    for cluster in range(len(centres)):
        own = np.flatnonzero(owner == cluster)
        assert np.allclose(nodes[cluster], points[own].mean(axis=0)) and owner[members[cluster]] == cluster
        gaps = np.linalg.norm(points[own] - nodes[cluster], axis=1)
        assert np.linalg.norm(points[members[cluster]] - nodes[cluster]) == pytest.approx(gaps.min())


def test_every_node_reaches_the_goal_also_over_gaps():
    """Two islands: edges no longer than the reach within them, one gap between them, by the shortest pair."""
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.uniform(0, 6, (40, 2)), rng.uniform(0, 6, (40, 2)) + np.array([20.0, 0.0])])
    graph = ClusterGraph(points, EUCLIDEAN, 3.0)
    goal = LatentGoal(np.array([25.0, 3.0]), np.eye(2)[0])
    edges, field = graph.edges(goal), graph.field(goal)
    between = np.linalg.norm(points[:40, None] - points[None, 40:], axis=-1)
    long = edges.cost > 3.0
    crossing = (edges.source < 40) != (edges.target < 40)
    assert crossing.sum() == 2 and (edges.cost[crossing] == pytest.approx(between.min())) and crossing[long].any()
    inside = np.linalg.norm(points[:, None] - points[None], axis=-1)
    assert (edges.cost <= 3.0).sum() == ((inside <= 3.0) & (inside > 0)).sum()
    assert np.isfinite(field.distance).all() and (field.next_hop[:-1] != NO_HOP).all()
    node, length = 0, 0.0
    while node != graph.count:
        onward = int(field.next_hop[node])
        length += np.linalg.norm(points[node] - (goal.point if onward == graph.count else points[onward]))
        node = onward
    assert length == pytest.approx(field.distance[0])


def drive(planner, start: np.ndarray, steps: int) -> np.ndarray:
    state = start
    for _ in range(steps):
        state = (state + 0.5 * planner.act(state)).astype(np.float32)
    return state


def test_it_goes_around_the_corridor_and_succeeds():
    model, data = LinearModel(beta=0.0), corridor()
    planner = GasGraph(model, data, reach=2.0)
    planner.prepare(END)
    route = planner.path(START)
    assert route.observations[:, 0].max() > 18.0, "around the corridor"
    assert np.linalg.norm(drive(planner, START, 150) - END) < 1.0
    planner.prepare(END)
    assert planner.predicted_steps(START) == pytest.approx(route.total, rel=1e-6)
    assert route.costs.sum() == pytest.approx(planner.prepared.costs(model.embed(START[None]))[0])
    assert len(route.costs) == len(route.nodes) + 1
    assert "gas-graph" in planners_for(model)
    assert make_planner("gas-graph", model, data, reach=2.0).graph.count == planner.graph.count


def test_what_it_heads_for_is_the_furthest_node_within_reach_and_near_the_goal_the_goal():
    model = LinearModel(beta=0.0)
    planner = GasGraph(model, corridor(), reach=2.0)
    planner.prepare(END)
    pursuit = planner.prepared.pursuit
    here = np.asarray(model.embed(START[None]), np.float64)
    target = planner.target(START)
    assert not target.is_goal[0] and np.linalg.norm(target.point - here) <= 2.0
    route = planner.path(START)
    away = np.linalg.norm(planner.graph.points[route.nodes] - here, axis=1)
    assert np.array_equal(target.point[0], planner.graph.points[route.nodes[np.flatnonzero(away <= 2.0)[-1]]])
    near = END + np.float32([0.3, 0.0])
    assert planner.target(near).is_goal[0]
    assert planner.target(START).is_goal[0], "from then on the goal is pursued for the rest of the episode"
    planner.prepare(END)
    assert not planner.target(START).is_goal[0]
    lost = here + 500.0
    matched, lengths = pursuit.match(lost, np.array([0]), np.array([-1]))
    assert matched[0] == lengths[0].argmin(), "out of reach of everything: the nearest node"
    assert pursuit.match(lost, np.array([0]), np.array([3]))[0][0] == 3, "or the one of last time"


def test_trajectories_are_filtered_and_states_without_any_are_stored():
    rng = np.random.default_rng(0)
    line = np.column_stack([np.linspace(0, 20, 200), np.zeros(200)])
    noise = rng.normal(size=(200, 2)) * [0.2, 0.2] + [10.0, 5.0]
    data = Trajectories.from_episodes([(line, np.zeros((199, 1))), (noise, np.zeros((199, 1)))], "both", trust=True)
    model = LinearModel(beta=0.0)
    planner = GasGraph(model, data, reach=3.0, efficiency=0.95)
    assert len(planner.retained) < 300 and (planner.states < 200).sum() > (planner.states >= 200).sum()
    assert len(GasGraph(model, corridor(), reach=3.0).retained) == len(corridor().observations)


def test_what_is_refused():
    model, data = LinearModel(), corridor()
    with pytest.raises(ConfigError, match="reach"):
        GasGraph(model, data, reach=0.0)
    with pytest.raises(ConfigError, match="pool"):
        GasGraph(model, data, pool=0)
    model.metric = None
    with pytest.raises(GeometryError, match="no embedding"):
        GasGraph(model, data)
