"""Prompts: goals on some columns, rewards, weighted goals, regions to avoid; against brute force and known answers."""

import warnings

import numpy as np
import pytest
from planning_worlds import LinearModel, corridor

from iel.distances import Displacement, LatentGoal
from iel.errors import ConfigError, GeometryError, NoPath
from iel.planning import (
    AsymGraph,
    Atlas,
    Avoid,
    Direct,
    GasGraph,
    Mixture,
    RecMid,
    Region,
    Reward,
    Sequence,
    SymGraph,
    Weighted,
    Where,
)
from iel.planning.goals import inside, matching_states, mismatch
from iel.planning.graph import NO_HOP, Edges
from iel.planning.rewards import RewardModel, composed_direction, fit_readout, node_means, reward_field
from iel.signals import Signals

START, END = np.array([1.0, 0.0], np.float32), np.array([1.0, 10.0], np.float32)


@pytest.fixture(scope="module")
def model() -> LinearModel:
    return LinearModel()


@pytest.fixture()
def planner(model: LinearModel) -> AsymGraph:
    return AsymGraph(model, corridor(), nodes=120)


def walk(planner, state: np.ndarray, steps: int = 250) -> np.ndarray:
    """Half a unit a step along the direction the policy is given."""
    states = [state]
    for _ in range(steps):
        states.append((states[-1] + 0.5 * planner.act(states[-1])).astype(np.float32))
    return np.array(states)


# ---------------------------------------------------------------- goals on some columns


def test_a_goal_on_some_columns_is_any_state_of_the_data_that_matches(planner: AsymGraph) -> None:
    """x = 5 is in both arms of the corridor: from each of them the own arm's is taken."""
    planner.prepare({0: 5.0})
    low, high = planner.predicted_steps([1.0, 0.0]), planner.predicted_steps([1.0, 10.0])
    assert low < 6 and high < 6
    planner.prepare(np.array([5.0, 10.0]))
    assert planner.predicted_steps([1.0, 0.0]) > 30
    planner.prepare({0: 5.0, 1: 10.0})
    assert planner.predicted_steps([1.0, 0.0]) > 30
    assert np.linalg.norm(walk(planner, START)[-1] - [5.0, 10.0]) < 1.0


def test_matching_states_get_what_was_requested_for_and_keep_the_rest() -> None:
    generator = np.random.default_rng(0)
    data = np.column_stack([generator.uniform(0, 10, 4000), generator.normal(size=4000)]).astype(np.float32)
    found, sentence = matching_states(data, data.std(axis=0), Where({0: 4.0}, tolerance=0.1), 16)
    assert not sentence
    assert found.shape == (16, 2) and (found[:, 0] == 4.0).all()
    rows = data[np.abs(data[:, 0] - 4.0) <= 0.1 * data[:, 0].std() + 1e-6]
    assert np.isin(found[:, 1], rows[:, 1]).all() and len(np.unique(found[:, 1])) == 16
    box, _ = matching_states(data, data.std(axis=0), Where({0: (2.0, 3.0), 1: (0.0, np.inf)}), 16)
    assert ((box[:, 0] >= 2) & (box[:, 0] <= 3) & (box[:, 1] >= 0)).all() and np.ptp(box[:, 0]) > 0.9
    # States that agree in the wanted columns still differ in the others.
    steps = np.column_stack([np.repeat([0.0, 1.0], 50), np.arange(100.0)])
    assert len(np.unique(matching_states(steps, steps.std(axis=0), Where({0: 1.0}), 8)[0][:, 1])) == 8
    assert mismatch(steps, Where({0: 1.0}), steps.std(axis=0))[[0, 60]].tolist() == [
        pytest.approx(1.0 / (0.1 * 0.5)),
        0.0,
    ]


