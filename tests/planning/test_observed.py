"""Observed edges: exact against brute force, and a one-way street is planned as one whatever the embedding says."""

import itertools

import numpy as np
import pytest

from iel.data import Trajectories
from iel.distances import Displacement, LatentGoal
from iel.errors import ConfigError
from iel.model.atlas import AT_JUMPS
from iel.planning import AsymGraph, Atlas, PlanningGraph, PlanningModel, SymGraph
from iel.planning.observed import assign, passages, positions


def walks(generator, episodes=7, dimension=3):
    """Random walks of different lengths, side by side, with offsets."""
    lengths = generator.integers(3, 400, episodes)
    parts = [np.cumsum(0.2 * generator.standard_normal((n, dimension)), axis=0) for n in lengths]
    return np.concatenate(parts).astype(np.float32), np.concatenate([[0], np.cumsum(lengths)])


def brute_passages(nodes, offsets, window):
    """By the definition, pair of states by pair of states."""
    least = {}
    for begin, end in itertools.pairwise(offsets):
        for t in range(begin, end):
            for k in range(1, min(window, end - 1 - t) + 1):
                if nodes[t] != nodes[t + k]:
                    pair = int(nodes[t]), int(nodes[t + k])
                    least[pair] = min(k, least.get(pair, window))
    return least


@pytest.mark.parametrize("nodes", [5, 300, 900])
def test_every_state_finds_its_nearest_node(nodes):
    generator = np.random.default_rng(nodes)
    states, _ = walks(generator)
    points = np.concatenate([states, states + 5.0])[generator.choice(2 * len(states), nodes, replace=False)]
    points = points.astype(np.float64)
    squares = ((states[:, None, :].astype(np.float64) - points[None]) ** 2).sum(-1)
    assert np.array_equal(assign(states, points), squares.argmin(axis=1))


def test_states_far_from_their_neighbours_are_found_too():
    generator = np.random.default_rng(0)
    states = (10 * generator.standard_normal((500, 4))).astype(np.float32)  # jumps everywhere
    points = 10 * generator.standard_normal((400, 4))
    squares = ((states[:, None, :].astype(np.float64) - points[None]) ** 2).sum(-1)
    assert np.array_equal(assign(states, points), squares.argmin(axis=1))


