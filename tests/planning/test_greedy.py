"""The planner without a search: Bellman's equation on exact distances, its definition on any others."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning_worlds import LinearModel, corridor

from iel.commands.common import PlannerSettings
from iel.data import Trajectories
from iel.distances import Metric, SupportFunction
from iel.errors import ConfigError, GeometryError
from iel.model import Direction
from iel.planning import Atlas, Greedy, Mixture, PlanningModel, make_planner, planners_for, usual_planners
from iel.theory.builders import moving
from iel.theory.programming import fewest_steps


class Table(PlanningModel):
    """phi of whole numbers, looked up, and omega = the goal's own landmark."""

    def __init__(self, features: np.ndarray, metric: Metric):
        self.features, self.metric = np.asarray(features, np.float32), metric

    def embed(self, observations):
        return self.features[np.asarray(observations)[:, 0].astype(int)]

    def goals(self, states):
        return self.embed(states), np.zeros((len(states), self.features.shape[1]), np.float32)

    def command(self, observations, target, embeddings):
        return Direction().command(self, observations, target, embeddings)

    def act(self, observations, commands, generator=None):
        return np.asarray(commands, np.float32)[:, :2]


def states(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)[:, None]


def one_way_square() -> np.ndarray:
    """The fewest steps of a 5 x 5 grid in which every row leads to the right only, but for the outer ones."""
    x, y = np.arange(25) % 5, np.arange(25) // 5
    right, left = np.where(x < 4, x + 1, x), np.where((x > 0) & np.isin(y, (0, 4)), x - 1, x)
    down, up = np.minimum(y + 1, 4), np.maximum(y - 1, 0)
    return fewest_steps(moving(np.stack([y * 5 + right, y * 5 + left, down * 5 + x, up * 5 + x], axis=1)))


@pytest.mark.parametrize("reach", [1.0, 2.0, 3.0])
def test_with_exact_distances_every_route_is_a_shortest_path(reach: float):
    times = one_way_square()
    assert (times != times.T).any()
    planner = Greedy(Table(-times, SupportFunction(np.eye(25))), Atlas(states(25)), reach=reach)
    for goal in range(25):
        planner.prepare(states(25)[goal])
        for start in range(25):
            route = planner.path(states(25)[start])
            assert route.total == pytest.approx(times[start, goal], abs=0.01)
            assert planner.predicted_steps(states(25)[start]) == pytest.approx(times[start, goal], abs=0.01)
            legs = [start, *route.states, goal]
            assert sum(times[a, b] for a, b in pairwise(legs)) == times[start, goal]


def test_backups_are_value_iteration_over_the_nodes_within_reach():
    """None of them believes the long distances; many give shortest paths over nodes half a reach to a reach apart."""
    generator, reach = np.random.default_rng(2), 12.0
    features = generator.normal(size=(40, 3)).astype(np.float32) * 10.0
    metric, found = SupportFunction(generator.normal(size=(12, 3))), []
    for backups in (0, 1, 30):
        planner = Greedy(Table(features, metric), Atlas(states(40)), reach=reach, backups=backups)
        points = features[planner.states].astype(float)
        table = metric.costs(points, points, None)
        table = np.where((table >= reach / 2) & (table <= reach), table, np.inf)
        value = metric.costs(points, features[[4]].astype(float), None)[:, 0]
        for _ in range(backups):
            around = (table + value).min(axis=1)
            value = np.where((value > reach) & np.isfinite(around), around, value)
        useful = (value < value[:, None]) & (value[:, None] > reach) & np.isfinite(table)
        totals = np.where(useful, table + value, np.inf)
        expected = np.where(useful.any(axis=1), totals.argmin(axis=1), -1)
        found.append(planner.plan(states(40)[[4]]).pursuit.next_nodes[0])
        assert np.array_equal(found[-1], expected)
    assert not np.array_equal(found[0], found[1]) and not np.array_equal(found[1], found[2])


@given(st.integers(0, 2**32 - 1), st.sampled_from([2.0, 8.0, 100.0]))
@settings(max_examples=25, deadline=None)
def test_the_next_node_is_the_best_within_reach_and_routes_end(seed: int, reach: float):
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(40, 3)).astype(np.float32) * 10.0
    metric = SupportFunction(generator.normal(size=(12, 3)))
    planner = Greedy(Table(features, metric), Atlas(states(40)), reach=reach)
    order = planner.states
    table = metric.costs(features[order].astype(float), features[order].astype(float), None)
    goals = generator.choice(40, size=3, replace=False)
    pursuit = planner.plan(states(40)[goals]).pursuit
    for number, goal in enumerate(goals):
        left = metric.costs(features[order].astype(float), features[[goal]].astype(float), None)[:, 0]
        for node in range(40):
            near = [n for n in range(40) if reach / 2 <= table[node, n] <= reach and left[n] < left[node]]
            expected = -1
            if near and left[node] > reach:
                expected = min(near, key=lambda n: (table[node, n] + left[n], n))
            assert pursuit.next_nodes[number, node] == expected
        planner.prepare(states(40)[goal])
        assert len(planner.path(states(40)[seed % 40]).nodes) < 40, "d(n, g) falls along a route"


def test_it_walks_the_corridor_when_the_distance_knows_the_wall():
    """Steps along the corridor are exact, so the straight line through the wall costs what the detour does."""
    atlas = corridor(300)
    x, y = atlas.observations.T
    along = np.where(y == 0.0, x, np.where(y == 10.0, 50.0 - x, 20.0 + y))
    times = np.abs(along[:, None] - along[None])
    planner = Greedy(Table(-times, SupportFunction(np.eye(300))), Atlas(states(300)), reach=4.0)
    start, goal = int(along.argmin()), int(along.argmax())
    planner.prepare(states(300)[goal])
    route = planner.path(states(300)[start])
    assert x[route.states].max() > 19.0 and route.total == pytest.approx(times[start, goal], abs=0.1)
    assert planner.target(states(300)[start]).observation[0, 0] == route.states[0]


def test_it_needs_one_distance_for_all_goals():
    with pytest.raises(GeometryError, match="one distance in steps for all goals"):
        Greedy(LinearModel(beta=0.1), corridor())
    flat = LinearModel(beta=0.0)
    with pytest.raises(ConfigError, match="reach is 0"):
        Greedy(flat, corridor(), reach=0.0)
    with pytest.raises(ConfigError, match="backups is -1"):
        Greedy(flat, corridor(), backups=-1)
    assert "greedy" not in planners_for(LinearModel(beta=0.1)) and "greedy" in planners_for(flat)
    flat.algo = "ours"
    assert "greedy" not in usual_planners(flat) and "greedy" in usual_planners(flat, on_request=())


def test_a_node_stands_for_a_mixture_and_commands_set_the_reach():
    model, data = LinearModel(beta=0.0), corridor()
    planner = make_planner("greedy", model, data, nodes=100, reach=3.0)
    planner.prepare(Mixture(data.observations[:2]))
    assert np.isfinite(planner.plan([Mixture(data.observations[:2])]).goal_observations).all()
    few = Trajectories.from_episodes([(data.observations[:50], np.zeros((49, 2)))], "few")
    agent = PlannerSettings(reach=3.0, nodes=20).agent("greedy", model, few)
    assert agent.planner.reach == 3.0 and len(agent.planner.states) == 20