def test_a_model_without_distances_takes_the_best_match(model: LinearModel) -> None:
    class Blind(LinearModel):
        metric = property(lambda self: None, lambda self, value: None)

    planner = Direct(Blind(), corridor())
    planner.prepare({0: 5.0})
    assert planner.target(START).observation[0, 0] == 5.0
    with pytest.raises(GeometryError, match="nothing to read a reward off"):
        planner.prepare(Reward(lambda x: x[:, 0]))


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({0: (500.0, 600.0)}, "No state of the data has column 0 at 500 to 600; choose"),
        ({7: 1.0}, "Column 7 does not exist.*columns 0 to 1"),
        ({"x": 1.0}, "Column 'x' does not exist"),
        ({0: (3.0, 1.0)}, "low <= high"),
        ({0: np.nan}, "give a number"),
        ({0: "left"}, "give a number"),
        ({}, "names none"),
        (Mixture([START, END], [1.0, -1.0]), "use Weighted for goals that repel"),
        (Reward(lambda x: x), "one number per state"),
        (Reward(np.zeros(5)), "one number per state"),
        (Reward(lambda x: np.full(len(x), np.nan)), "not finite"),
        (Reward(lambda x: np.ones(len(x))), "the same everywhere"),
        (Weighted([START, END], [1.0]), "need 2 finite weights"),
        (Weighted([START, START], [1.0, -1.0]), "cancel each other"),
        (Weighted([START], [1.0], operator=np.eye(2)), "The operator has shape"),
        (Avoid(END, 3), "is not a region"),
        (Avoid(END, lambda x: x[:, 0]), "True or False for every row"),
        (Sequence([Reward(lambda x: x[:, 0]), END]), "can only be the last goal"),
    ],
)
def test_what_cannot_be_requested_is_refused_in_a_sentence(planner: AsymGraph, wanted, words: str) -> None:
    with pytest.raises((GeometryError, ConfigError), match=words):
        planner.prepare(wanted)


def test_where_no_state_matches_the_nearest_stands_for_it(planner: AsymGraph, capsys) -> None:
    """Within half a standard deviation it gets the wanted values, and a notice says so; beyond it is refused."""
    states = planner.observations
    far, deviation = float(states[:, 0].max()), float(states[:, 0].std())
    planner.prepare({0: far + 0.3 * deviation})
    assert planner.prepared.goal_observations[0, 0] == np.float32(far + 0.3 * deviation)
    assert "No state of the data has column 0 at" in capsys.readouterr().err
    planner.plan([{0: far + 0.2 * deviation}, END, {0: far + 0.4 * deviation}])
    assert "stands for it. (1 more of 3 goals.)" in capsys.readouterr().err
    with pytest.raises(GeometryError, match=r"No state of the data has column 0 at 500; the nearest has column 0 at"):
        planner.prepare({0: 500.0})


def test_columns_have_names_wherever_they_have_numbers(planner: AsymGraph) -> None:
    planner.model.signals = Signals(("x", "y"))
    try:
        planner.prepare({"x": 5.0, 1: 10.0})
        assert planner.prepared.goal_observations[0].tolist() == [5.0, 10.0]
        by_name, by_number = (planner.avoided([{column: (4.0, 6.0)}]) for column in ("x", 0))
        assert by_name.any() and (by_name == by_number).all()
        with pytest.raises(ConfigError, match=r"Unknown observation column 'z': did you mean|choose from x, y"):
            planner.prepare({"z": 5.0})
        with pytest.raises(GeometryError, match=r"No state of the data has column 'x' \(0\) at 500 to 600"):
            planner.prepare({"x": (500.0, 600.0)})
    finally:
        planner.model.signals = Signals()


def test_a_reward_needs_a_discount_below_one_and_steps(planner: AsymGraph, model: LinearModel) -> None:
    with pytest.raises(ConfigError, match=r"discount of a reward is 1\.0"):
        planner.prepare(Reward(lambda x: x[:, 0], discount=1.0))
    timeless = AsymGraph(model, corridor(), nodes=60, metric=Displacement(0.1, None))
    with pytest.raises(GeometryError, match="rewards per step cannot be added up"):
        timeless.prepare(Reward(lambda x: x[:, 0]))
    with pytest.raises(GeometryError, match="at least 40 states"):
        Direct(model, Atlas(corridor().observations[:10])).prepare(Reward(lambda x: x[:, 0]))


# ---------------------------------------------------------------- the readout


def test_a_linear_reward_gives_back_its_direction_and_share_one(model: LinearModel) -> None:
    points = np.asarray(model.embed(corridor(2000).observations), np.float64)
    z = model.forward.T @ np.array([0.6, -0.8])
    found = fit_readout(points, 3.0 * points @ z + 2.0)
    assert found.share > 0.999 and "lies in the span" in found.sentence
    assert found.direction @ z == pytest.approx(1.0, abs=1e-3)  # a wrong sign gives -1
    assert found.slope == pytest.approx(3.0, rel=1e-2)
    stripes = fit_readout(points, np.sin(4.0 * corridor(2000).observations[:, 0]))
    assert stripes.share < 0.2 and "out of the span" in stripes.sentence


