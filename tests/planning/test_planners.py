"""Planners: many goals at once, goal sets, obstacles known only now, and never a NaN."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from planning_worlds import LinearModel, corridor

from benchmarks import reference
from iel.distances import Displacement, LatentGoal, directed_cost, lengths_between
from iel.errors import ConfigError, GeometryError, NoPath
from iel.model.atlas import rows_before
from iel.planning import (
    AsymGraph,
    Atlas,
    Direct,
    Memory,
    Mixture,
    Planner,
    RecMid,
    Region,
    Sequence,
    SymGraph,
    make_planner,
    planners_for,
)
from iel.planning.midpoints import smallest_columns
from iel.planning.planners import AlongGraph
from model_worlds import made

START, END = np.array([1.0, 0.0], dtype=np.float32), np.array([1.0, 10.0], dtype=np.float32)
BEND = np.array([20.0, 5.0], dtype=np.float32)


@pytest.fixture(scope="module")
def model() -> LinearModel:
    return LinearModel()


@pytest.fixture()
def planner(model: LinearModel) -> AsymGraph:
    return AsymGraph(model, corridor(), nodes=120)


def everyone(model: LinearModel) -> list[Planner]:
    small = {"sym-graph": {"nodes": 60}, "asym-graph": {"nodes": 60}}
    return [make_planner(name, model, corridor(200), **small.get(name, {})) for name in planners_for(model)]


def walk(planner: Planner, model: LinearModel, state: np.ndarray, steps: int = 300) -> np.ndarray:
    """Let the policy move half a unit a step along the direction it is given."""
    states = [state]
    for _ in range(steps):
        states.append((states[-1] + 0.5 * planner.act(states[-1])).astype(np.float32))
    return np.array(states)


def test_the_graph_goes_around_the_corridor_where_the_straight_path_is_a_wall(model: LinearModel) -> None:
    for planner in (AsymGraph(model, corridor(), nodes=120), SymGraph(model, corridor(), nodes=120)):
        planner.prepare(END)
        path = planner.path(START)
        assert path.observations[:, 0].max() > 19.0
        assert path.total > 40.0
        visited = walk(planner, model, START)
        assert visited[:, 0].max() > 18.0, "the walk goes through the bend"
        assert np.linalg.norm(visited[-1] - END) < 1.0, "and reaches the goal"
    direct = Direct(model, corridor())
    direct.prepare(END)
    assert walk(direct, model, START)[:, 0].max() < 5.0


def test_a_path_explains_itself(planner: AsymGraph) -> None:
    planner.prepare(END)
    path = planner.path(START)
    assert np.array_equal(path.observations, planner.observations[path.states])
    assert np.array_equal(planner.states[path.nodes], path.states)
    assert len(path.costs) == len(path.nodes) + 1
    assert (path.costs > 0.0).all()
    assert path.total == pytest.approx(planner.predicted_steps(START))
    assert path.steps_to_go[0] == pytest.approx(path.total)
    assert path.steps_to_go[-1] == pytest.approx(path.costs[-1])
    near = planner.path(END)
    assert len(near.nodes) == 0 and near.total == pytest.approx(planner.predicted_steps(END))


def test_many_goals_prepared_together_are_the_same_goals_prepared_alone(model: LinearModel) -> None:
    states = corridor(200).observations
    goals, here = states[:25], model.embed(states[50:75])
    for planner in everyone(model):
        plan = planner.plan(goals)
        targets = plan.target(here)
        assert targets.point.shape == (25, 6) and targets.observation.shape == (25, 2)
        for episode in (0, 7, 24):
            planner.prepare(goals[episode])
            alone = planner.target(states[50 + episode])
            assert all(np.array_equal(mine[0], theirs[episode]) for mine, theirs in zip(alone, targets, strict=True))
        rows = np.array([3, 20])
        assert np.array_equal(plan.target(here[rows], rows=rows).point, targets.point[rows])
        assert np.allclose(np.linalg.norm(model.command(states[50:75], targets, here), axis=1), 1.0)


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1, 0.5, 1.0]))
@settings(max_examples=25, deadline=None)
def test_matching_from_memory_is_matching_from_scratch(seed: int, beta: float) -> None:
    """Along random walks with jumps, the node is always argmin_i d(x, x_i; g)."""
    generator = np.random.default_rng(seed)
    model = LinearModel(beta=beta)
    planner = AsymGraph(model, corridor(150, seed=seed % 1000), nodes=50, neighbours=5)
    plan = planner.plan(corridor(5, seed=seed % 997).observations)
    pursuit, memory = plan.pursuit, Memory(len(plan))
    assert isinstance(pursuit, AlongGraph)
    states = 20.0 * generator.random((5, 2))
    for step in range(12):
        states = states + (8.0 if step % 5 == 4 else 0.3) * generator.normal(size=states.shape)
        embedded = model.embed(states).astype(np.float64)
        plan.target(embedded, memory)
        for episode in range(5):
            field = pursuit.fields[plan.only[episode]]
            node = reference.current_node(planner.graph.points, embedded[episode], field.goal.direction, beta)
            costs = directed_cost(
                lengths_between(embedded[[episode]], planner.graph.points)[0],
                planner.graph.points @ field.goal.direction - embedded[episode] @ field.goal.direction,
                beta,
            )
            assert memory.nodes[episode] == node or costs[memory.nodes[episode]] == pytest.approx(
                costs[node], rel=1e-12
            )


def test_the_target_lies_as_far_ahead_as_requested_on_the_same_path(model: LinearModel) -> None:
    near, far = (AsymGraph(model, corridor(), nodes=120, lookahead=away) for away in (0.0, 6.0))
    for planner in (near, far):
        planner.prepare(END)
    route = near.path(START)
    np.testing.assert_array_equal(far.path(START).nodes, route.nodes)  # it heads elsewhere, but plans the same
    heading = [planner.target(START).observation[0] for planner in (near, far)]
    targets = [int(np.flatnonzero((route.observations == state).all(axis=1))[0]) for state in heading]
    costs = np.cumsum(route.costs[1:-1])  # from the first node to every later one
    assert targets[0] == 0 and targets[1] == 1 + int(np.argmax(costs >= 6.0)) > 1
    far.switch_off(edges=[(int(far.graph.count) - 1, 0)])  # a straight line might cross what is closed: the next node
    paper = AsymGraph(model, corridor(), nodes=120, join="nearest")
    paper.prepare(END)
    np.testing.assert_array_equal(far.target(START).observation[0], paper.target(START).observation[0])
    far.switch_on()
    far.prepare(START + np.float32(1.0))  # the goal is nearer than that: head for it
    assert far.target(START).is_goal.all()


def test_positions_decide_how_far_ahead_a_target_is_where_the_policy_is_conditioned_by_them() -> None:
    model = made("waypoint")
    model.conditioning = structs.replace(model.conditioning, reach=0.5)
    states = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    planner, blunt = (AsymGraph(model, Atlas(states), nodes=64, **extra) for extra in ({}, {"lookahead": 0.0}))
    assert planner.lookahead == 0.5 and blunt.lookahead == 0.0
    pursuit, plain = (one.plan(states[:1]).pursuit for one in (planner, blunt))
    node_positions = model.target_spec.positions(states[planner.states])
    for node, hop in enumerate(plain.heads[0]):
        target, route = pursuit.fields[0].beyond(node, 0.5, node_positions), [hop]
        while route[-1] != target:
            route.append(int(plain.heads[0, route[-1]]))
        gaps = np.linalg.norm(node_positions[route] - node_positions[node], axis=1) if -1 not in route else None
        assert gaps is None or (gaps[-1] >= 0.5 and (gaps[:-1] < 0.5).all())


def test_a_state_on_its_goal_gets_a_finite_unit_direction(model: LinearModel) -> None:
    for planner in everyone(model):
        for state in (planner.observations[0], np.zeros(2, dtype=np.float32)):
            planner.prepare(state)
            assert np.isfinite(planner.act(state)).all()
            target, here = planner.target(state), model.embed(state[None])
            assert np.linalg.norm(model.command(state[None], target, here)) == pytest.approx(1.0)
        duplicates = Atlas(np.zeros((5, 2), dtype=np.float32))
        lonely = type(planner)(model, duplicates)
        lonely.prepare(np.zeros(2))
        assert np.isfinite(lonely.act(np.zeros(2))).all()


def test_a_region_pursues_whichever_state_is_cheapest(planner: AsymGraph) -> None:
    near, far = np.array([4.0, 0.0], dtype=np.float32), END
    costs = []
    for goal in (near, far):
        planner.prepare(goal)
        costs.append(planner.predicted_steps(START))
    planner.prepare(Region(np.stack([far, near])))
    assert planner.predicted_steps(START) == pytest.approx(min(costs))
    planner.prepare(Region([near]))
    alone = planner.target(START).point
    planner.prepare(Region([far, near]))
    assert np.array_equal(planner.target(START).point, alone)
    assert planner.predicted_steps(END) < 2.0


def test_a_mixture_is_the_weighted_mean_embedding(planner: AsymGraph, model: LinearModel) -> None:
    states = np.stack([START, BEND])
    planner.prepare(Mixture(states, [1.0, 0.0]))
    only = planner.target(END).point
    planner.prepare(START)
    assert np.allclose(planner.target(END).point, only)
    planner.prepare(Mixture(states, [3.0, 1.0]))
    mean = 0.75 * model.embed(states)[0] + 0.25 * model.embed(states)[1]
    assert np.allclose(planner.prepared.pursuit.points[0], mean, atol=1e-5)
    assert np.linalg.norm(planner.prepared.pursuit.directions[0]) == pytest.approx(1.0)


def test_a_sequence_visits_its_goals_in_order(model: LinearModel) -> None:
    for planner in (AsymGraph(model, corridor(), nodes=120), Direct(model, corridor())):
        planner.prepare(Sequence([BEND, Region([START, START]), END], within=1.0))
        assert len(planner.path(START).stages) == 3
        visited = walk(planner, model, np.array([15.0, 0.0], dtype=np.float32), steps=400)
        reached = [int(np.argmax(np.linalg.norm(visited - goal, axis=1) < 1.2)) for goal in (BEND, START)]
        assert 0 < reached[0] < reached[1]
        assert np.linalg.norm(visited[-1] - END) < 1.2
        assert planner.controller.memory.stages[0] == 2
        assert len(planner.path(END).stages) == 1


def test_mixed_goal_specs_run_side_by_side(planner: AsymGraph, model: LinearModel) -> None:
    plan = planner.plan([END, Region([START, END]), Mixture([START, END]), Sequence([BEND, END])])
    here = model.embed(np.repeat(START[None, :], 4, axis=0))
    target = plan.target(here)
    planner.prepare(END)
    assert np.array_equal(target.point[0], planner.target(START).point[0])
    assert np.isfinite(target.observation).all(), "for a mixture, its nearest node stands"
    assert plan.costs(here)[1] < plan.costs(here)[0]


def test_switched_off_nodes_are_avoided_and_replanning_is_exact(planner: AsymGraph) -> None:
    planner.prepare(END)
    before = planner.path(START)
    off = before.nodes[len(before.nodes) // 2]
    planner.switch_off([off])
    after = planner.path(START)
    assert off not in after.nodes
    assert after.total >= before.total * (1.0 - 1e-12)
    fresh = planner.graph.field(planner.prepared.pursuit.goals[0], nodes_off=np.arange(planner.graph.count) == off)
    assert np.isinf(fresh.distance[off])
    planner.switch_on()
    assert np.array_equal(planner.path(START).nodes, before.nodes)


def test_switched_off_edges_are_avoided(planner: AsymGraph) -> None:
    planner.prepare(END)
    before = planner.path(START)
    edge = (int(before.nodes[2]), int(before.nodes[3]))
    planner.switch_off(edges=[edge])
    after = planner.path(START)
    assert edge not in set(zip(after.nodes[:-1].tolist(), after.nodes[1:].tolist(), strict=True))
    planner.switch_on()
    planner.switch_off(edges=[edge[::-1]], one_way=True)
    after = planner.path(START).nodes  # where something is switched off, it begins and ends at the nearest nodes
    assert np.array_equal(after[1:20], before.nodes[:19])


def test_a_wall_across_the_corridor_means_no_path_and_never_a_wrong_one(model: LinearModel) -> None:
    planner = AsymGraph(model, corridor(), nodes=120)
    planner.prepare(END)
    hit = planner.switch_off_near(BEND[None, :], radius=4.0)
    assert len(hit) > 3
    with pytest.raises(NoPath, match="No path leads to the goal"):
        planner.act(START)
    with pytest.raises(NoPath, match="No path leads to the goal"):
        planner.path(START)
    assert planner.predicted_steps(START) == np.inf
    assert np.isfinite(planner.act(np.array([4.0, 10.0]))).all(), "on the goal's side the path is free"
    planner.prepare(Region([END, np.array([4.0, 0.0])]))
    assert planner.path(START).total < 10.0, "a region falls back on the state that can be reached"
    planner.switch_off(range(planner.graph.count - 1))
    with pytest.raises(NoPath, match="Every node is switched off"):
        planner.switch_off([planner.graph.count - 1])
    blind = AsymGraph(model, corridor(), nodes=120, unreachable="direct")
    blind.prepare(END)
    blind.switch_off_near(BEND[None, :], radius=4.0)
    assert np.allclose(blind.target(START).point, model.embed(END[None, :])[0])


def test_replanning_keeps_the_stage_of_a_sequence(planner: AsymGraph) -> None:
    planner.prepare(Sequence([START, END], within=2.0))
    planner.target(START)
    assert planner.controller.memory.stages[0] == 1
    planner.switch_off([int(planner.path(START).nodes[3])])
    assert planner.controller.memory.stages[0] == 1


def test_recent_goals_are_remembered(planner: AsymGraph) -> None:
    first = planner.plan([END]).pursuit.fields[0]
    assert planner.plan([START, END]).pursuit.fields[1] is first
    planner.switch_off([0])
    assert planner.plan([END]).pursuit.fields[0] is not first


def test_equal_goals_share_one_search(planner: AsymGraph) -> None:
    plan = planner.plan(np.repeat(END[None, :], 50, axis=0))
    assert len(plan) == 50 and len(plan.pursuit.fields) == 1


def test_the_symmetric_planner_is_the_euclidean_graph(model: LinearModel) -> None:
    planner = SymGraph(model, corridor(), nodes=60)
    assert planner.graph.metric == Displacement(0.0, planner.graph.metric.discount)
    field = planner.graph.field(LatentGoal(planner.graph.points[5], np.eye(6)[0]))
    back = planner.graph.field(LatentGoal(planner.graph.points[9], np.eye(6)[0]))
    assert field.distance[9] == pytest.approx(back.distance[5])
    with pytest.raises(ConfigError, match="beta = 0"):
        SymGraph(model, corridor(), beta=0.3)


def test_recursive_midpoints_halve_the_path(model: LinearModel) -> None:
    line = Atlas(np.column_stack([np.linspace(0.0, 64.0, 2000), np.zeros(2000)]).astype(np.float32))
    planner = RecMid(model, line, rounds=3, average=5)
    planner.prepare(np.array([64.0, 0.0]))
    eighth = model.embed(np.array([[8.0, 0.0]]))[0]
    assert np.allclose(planner.target(np.zeros(2)).point, eighth, atol=0.2)
    assert np.allclose(planner.target(np.zeros(2)).observation, [8.0, 0.0], atol=0.2), (
        "a state of the data stands for it"
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 50), st.booleans())
@settings(max_examples=60, deadline=None)
def test_guessing_a_bound_finds_the_smallest_entries_exactly(seed: int, count: int, tied: bool) -> None:
    generator = np.random.default_rng(seed)
    table = generator.normal(size=(5, int(generator.integers(50, 3000))))
    table = np.round(table, 1) if tied else table
    if seed % 3 == 0:
        table.sort(axis=1)
    expected = np.argsort(table, axis=1, kind="stable")[:, :count]
    assert np.array_equal(smallest_columns(table, count), expected)


def test_the_pool_is_drawn_by_its_seed_without_replacement(model: LinearModel) -> None:
    data = corridor(400)
    first, second, other = (AsymGraph(model, data, nodes=50, pool=100, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.states, second.states)
    assert not np.array_equal(first.states, other.states)
    assert len(np.unique(first.states)) == 50
    assert len(AsymGraph(model, data, nodes=200, pool=100).states) == 200, "the pool grows to the number of nodes"


def test_names_and_settings_that_do_not_exist_are_refused(model: LinearModel) -> None:
    with pytest.raises(ConfigError, match="did you mean asym-graph"):
        make_planner("asymgraph", model, corridor(20))
    with pytest.raises(ConfigError, match="no such setting"):
        make_planner("direct", model, corridor(20), nodes=3)
    with pytest.raises(GeometryError, match="only 20 states"):
        AsymGraph(model, corridor(20), nodes=21)
    with pytest.raises(GeometryError, match="distinct"):
        AsymGraph(model, Atlas(np.zeros((20, 2), dtype=np.float32)), nodes=5)
    wrong = (
        {"lookahead": -1.0},
        {"unreachable": "hope"},
        {"pool": 0},
        {"coreset": "best"},
        {"beta": -1},
    )
    for settings_ in wrong:
        with pytest.raises(ConfigError):
            AsymGraph(model, corridor(20), **settings_)
    with pytest.raises(GeometryError, match="some rows"):
        Direct(model, Atlas(np.empty((0, 2))))


def test_bad_goals_and_observations_are_refused_in_a_sentence(planner: AsymGraph, model: LinearModel) -> None:
    for call in (planner.target, planner.act, planner.path):
        with pytest.raises(ConfigError, match=r"call prepare\(goal\)"):
            call(START)
    bad: list[tuple[object, str]] = [
        (np.zeros(3), "have 2 numbers"),
        (np.array([np.nan, 0.0]), "non-finite"),
        ("kitchen", "not a table of numbers"),
        (np.zeros((2, 2)), "one observation"),
        (Region([]), "region of goals is empty"),
        (Sequence([]), "sequence of goals is empty"),
        (Mixture(np.zeros((2, 2)), [0.0, 0.0]), "not all zero"),
        (Mixture(np.zeros((2, 2)), [1.0, -1.0]), "non-negative"),
        (Mixture(np.zeros((2, 2)), [1.0]), "weights"),
    ]
    for goal, message in bad:
        with pytest.raises(GeometryError, match=message):
            planner.prepare(goal)
    with pytest.raises(ConfigError, match="within"):
        planner.prepare(Sequence([END], within=0.0))
    with pytest.raises(GeometryError, match="list of goals is empty"):
        planner.plan([])
    planner.prepare(END)
    with pytest.raises(GeometryError, match="have 2 numbers"):
        planner.act(np.zeros(5))
    with pytest.raises(GeometryError, match="non-finite"):
        planner.target(np.array([np.inf, 0.0]))
    with pytest.raises(GeometryError, match="need"):
        planner.plan([END]).target(np.zeros((2, 6)))
    with pytest.raises(GeometryError, match="episode 1 is not finite"):
        planner.plan([END, END]).target(np.array([[0.0] * 6, [np.nan] * 6]))
    with pytest.raises(ConfigError, match="Node 9999"):
        planner.switch_off([9999])


def test_a_broken_model_is_named(model: LinearModel) -> None:
    class Broken(LinearModel):
        def embed(self, observations: np.ndarray) -> np.ndarray:
            return np.full((len(observations), 6), np.nan)

    with pytest.raises(GeometryError, match="embeddings of the data"):
        AsymGraph(Broken(), corridor(20))
    direct = Direct(Broken(), corridor(20))
    with pytest.raises(GeometryError, match="non-finite embedding"):
        direct.prepare(END)


def test_planning_never_imports_jax() -> None:
    code = "import sys, iel.planning; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rows_that_go_on_are_all_of_them_or_drawn_evenly() -> None:
    offsets = np.array([0, 3, 30, 30, 41, 2000])  # one too short, one empty
    everyone = np.concatenate([np.arange(a, b - 10) for a, b in ((3, 30), (30, 41), (41, 2000))])
    np.testing.assert_array_equal(rows_before(offsets, 10, 5000), everyone)
    some = rows_before(offsets, 10, 500)
    assert len(set(some)) == 500 and set(some) <= set(everyone) and abs(np.mean(some) - np.mean(everyone)) < 60
    assert len(rows_before(offsets[:2], 10, 500)) == 0
