"""Teleports: exact against value iteration over all nodes, found in the data, and an agent sent through them."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from iel.data import Trajectories
from iel.distances import Displacement
from iel.model import Waypoint
from iel.model.atlas import ObservedTeleports
from iel.planning import AsymGraph, PlanningModel
from iel.planning.graph import NO_HOP, Edges, search, teleport_search
from iel.planning.teleports import FEWEST, find_teleports

EXAMPLE = Path(__file__).parents[2] / "examples" / "two_rooms.py"


def random_world(seed, count=14, teleports=3):
    """A sparse graph in two halves without a path from the first to the second, and teleports with random exits."""
    generator = np.random.default_rng(seed)
    pairs = [(i, j) for i in range(count) for j in range(count) if i != j and (i < count // 2) == (j < count // 2)]
    retained = [pair for pair in pairs if generator.random() < 0.4]
    source, target = np.array(retained).T
    edges = Edges(source, target, generator.uniform(0.5, 3.0, len(retained)))
    entered = np.arange(2 * teleports) % teleports
    entries = np.unique(np.stack([generator.integers(0, count, 2 * teleports), entered]), axis=1)
    left = np.repeat(np.arange(teleports), 3)
    exits = np.concatenate([generator.choice(count, 3, replace=False) for _ in range(teleports)])
    shares = generator.dirichlet(np.ones(3), teleports).ravel()
    aims = np.zeros((teleports, 2))
    return edges, ObservedTeleports(aims, entries[0], entries[1], left, exits, shares)


def iterated(edges, count, node, teleports, entering, rounds=20_000):
    """V by its own equation, node by node, from below; what grows for ever is infinite."""
    values, walls = np.zeros(count), 500.0
    for _ in range(rounds):
        worth = np.bincount(teleports.left, teleports.shares * values[teleports.exits], len(teleports))
        after = np.full(count, np.inf)
        np.minimum.at(after, edges.source, edges.cost + values[edges.target])
        np.minimum.at(after, teleports.source, entering + worth[teleports.entered])
        after[node] = 0.0
        if np.allclose(after, values, rtol=1e-13, atol=0.0, equal_nan=True):
            break
        values = after
    return np.where(values > walls, np.inf, values)


@pytest.mark.parametrize("seed", range(12))
def test_expected_costs_solve_their_equation(seed):
    edges, teleports = random_world(seed)
    entering = np.random.default_rng(seed).uniform(0.1, 1.0, len(teleports.source))
    found, next_hop = teleport_search(edges, 14, 13, teleports, entering)
    expected = iterated(edges, 14, 13, teleports, entering)
    assert np.allclose(found, expected, rtol=1e-6)
    worth = np.bincount(teleports.left, teleports.shares * np.where(np.isfinite(found), found, 1e9)[teleports.exits])
    for node in np.flatnonzero(np.isfinite(found)):
        hop = next_hop[node]
        if node == 13:
            assert hop == NO_HOP
        elif hop < 14:
            edge = (edges.source == node) & (edges.target == hop)
            assert found[node] == pytest.approx(edges.cost[edge].item() + found[hop], rel=1e-6)
        else:
            entry = (teleports.source == node) & (teleports.entered == hop - 14)
            assert found[node] == pytest.approx(entering[entry].item() + worth[hop - 14], rel=1e-6)


def test_a_coin_that_is_tossed_until_it_falls_right():
    """1 from the start into the teleport; half of the time it leads beside the goal, 2 away, else back to the start:
    Q = (2 + 1 + Q) / 2, so Q = 3."""
    edges = Edges(np.array([1]), np.array([2]), np.array([2.0]))
    teleports = ObservedTeleports(np.zeros((1, 2)), *np.array([[0], [0]]), *np.array([[0, 0], [0, 1]]), [0.5, 0.5])
    distance, next_hop = teleport_search(edges, 3, 2, teleports, np.array([1.0]))
    assert distance == pytest.approx([4.0, 2.0, 0.0])
    assert next_hop.tolist() == [3, 2, NO_HOP]
    assert np.isinf(search(edges, 3, 2)[0][0])  # without it the goal cannot be reached


def test_a_teleport_that_may_end_in_a_dead_end_is_not_entered():
    edges = Edges(np.array([1]), np.array([2]), np.array([2.0]))
    exits = np.array([[0, 0], [1, 3]])  # node 3 has no way out
    teleports = ObservedTeleports(np.zeros((1, 2)), *np.array([[0], [0]]), *exits, np.array([0.99, 0.01]))
    distance, next_hop = teleport_search(edges, 4, 2, teleports, np.array([1.0]))
    assert np.isinf(distance[0]) and next_hop[0] == NO_HOP


class WaypointModel(PlanningModel):
    """The plane is its own embedding; the policy follows its command."""

    metric, conditioning = Displacement(0.0, 1.0), Waypoint((0, 1), (1.0, 1.0), reach=0.5)
    target_spec = conditioning.target_spec

    def embed(self, observations):
        return np.asarray(observations, np.float32)

    def goals(self, states):
        return self.embed(states), np.repeat(np.eye(2, dtype=np.float32)[:1], len(states), axis=0)

    def command(self, observations, target, embeddings):
        return self.conditioning.command(self, observations, target, embeddings)

    def act(self, observations, commands, generator=None):
        return np.asarray(commands, np.float32)


@pytest.fixture(scope="module")
def rooms():
    """The example's module: two rooms without a door, three pads that throw."""
    spec = importlib.util.spec_from_file_location("two_rooms", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def logs(rooms):
    return rooms.logs()


def test_teleports_are_found_with_their_shares(rooms, logs):
    nodes = logs.observations[::37].astype(np.float64)
    found = find_teleports(logs, [0, 1], np.ones(2), nodes)
    assert len(found) == len(rooms.PADS)
    for pad, across in rooms.PADS:
        away = np.linalg.norm(found.aims - pad, axis=1)
        assert away.min() < 0.4  # heading for it leads onto the pad
        exits = found.left == away.argmin()
        assert found.shares[exits].sum() == pytest.approx(1.0)
        assert found.shares[exits & (nodes[found.exits][:, 0] > 5.0)].sum() == pytest.approx(across, abs=0.1)


def test_few_jumps_are_no_teleport(logs):
    table = logs.observations.copy()
    calm = Trajectories(
        np.tile(np.linspace(0, 1, 400, dtype=np.float32)[:, None], (10, 2)),
        np.zeros((4000, 2), np.float32),
        np.arange(0, 4001, 400),
    )
    assert find_teleports(calm, [0, 1], np.ones(2), table[:10].astype(float)) is None
    moved = calm.observations.copy()
    for episode in range(FEWEST - 1):
        moved[400 * episode + 200 : 400 * (episode + 1)] += 5.0
    glued = Trajectories(moved, calm.actions, calm.offsets)
    assert find_teleports(glued, [0, 1], np.ones(2), table[:10].astype(float)) is None


def reached_shares(rooms, planner, episodes=20):
    room, reached = rooms.TwoRooms(), 0
    for episode in range(episodes):
        position, info = room.reset(seed=1000 + episode)
        planner.prepare(info["goal"])
        for _ in range(room.horizon):
            position, *_, info = room.step(planner.act(position))
            if info["success"]:
                reached += 1
                break
    return reached


def test_an_agent_gets_to_the_other_room_by_luck_alone(rooms, logs):
    planner = AsymGraph(WaypointModel(), logs, nodes=300)
    assert reached_shares(rooms, planner) == 20
    assert reached_shares(rooms, AsymGraph(WaypointModel(), logs, nodes=300, teleports=False)) < 15
    planner.prepare(np.array([6.5, 5.0], np.float32))
    route = planner.path(np.array([1.0, 3.0], np.float32))
    assert np.linalg.norm(route.observations[-1] - (3.0, 1.0)) < 1.0  # the better of the two pads
    assert planner.predicted_steps(np.array([1.0, 3.0], np.float32)) == pytest.approx(route.total, rel=1e-6)


def test_walking_is_preferred_where_it_is_shorter(logs):
    planner = AsymGraph(WaypointModel(), logs, nodes=300)
    planner.prepare(np.array([0.5, 0.5], np.float32))
    route = planner.path(np.array([2.0, 0.5], np.float32))
    assert route.total < 40 and np.linalg.norm(route.observations[-1] - (0.5, 0.5)) < 0.8