def test_noise_that_no_readout_explains_has_share_zero_however_many_features() -> None:
    generator = np.random.default_rng(0)
    points = generator.normal(size=(400, 60))
    assert fit_readout(points, generator.normal(size=400)).share < 0.05
    cells = generator.integers(40, size=400)
    means, share = node_means(cells, generator.normal(size=400), 40)
    assert share < 0.05 and means.shape == (40,)
    assert node_means(cells, cells.astype(float), 40)[1] > 0.9


def test_without_a_graph_z_is_followed_and_what_is_out_of_the_span_is_warned_about(model: LinearModel) -> None:
    direct = Direct(model, corridor(2000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        direct.prepare(Reward(lambda x: x[:, 0]))
    assert walk(direct, START, 20)[-1] == pytest.approx([11.0, 0.0], abs=0.3)
    far, near = direct.target(START).cost[0], direct.target(np.array([18.0, 0.0])).cost[0]
    assert far == pytest.approx(19.0, abs=0.3) and near == pytest.approx(2.0, abs=0.3)
    with pytest.warns(UserWarning, match="out of the span"):
        direct.prepare(Reward(lambda x: np.sin(4.0 * x[:, 0])))
    for other in (RecMid(model, corridor()), GasGraph(LinearModel(beta=0.0), corridor())):
        with pytest.raises(GeometryError, match=f"{other.name} cannot follow a reward"):
            other.prepare(Reward(lambda x: x[:, 0]))


def test_weighted_goals_are_the_papers_and_with_the_inverse_covariance_the_same_for_every_linear_image() -> None:
    generator = np.random.default_rng(1)
    points, goals, image = generator.normal(size=(500, 4)), generator.normal(size=(3, 4)), generator.normal(size=(4, 4))
    weights = [1.0, -0.5, 2.0]
    here = points @ composed_direction(points, goals, weights, np.linalg.inv(np.cov(points.T)))
    shifted = points @ image + 7.0
    there = shifted @ composed_direction(shifted, goals @ image + 7.0, weights, np.linalg.inv(np.cov(shifted.T)))
    assert np.corrcoef(here, there)[0, 1] > 1.0 - 1e-9
    mu = np.array(weights) @ (goals - points.mean(axis=0))
    assert composed_direction(points, goals, weights, None) == pytest.approx(_unit(mu))


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def test_a_negative_weight_repels(planner: AsymGraph) -> None:
    ends = np.array([[20.0, 0.0], [1.0, 10.0]], np.float32)
    reading = planner.reward_model.read(Weighted(ends, [1.0, -1.0]))
    assert reading.values == pytest.approx(
        planner.reward_model.points @ reading.readout.direction * reading.readout.slope + reading.readout.intercept
    )
    assert "explains 100 %" in reading.sentence and reading.rewards.shape == (120,) and reading.resolved > 0.9
    planner.prepare(Weighted(ends, [1.0, -1.0]))
    assert np.linalg.norm(walk(planner, np.array([10.0, 0.0], np.float32))[-1] - ends[0]) < 2.0
    planner.prepare(Weighted(ends, [-1.0, 1.0]))
    assert np.linalg.norm(walk(planner, np.array([10.0, 0.0], np.float32))[-1] - ends[1]) < 2.0


# ---------------------------------------------------------------- rewards along the graph


def brute_force(rewards, edges: Edges, gamma: float) -> np.ndarray:
    """Value iteration, edge by edge, in plain Python."""
    values = rewards / (1 - gamma)
    for _ in range(4000):
        fresh = rewards / (1 - gamma)
        for i, j, k in zip(edges.source, edges.target, edges.cost, strict=True):
            k = max(k, 1.0)
            gain = sum_of(gamma, k / 2) * (rewards[i] + gamma ** (k / 2) * rewards[j])
            fresh[i] = max(fresh[i], gain + gamma**k * values[j])
        if np.abs(fresh - values).max() < 1e-12:
            break
        values = fresh
    return values


def sum_of(gamma: float, steps: float) -> float:
    return (1 - gamma**steps) / (1 - gamma)


@pytest.mark.parametrize("seed", range(6))
def test_policy_iteration_is_value_iteration_and_every_path_ends(seed: int) -> None:
    generator = np.random.default_rng(seed)
    count, gamma = 12, [0.5, 0.9, 0.97][seed % 3]
    source = np.repeat(np.arange(count), 3)
    target = (source + generator.integers(1, count, len(source))) % count
    edges = Edges(source, target, generator.uniform(0.3, 6.0, len(source)))
    rewards = generator.normal(size=count) if seed < 4 else generator.integers(-1, 2, count).astype(float)
    points = generator.normal(size=(count, 2))
    goal = LatentGoal(points[0], np.array([1.0, 0.0]), None, rewards, gamma)
    field = reward_field(points, edges, Displacement(0.0, 1.0), goal, None)
    assert field.values == pytest.approx(brute_force(rewards, edges, gamma), rel=1e-8, abs=1e-8)
    for node in range(count):
        cost, hops, here = 0.0, 0, node
        while field.next_hop[here] != NO_HOP:
            after = int(field.next_hop[here])
            cost += min(c for i, j, c in zip(source, target, edges.cost, strict=True) if (i, j) == (here, after))
            here, hops = after, hops + 1
            assert hops < count, "the path is circular"
        assert field.distance[node] <= cost + 12.0 and (cost > 0 or field.distance[node] == 0.0)
        assert field.values[here] == pytest.approx(rewards[here] / (1 - gamma))


def test_patience_decides_between_a_near_small_reward_and_a_far_large_one(model: LinearModel) -> None:
    """One unit of reward 5 steps away or two units 45 steps away: worth it iff gamma^40 > 1/2, i.e. gamma > 0.983."""
    planner = AsymGraph(model, corridor(3000), nodes=300)

    def reward(x):
        return 1.0 * (np.hypot(x[:, 0] - 6, x[:, 1]) < 1.0) + 2.0 * (np.hypot(x[:, 0] - 4, x[:, 1] - 10) < 1.0)

    planner.prepare(Reward(reward, discount=0.97))
    assert np.linalg.norm(walk(planner, START)[-1] - [6.0, 0.0]) < 1.5
    planner.prepare(Reward(reward, discount=0.995))
    assert np.linalg.norm(walk(planner, START)[-1] - [4.0, 10.0]) < 1.5


def test_a_reward_may_be_a_column_of_the_data_and_noise_in_it_averages_out(model: LinearModel) -> None:
    data = corridor(3000)
    near_end = (np.hypot(*(data.observations - END).T) < 2.0).astype(float)
    column = near_end + np.random.default_rng(0).normal(0, 0.3, 3000)
    planner = AsymGraph(model, data, nodes=120)
    with pytest.warns(UserWarning, match="it is noisy or varies"):
        planner.prepare(Reward(column))
    reached = walk(planner, START)[-1]
    assert np.linalg.norm(reached - END) < 2.5
    assert planner.path(START).total == pytest.approx(48.0, abs=8.0)
    assert planner.predicted_steps(START) == pytest.approx(planner.path(START).total, rel=1e-6)


def test_a_reward_finer_than_the_nodes_is_warned_about(model: LinearModel) -> None:
    data = corridor(3000)
    with pytest.warns(UserWarning, match="varies between states of one node"):
        AsymGraph(model, data, nodes=30).prepare(Reward(lambda x: np.sin(9.0 * x.sum(axis=1))))


def test_a_reward_can_be_the_last_goal_of_a_sequence_and_stands_beside_others(planner: AsymGraph, model) -> None:
    bend = np.array([20.0, 5.0], np.float32)
    towards = Reward(lambda x: -np.hypot(*(x - START).T))
    planner.prepare(Sequence([bend, towards]))
    visited = walk(planner, np.array([10.0, 0.0], np.float32))
    assert visited[:, 0].max() > 18.0 and np.linalg.norm(visited[-1] - START) < 1.5
    plan = planner.plan([towards, END, {0: 5.0}, Avoid(END, {0: (30, 40)})])
    embedded = model.embed(np.repeat(START[None], 4, axis=0))
    both = plan.target(embedded)
    planner.prepare(END)
    assert np.array_equal(both.point[1], planner.target(START).point[0]) and np.array_equal(
        both.point[3], both.point[1]
    )


# ---------------------------------------------------------------- regions to avoid


def ring(count: int = 3000) -> Atlas:
    angle = np.random.default_rng(0).uniform(0, 2 * np.pi, count)
    return Atlas(np.column_stack([10 * np.cos(angle), 10 * np.sin(angle)]).astype(np.float32))


@pytest.mark.parametrize("kind", [AsymGraph, SymGraph])
def test_paths_keep_out_of_positions_to_avoid_goal_by_goal(model: LinearModel, kind) -> None:
    planner = kind(model, ring(), nodes=150)
    start, goal = np.array([10.0, 0.0], np.float32), np.array([-9.9, 1.4], np.float32)
    planner.prepare(goal)
    assert planner.path(start).observations[:, 1].min() > -1.0  # over the top, which is shorter
    planner.prepare(Avoid(goal, {1: (5.0, np.inf)}))
    assert planner.path(start).observations[:, 1].max() < 5.0
    assert walk(planner, start)[:, 1].max() < 5.0
    plan = planner.plan([goal, Avoid(goal, [{1: (5.0, 99.0)}, lambda x: x[:, 1] > 98])])
    up, down = plan.target(model.embed(np.stack([start, start]))).observation[:, 1]
    assert up > 0 > down
    # An agent inside such a region heads for the nearest node outside.
    planner.prepare(Avoid(goal, {1: (5.0, np.inf)}))
    assert planner.target(np.array([6.0, 8.0])).observation[0, 1] < 5.0
    planner.prepare(Avoid(Reward(lambda x: -x[:, 0]), {1: (5.0, np.inf)}))
    assert planner.path(start).observations[:, 1].max() < 5.0


def test_avoiding_the_goal_itself_or_everything_is_no_path(model: LinearModel) -> None:
    planner = AsymGraph(model, ring(), nodes=150)
    planner.prepare(Avoid(np.array([-10.0, 0.0]), {0: (-99.0, -5.0)}))
    with pytest.raises(NoPath, match="avoid less"):
        planner.path(np.array([10.0, 0.0]))
    with pytest.raises(NoPath, match="Every node is switched off or avoided"):
        planner.prepare(Avoid(START, {0: (-99.0, 99.0)}))
    with pytest.raises(GeometryError, match="cannot avoid regions"):
        Direct(model, ring()).prepare(Avoid(START, {0: (0.0, 1.0)}))


def test_positions_are_columns_functions_or_lists_of_them() -> None:
    table = np.array([[0.0, 0.0], [1.0, 5.0], [2.0, 9.0]])
    assert inside({0: (0.5, 3.0)}, table).tolist() == [False, True, True]
    assert inside([{0: (0.5, 1.5)}, lambda x: x[:, 1] > 8], table).tolist() == [False, True, True]
    assert inside([], table).tolist() == [False] * 3
    assert inside({0: 1.0}, table).tolist() == [False, True, False]
    assert inside({0: 1.0}, table, np.array([11.0, 1.0])).tolist() == [True] * 3


def test_a_reward_that_many_episodes_share_is_read_once(planner: AsymGraph) -> None:
    calls = []

    def reward(states):
        calls.append(len(states))
        return states[:, 0]

    planner.plan([Reward(reward)] * 1 + [Avoid(wanted, {0: (99.0, 100.0)}) for wanted in [Reward(reward)] * 5])
    assert len(calls) == 2


def test_regions_stay_as_they_were(planner: AsymGraph) -> None:
    planner.prepare(Avoid(Region([[5.0, 0.0], [5.0, 10.0]]), {0: (15.0, 99.0)}))
    assert planner.predicted_steps([1.0, 10.0]) < 6


def test_a_landscape_reads_rewards_of_its_own_rows_only(model: LinearModel) -> None:
    data = corridor(400).observations
    rows = np.arange(0, 400, 2)
    land = RewardModel(model, data, rows, np.asarray(model.embed(data[rows]), np.float64))
    column = np.where(np.arange(400) % 2 == 0, data[:, 0], 1e6)
    found = land.read(Reward(column))
    assert np.array_equal(found.values, data[rows, 0].astype(float)) and found.readout.share > 0.99
    assert found.rewards is None and found.sentence == found.readout.sentence
