"""Any metric and any conditioning: values over pairs, policies that are told the goal, units, and acting."""

import numpy as np
import pytest
from planning_worlds import LinearModel, corridor

from iel.data import Trajectories
from iel.distances import Displacement, LatentGoal, Metric, discounted_steps, undiscounted_steps
from iel.errors import ConfigError, GeometryError, NoPath
from iel.planning import (
    Acting,
    AsymGraph,
    Atlas,
    Controller,
    Direct,
    Edges,
    Mixture,
    PlanningGraph,
    RecMid,
    Region,
    Sequence,
    Target,
    make_planner,
    planners_for,
)
from iel.planning.coreset import farthest_point
from iel.planning.graph import around
from iel.planning.planners import AlongGraph

START, END = np.array([1.0, 0.0], dtype=np.float32), np.array([1.0, 10.0], dtype=np.float32)


class Manhattan(Metric):
    """A metric of a user's own: nothing is known about it but its costs."""

    discount = 1.0
    for_every_goal = True

    def costs(self, sources: np.ndarray, targets: np.ndarray, goal: LatentGoal) -> np.ndarray:
        return np.abs(sources[:, None] - targets[None]).sum(axis=-1)


def test_any_metric_will_do() -> None:
    model = LinearModel()
    planner = AsymGraph(model, corridor(), nodes=60, neighbours=5, metric=Manhattan())
    planner.prepare(END)
    assert planner.path(START).observations[:, 0].max() > 18.0
    assert np.isfinite(planner.act(START)).all() and np.isfinite(planner.act(START)).all()
    state = START
    for _ in range(150):
        state = (state + 0.5 * planner.act(state)).astype(np.float32)
    assert np.linalg.norm(state - END) < 2.0
    assert planner.path(START).total == pytest.approx(planner.predicted_steps(START))