@pytest.mark.parametrize("window", [1, 6, 40])
def test_passages_equal_those_of_the_definition(window):
    generator = np.random.default_rng(window)
    # Runs of equal nodes, as slow agents leave them; trajectories end anywhere.
    nodes = np.repeat(generator.integers(0, 12, 300), generator.integers(1, 6, 300))
    offsets = np.concatenate([[0], np.sort(generator.choice(np.arange(1, len(nodes)), 6, replace=False)), [len(nodes)]])
    found = passages(nodes, offsets, 12, window)
    expected = brute_passages(nodes, offsets, window)
    got = {(int(c) // 12, int(c) % 12): int(n) for c, n in zip(found.codes, found.steps, strict=True)}
    assert got == expected
    every = np.stack(np.meshgrid(np.arange(12), np.arange(12), indexing="ij"), -1).reshape(-1, 2)
    table = found.least(*every.T)
    assert all(table[n] == expected.get(tuple(pair), np.inf) for n, pair in enumerate(every.tolist()))


class Street(PlanningModel):
    """A street of states 0 .. 1 that is its own embedding; everyone walks to the right, except on the left half."""

    metric = Displacement(0.0, 1.0)

    def __init__(self):
        right = np.arange(0.0, 40.0, 1.0)
        left = right[20::-1]
        episodes = [np.stack([x, np.zeros_like(x)], 1) for x in (right, left, right + 0.0)]
        self.walks = Trajectories.from_episodes([(walk, np.zeros((len(walk) - 1, 1))) for walk in episodes], trust=True)

    def embed(self, observations):
        return np.asarray(observations, np.float64)

    def goals(self, states):
        return self.embed(states), np.tile([1.0, 0.0], (len(states), 1))


@pytest.mark.parametrize("planner", [AsymGraph, SymGraph])
def test_a_one_path_street_is_one_path(planner):
    street = Street()
    goal = np.array([5.0, 0.0])
    plain = planner(street, street.walks, nodes=40, neighbours=2, unobserved_cost=1)
    assert plain.graph.observed_edges is None
    plain.prepare(goal)
    assert plain.predicted_steps(np.array([30.0, 0.0])) == pytest.approx(25.0, abs=0.01)
    seen = planner(street, street.walks, nodes=40, neighbours=2, unobserved_cost=100.0)
    seen.prepare(goal)
    # 15 hops that were seen, 10 (from 30 to 20) that were not: expensive in the search, no longer than they are
    start, latent = np.array([30.0, 0.0]), LatentGoal(goal, np.array([1.0, 0.0]), goal)
    assert seen.graph.field(latent).distance.max() > 15 + 10 * 100
    assert seen.predicted_steps(start) == pytest.approx(25.0, abs=0.01)
    seen.prepare(np.array([35.0, 0.0]))
    assert seen.predicted_steps(np.array([2.0, 0.0])) == pytest.approx(33.0, abs=0.01)
    share, components = seen.graph.observed_connectivity(latent)
    assert components == 20 and share < 1.0  # the left half, and every node of the right half alone
    gone = planner(street, street.walks, nodes=40, neighbours=2, unobserved_cost=np.inf, unreachable="direct")
    gone.prepare(goal)
    assert np.isinf(gone.predicted_steps(np.array([30.0, 0.0])))
    assert gone.predicted_steps(np.array([15.0, 0.0])) == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize("planner", [AsymGraph, SymGraph])
def test_costs_that_are_not_steps_have_observed_edges_too(planner):
    """No prediction says how many steps an edge should take: any passage within the window counts."""
    street, goal = Street(), LatentGoal(np.array([5.0, 0.0]), np.array([1.0, 0.0]), np.array([5.0, 0.0]))
    street.metric = Displacement(0.0, None)
    seen = planner(street, street.walks, nodes=40, neighbours=2, unobserved_cost=100.0)
    assert seen.graph.field(goal).distance.max() > 15 + 10 * 100
    assert seen.graph.observed_connectivity(goal)[1] == 20


def test_a_passage_slower_than_the_geometry_says_is_no_observed_edge():
    points = np.array([[0.0], [1.0], [50.0]])
    states = np.array([[0.0]] + [[50.0]] * 20 + [[1.0]], np.float32)
    observed = passages(assign(states, points), np.array([0, 22]), len(points))
    assert observed.least(np.array([0, 0, 1]), np.array([1, 2, 0])).tolist() == [21.0, 1.0, np.inf]
    assert observed.seen(np.array([0, 0]), np.array([1, 2]), np.array([1.0, 50.0])).tolist() == [False, True]
    assert observed.seen(np.array([0]), np.array([1]), np.array([7.0])).tolist() == [True]


def test_no_agent_walks_through_a_teleport():
    steps = np.full((2, 600, 2), 0.1)
    steps[:, 400:] = -0.1  # there and back: what only rises is a clock and no position
    steps[0, 300] = 500.0
    states = np.cumsum(steps, axis=1).astype(np.float32)
    data = Trajectories.from_episodes([(walk, np.zeros((599, 1))) for walk in states], trust=True)
    assert Atlas.of(data).walked().tolist() == [0, 300, 600, 1200]
    # So planners of policies that go to positions use observed edges by default; those of others do not.
    assert Atlas.of(data).penalty_for(None, (0, 1)) == AT_JUMPS > 1.0
    assert Atlas.of(data).penalty_for(1.0, (0, 1)) == Atlas.of(data).penalty_for(None) == 1.0
    steps[0, 300] = 0.1
    calm = np.cumsum(steps, axis=1).astype(np.float32)
    data = Trajectories.from_episodes([(walk, np.zeros((599, 1))) for walk in calm], trust=True)
    assert Atlas.of(data).penalty_for(None, (0, 1)) == 1.0


def test_a_graph_without_observed_edges_says_so_and_factors_are_checked():
    graph = PlanningGraph(np.arange(10.0)[:, None], Displacement(0.0))
    with pytest.raises(ConfigError, match="no observed edges"):
        graph.observed_connectivity(LatentGoal(np.zeros(1), np.ones(1)))
    street = Street()
    with pytest.raises(ConfigError, match="1 or more"):
        AsymGraph(street, street.walks, unobserved_cost=0.5)
    with pytest.raises(ConfigError, match="only states"):
        AsymGraph(street, street.walks.observations, unobserved_cost=10.0)


def test_a_robot_is_where_its_position_is_whatever_its_pose():
    observations = np.array([[9.0, 0.0], [5.0, 2.0], [1.0, 4.0]], np.float32)
    np.testing.assert_allclose(positions((1,), observations), observations[:, 1:] / observations[:, 1].std())