class Conditioned(LinearModel):
    """A goal-conditioned policy: it is told the goal, and there are no distances."""

    def __init__(self) -> None:
        super().__init__()
        self.metric = None

    def embed(self, observations: np.ndarray) -> np.ndarray:
        return observations

    def goals(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return states, np.eye(2, dtype=np.float32)[np.zeros(len(states), int)]

    def command(self, observations: np.ndarray, target: Target, embeddings: np.ndarray) -> np.ndarray:
        return target.observation

    def act(self, observations: np.ndarray, commands: np.ndarray) -> np.ndarray:
        return commands - observations


def test_a_model_without_distances_is_only_pursued_directly() -> None:
    condition = Conditioned()
    assert planners_for(condition) == ("direct",)
    for name in ("rec-mid", "sym-graph", "asym-graph"):
        with pytest.raises(GeometryError, match=r"direct|only act"):
            make_planner(name, condition, corridor())
    direct = make_planner("direct", condition, corridor())
    direct.prepare(END)
    assert np.array_equal(direct.act(START), END - START), "the goal reaches the policy as it is"
    assert direct.target(START).is_goal[0]
    for call in (direct.predicted_steps, direct.path):
        with pytest.raises(GeometryError, match="no distances"):
            call(START)
    for goal in (Region([START, END]), Sequence([START, END])):
        with pytest.raises(GeometryError, match="single states"):
            direct.prepare(goal)
    with pytest.raises(GeometryError, match="mixture"):
        direct.prepare(Mixture(np.array([[100.0, 0.0], [0.0, 1.0]])))


class PairValue(Metric):
    """-V(s, t) = 2 |t - s| + 3 max(0, s_x - t_x): going back costs more. States are their own embedding."""

    discount = 0.99
    for_every_goal = True
    spatial = False

    def __init__(self) -> None:
        self.queries = 0

    def costs(self, sources: np.ndarray, targets: np.ndarray, goal: LatentGoal) -> np.ndarray:
        self.queries = max(self.queries, len(sources) * len(targets))
        ahead = targets[None] - sources[:, None]
        return discounted_steps(2.0 * np.linalg.norm(ahead, axis=-1) + 3.0 * np.maximum(0.0, -ahead[..., 0]), 0.99)


class Valued(Conditioned):
    def __init__(self) -> None:
        super().__init__()
        self.metric = PairValue()


def test_a_value_over_pairs_is_planned_with_on_one_graph_for_all_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows come in blocks, never all pairs at once; predictions are in steps, added up along the way."""
    monkeypatch.setattr("iel.planning.node_costs.BLOCK_ELEMENTS", 4000)
    valued = Valued()
    assert planners_for(valued) == ("direct", "sym-graph", "asym-graph")
    planner = AsymGraph(valued, corridor(), nodes=120, neighbours=5)
    planner.prepare(END)
    route = planner.path(START)
    assert route.observations[:, 0].max() > 18.0, "around the corridor"
    routes = np.concatenate([START[None], route.observations, END[None]])
    exact = discounted_steps(
        2.0 * np.linalg.norm(np.diff(routes, axis=0), axis=1) + 3.0 * np.maximum(0.0, -np.diff(routes[:, 0])), 0.99
    )
    assert np.allclose(route.costs, exact, rtol=1e-5)
    assert route.total == pytest.approx(undiscounted_steps(exact, 0.99).sum(), rel=1e-5)
    assert route.total == pytest.approx(planner.predicted_steps(START))
    assert valued.metric.queries <= 4000 + 120, "no table of all pairs"
    built = planner.graph.edges(planner.prepared.pursuit.goals[0])
    planner.prepare(START)
    assert planner.graph.edges(planner.prepared.pursuit.goals[0]) is built
    direct = Direct(valued, corridor())
    direct.prepare(np.array([4.0, 0.0], np.float32))
    assert direct.predicted_steps(START) == pytest.approx(6.0, rel=1e-4), "2 steps per unit, and no discount left in it"
    direct.prepare(START)
    assert direct.predicted_steps(np.array([4.0, 0.0], np.float32)) == pytest.approx(15.0, rel=1e-4), "5 going back"
    direct.prepare(Region([END, np.array([4.0, 0.0])]))
    assert direct.target(START).observation[0].tolist() == [4.0, 0.0]
    direct.prepare(Sequence([START, END], within=2.0))
    assert direct.target(START).observation[0].tolist() == END.tolist(), "the first stage is behind us"
    with pytest.raises(GeometryError, match="mixture"):
        planner.prepare(Mixture([START, END]))
    with pytest.raises(GeometryError, match="midpoints"):
        RecMid(valued, corridor())


def test_predictions_are_in_steps_and_not_in_discounted_cost() -> None:
    """30 steps at a discount of 0.9 cost 9.58; a chain of three edges of 10 steps costs more, and is 30 steps again."""
    line = Atlas(np.column_stack([np.linspace(0.0, 30.0, 4), np.zeros(4)]).astype(np.float32))
    plain = LinearModel(beta=0.0)
    plain.metric = Displacement(0.0, 0.9)
    scale = discounted_steps(10.0, 0.9) / 10.0
    plain.forward = plain.forward * scale
    planner = AsymGraph(plain, line, coreset="all", neighbours=1)
    planner.prepare(line.observations[3])
    assert planner.path(line.observations[0] + 0.01).total == pytest.approx(30.0, rel=1e-2)
    assert planner.predicted_steps(line.observations[0]) == pytest.approx(30.0, rel=1e-3)
    direct = Direct(plain, line)
    direct.prepare(line.observations[1])
    assert direct.predicted_steps(line.observations[0]) == pytest.approx(10.0, rel=1e-4)


class Still(Conditioned):
    """A policy that stands still, whatever it is told, in a world where the cost is the distance."""

    def __init__(self) -> None:
        super().__init__()
        self.metric = Manhattan()

    def act(self, observations: np.ndarray, commands: np.ndarray, generator=None) -> np.ndarray:
        return np.zeros_like(observations)


def test_noise_comes_only_while_no_progress_is_made() -> None:
    """Patience 30, burst 20: a body that stands still is shaken in steps 30 to 49; one that walks never is."""
    goal = np.array([[100.0, 0.0]], np.float32)
    plan = Direct(Still(), Atlas(goal)).plan(goal)
    standing = Controller(Still(), plan, Acting("unstick"), np.random.default_rng(0))
    here = np.zeros((1, 2), np.float32)
    shaken = [bool(standing.act(here).any()) for _ in range(49)]
    assert not any(shaken[:30]) and all(shaken[30:49])
    walking = Controller(Still(), plan, Acting("unstick"), np.random.default_rng(0))
    assert not any(walking.act(here + np.float32([[0.3 * step, 0.0]])).any() for step in range(300))
    creeping = Controller(Still(), plan, Acting("unstick"), np.random.default_rng(0))
    assert any(creeping.act(here + np.float32([[0.05 * step, 0.0]])).any() for step in range(60))
    first, again = (Controller(Still(), plan, Acting("unstick"), np.random.default_rng(3)) for _ in range(2))
    assert all(np.array_equal(first.act(here), again.act(here)) for _ in range(60))
    planner = Direct(Still(), Atlas(goal))
    planner.prepare(goal[0], Acting("unstick"), seed=1)
    assert any(planner.act(here[0]).any() for _ in range(40)), "robots have it too"


class Product(Metric):
    """Squared lengths by a matrix product in tables, by differences in rows: they differ in the last bits."""

    discount = 1.0

    def costs(self, sources: np.ndarray, targets: np.ndarray, goal: LatentGoal) -> np.ndarray:
        squares = (sources**2).sum(1)[:, None] + (targets**2).sum(1)[None] - 2.0 * sources @ targets.T
        return np.sqrt(np.maximum(squares, 0.0)) + 0.01

    def row_costs(self, sources: np.ndarray, targets: np.ndarray, goals: list[LatentGoal]) -> np.ndarray:
        return np.linalg.norm(sources - targets, axis=1) + 0.01


@pytest.mark.parametrize("seed", range(5))
def test_rounding_of_a_metric_disconnects_nothing(seed: int) -> None:
    points = np.random.default_rng(seed).integers(0, 6, size=(60, 2)).astype(float) * 0.1
    graph = PlanningGraph(points, Product(), neighbours=1)
    goal = LatentGoal(points[0], np.eye(2)[0])
    edges = graph.edges(goal)
    assert len(set(zip(edges.source.tolist(), edges.target.tolist(), strict=True))) == len(edges)
    assert np.isfinite(graph.field(goal).distance).all()


def test_a_goal_is_never_taken_for_a_mixture_that_lies_at_the_same_point() -> None:
    model = LinearModel(beta=0.0)
    planner = AsymGraph(model, corridor(), nodes=40)
    goal = np.array([7.3, 0.2], np.float32)
    planner.prepare(Mixture(goal[None]))
    planner.prepare(goal)
    assert np.array_equal(planner.prepared.goal_observations[0], goal)
    both = Direct(model, corridor()).plan([Mixture(goal[None]), goal])
    assert np.isnan(both.goal_observations[both.only[0]]).all() and (both.goal_observations[both.only[1]] == goal).all()


def test_what_cannot_be_switched_off_changes_nothing_and_no_agent_drives_without_a_plan() -> None:
    planner = AsymGraph(LinearModel(), corridor(), nodes=40, neighbours=4)
    planner.prepare(END)
    before = planner.path(START)
    with pytest.raises(ConfigError, match="Node 999"):
        planner.switch_off([int(before.nodes[0]), 999])
    assert np.array_equal(planner.path(START).nodes, before.nodes) and not planner.nodes_off.any()
    planner.switch_off([3])
    plan, here = planner.plan([END]), LinearModel().embed(START[None])
    cost = plan.costs(here)
    planner.switch_on()
    assert np.array_equal(plan.costs(here), cost), "a plan keeps the graph it was made for"
    with pytest.raises(NoPath, match="Every node"):
        planner.switch_off(range(40))
    with pytest.raises(ConfigError, match="No goal is prepared"):
        planner.act(START)


def test_costs_that_are_no_steps_give_paths_but_no_steps_and_no_sequences() -> None:
    class Unitless(Manhattan):
        discount = None

    planner = AsymGraph(LinearModel(), corridor(), nodes=40, metric=Unitless())
    planner.prepare(END)
    assert np.isfinite(planner.path(START).costs).all() and np.isnan(planner.path(START).steps).all()
    with pytest.raises(GeometryError, match="not in steps"):
        planner.predicted_steps(START)
    with pytest.raises(GeometryError, match="sequence"):
        planner.prepare(Sequence([START, END]))
    planner.prepare(Region([START, END]))
    assert planner.target(END).cost[0] < 5.0, "the nearer of two needs no steps"
    condition = AsymGraph(Conditioned(), corridor(), nodes=40, metric=Manhattan())
    condition.prepare(Region([START, END]))
    assert condition.predicted_steps(END) < 5.0, "a metric of one's own is enough"


def test_a_new_stage_is_no_lack_of_progress_and_nothing_known_is_none_either() -> None:
    far, near = np.array([100.0, 0.0], np.float32), np.array([10.0, 0.0], np.float32)
    plan = Direct(Still(), Atlas(far[None])).plan([Sequence([near, far], within=3.0)])
    pilot = Controller(Still(), plan, Acting("unstick"), np.random.default_rng(0))
    assert not any(pilot.act(np.float32([[0.5 * step, 0.0]])).any() for step in range(150))
    blind = Controller(
        Conditioned(),
        Direct(Conditioned(), Atlas(far[None])).plan(far[None]),
        Acting("unstick"),
        np.random.default_rng(0),
    )
    first = blind.act(np.float32([[99.5, 0.0]]))
    assert all(np.array_equal(blind.act(np.float32([[99.5, 0.0]])), first) for _ in range(80))


class Expensive(PairValue):
    """The same, and every cost is asked of a network."""

    expensive = True

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0

    def costs(self, sources: np.ndarray, targets: np.ndarray, goal: LatentGoal) -> np.ndarray:
        self.answers += len(sources) * len(targets)
        return super().costs(sources, targets, goal)

    def row_costs(self, sources: np.ndarray, targets: np.ndarray, goals: list[LatentGoal]) -> np.ndarray:
        self.answers += len(sources)
        ahead = targets - sources
        return discounted_steps(2.0 * np.linalg.norm(ahead, axis=-1) + 3.0 * np.maximum(0.0, -ahead[:, 0]), 0.99)


def test_a_expensive_metric_is_requested_about_the_nodes_around_the_last_one() -> None:
    """Walks across a square: the same nodes at the same costs as among all, from few answers; after a jump, too."""
    generator, metric = np.random.default_rng(0), Expensive()
    points = generator.uniform(0.0, 30.0, (1000, 2))
    goals = [LatentGoal(point, np.eye(2)[0], point) for point in points[:3]]
    graph = PlanningGraph(points, metric, neighbours=10)
    assert graph.vicinity.shape == (1000, 64) and (graph.vicinity == np.arange(1000)[:, None]).any(axis=1).all()
    pursuit = AlongGraph(graph, np.arange(1000), [graph.field(goal) for goal in goals], None)
    states, wanted = generator.uniform(0.0, 30.0, (9, 2)), np.arange(9) % 3
    memory = pursuit.matcher.match(states, wanted, np.full(9, -1))[0]
    for step in range(40):
        states = generator.uniform(0.0, 30.0, (9, 2)) if step == 20 else states + generator.normal(0.0, 0.4, (9, 2))
        metric.answers = 0
        memory, costs = pursuit.matcher.match(states, wanted, memory)
        assert step == 20 or metric.answers <= 9 * 64 * 2  # a second list has few nodes that were not in the first
        everything = metric.costs(states, points, goals[0])
        assert np.array_equal(memory, everything.argmin(axis=1)) and np.allclose(costs, everything.min(axis=1))
    off = np.zeros((3, 1000), bool)
    off[:, memory] = True  # what is switched off is not matched, and everything is asked again
    closed = AlongGraph(graph, np.arange(1000), [graph.field(goal) for goal in goals], off)
    assert not np.isin(closed.matcher.match(states, wanted, memory)[0], memory).any()


class Posed(Conditioned):
    """A body: two columns tell the place, six the pose, and a network knows what ways between places cost."""

    def __init__(self) -> None:
        super().__init__()
        self.metric = Expensive()

    def goals(self, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return states, np.eye(8, dtype=np.float32)[np.zeros(len(states), int)]


def test_nodes_of_a_expensive_metric_are_std_out_by_position_and_not_by_pose() -> None:
    """Farthest points among all columns are rare poses and leave gaps between places; of a few places all columns."""
    generator = np.random.default_rng(0)
    steps = np.clip(generator.normal(generator.normal(0.0, 0.3, (20, 1, 2)), 0.2, (20, 200, 2)), -1.0, 1.0)
    poses = generator.standard_t(3, (20, 201, 6))
    episodes = []
    for walk, pose in zip(steps, poses, strict=True):
        node_positions = np.concatenate([np.zeros((1, 2)), walk.cumsum(axis=0)])
        episodes.append((np.concatenate([node_positions, pose], axis=1).astype(np.float32), walk.astype(np.float32)))
    data = Trajectories.from_episodes(episodes)
    planner = AsymGraph(Posed(), data, nodes=100)
    node_positions, nodes = data.observations[:, :2], data.observations[planner.states, :2]
    gap = lambda nodes: np.linalg.norm(node_positions[:, None] - nodes[None], axis=2).min(axis=1).max()  # noqa: E731
    among_all = farthest_point(data.observations / data.observations.std(axis=0), 100)
    assert gap(nodes) < 0.5 * gap(node_positions[among_all])
    assert np.isinf(planner._column_scale(Expensive(), data.observations, 100)[2:]).all()
    few = np.concatenate([np.round(data.observations[:, :2] / 50.0), data.observations[:, 2:]], axis=1)
    assert np.isfinite(planner._column_scale(Expensive(), few, 100)).all()  # too few places to choose nodes from
    assert (
        Atlas.of(data).position_columns == (0, 1) and Atlas(few).position_columns == ()
    )  # nothing moves, none is slow


def test_a_list_around_a_node_is_filled_up_with_itself() -> None:
    edges = Edges(np.array([0, 1]), np.array([1, 2]), np.array([1.0, 2.0]))
    assert around(edges, 4, 2).tolist() == [[0, 1], [0, 1], [1, 2], [3, 3]]
