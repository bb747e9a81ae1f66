"""Why does an agent fail? Six checks of the data and the model, one of its episodes, each with a remedy.

    coverage   are starts and goals inside of the data?                       `iel.model.support`
    graph      do the cheapest edges alone connect the data, or only the tree that the planner adds?
    routes     do planned routes keep to the maze, where there is one, or hop over its walls?
    hops       did trajectories make the hops of planned routes, and could the robot be that fast? (`iel.planning.hops`)
    steps      do predicted steps (or costs) to a later state fall along logged trajectories?
    policy     does it repeat logged actions when its command leads where the log went, and not otherwise?
    episodes   do failed episodes stand still, wander, leave the data, or run out of time?

Everything is measured on states of the data that is given (held-out if there is any) and needs no simulator, except
for the episodes and the routes. Hops are those of the episodes' plans, or of plans between states of the data.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from iel.data import Trajectories
from iel.envs import MazeMap
from iel.evaluation.rollout import Rollouts
from iel.model import Model
from iel.model.support import Support
from iel.planning import AsymGraph, Target
from iel.planning.hops import Hops, route_states

Curve = NDArray[np.float64]
FAR = 2
"""Moves from cell to cell that a hop of a planned route may stand for: round one corner."""
STRETCH, MOVE = 30, 5
"""Steps of a logged stretch, and of a move along it."""
AHEAD = 5
"""How many steps ahead the command of the policy leads: what the log did then is the right action."""
SAMPLE = 2000
PLANS = 20
"""Plans whose hops are checked."""
FALLS, CONNECTED, STILL = 0.75, 0.98, 0.05
"""Least share of moves along which predictions fall; least share of nodes in one part of the graph; movement of the
last quarter of an episode, over that of the data, below which it stands still."""
LEARNED, RESPONDS = 0.8, 1.15
"""Largest error, over the variance of actions, of a policy that has learned; least ratio of its errors with a wrong and
with the right command."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    topic: str
    good: bool
    sentence: str
    numbers: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{'  ok' if self.good else 'LOOK'}  {self.topic}: {self.sentence}"


@dataclass(frozen=True)
class Diagnosis:
    """All findings, and what the picture shows."""

    findings: list[Finding]
    falls: Curve
    """(steps,) median of predicted steps along the stretches, over their first value."""
    parts: NDArray[np.int64] | None
    """(nodes,) the part of the graph, without the tree, that each node is in."""
    fates: list[str] = field(default_factory=list)
    """Of every episode."""

    @property
    def verdict(self) -> str:
        """One sentence: what to look at first."""
        bad = [finding for finding in self.findings if not finding.good]
        if not bad:
            return "Nothing looks wrong."
        return f"Look at {bad[0].topic} first ({len(bad)} of {len(self.findings)} findings are not good)."

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"verdict": self.verdict, "findings": [asdict(finding) for finding in self.findings]}


def diagnose(
    model: Model,
    data: Trajectories,
    support: Support,
    *,
    planner: AsymGraph | None = None,
    rollouts: Rollouts | None = None,
    maze: MazeMap | None = None,
    seed: int = 0,
) -> Diagnosis:
    """All findings. `rollouts` are the episodes to explain, if there are any, `planner` is what planned them, and
    `maze` is where they took place."""
    generator, findings = np.random.default_rng(seed), list[Finding]()
    parts, falls, fates = None, np.zeros(0), list[str]()
    if rollouts is not None:
        findings.append(coverage_finding(support, rollouts))
    if planner is not None:
        parts, found = graph_finding(planner)
        findings.append(found)
        if rollouts is not None and maze is not None and planner.graph.teleports is None:
            findings.append(routes_finding(planner, rollouts, maze))
        if (hops := Hops.of(planner)) is not None:
            findings.append(hops_finding(planner, hops, rollouts, np.random.default_rng(seed)))
    if model.metric is not None:
        falls, found = steps_finding(model, data, generator)
        findings.append(found)
    findings.append(policy_finding(model, data, generator))
    if rollouts is not None:
        fates = [fate(path, bool(ok), data, support) for path, ok in zip(rollouts.paths, rollouts.success, strict=True)]
        findings.append(episode_finding(fates, rollouts))
    return Diagnosis(findings, falls, parts, fates)


# ---------------------------------------------------------------- the checks


def coverage_finding(support: Support, rollouts: Rollouts) -> Finding:
    """Whether starts and goals are where the data was."""
    starts = support.excess(np.array([path[0] for path in rollouts.paths]))
    whole = np.isfinite(rollouts.goals).all(axis=1)
    goals = support.excess(rollouts.goals[whole]) if whole.any() else np.zeros(1)
    outside = int((starts > 1).sum()), int((goals > 1).sum())
    numbers = {"largest_start_excess": float(starts.max()), "largest_goal_excess": float(goals.max())}
    good = not any(outside)
    text = (
        f"all {len(starts)} starts and goals are inside of the data (at most {max(numbers.values()):.1f} of the limit)."
        if good
        else f"{outside[0]} of {len(starts)} starts and {outside[1]} of {len(goals)} goals are outside of the data; "
        "record episodes that pass there, or choose goals inside."
    )
    return Finding("coverage", good, text, numbers)


def graph_finding(planner: AsymGraph) -> tuple[NDArray[np.int64], Finding]:
    """Strong components of the cheapest edges alone, for the goal of some node."""
    goal = planner.plan([planner.observations[planner.states[0]]]).pursuit.goals[0]
    edges, count = planner.graph.edges(goal), planner.graph.count
    own = slice(0, count * (planner.graph.neighbours or 0))  # the tree's edges come after these
    table = coo_array((np.ones(len(edges.source[own])), (edges.source[own], edges.target[own])), shape=(count, count))
    parts, labels = connected_components(table.tocsr(), directed=True, connection="strong")
    share = float(np.bincount(labels).max() / count)
    text = (
        f"{share:.0%} of {count} nodes reach each other by cheapest edges."
        if share >= CONNECTED
        else f"without the tree that the planner adds it falls into {parts} parts, the largest with {share:.0%} of "
        f"{count} nodes, so routes between parts jump over gaps in the data; use more --nodes or --neighbours, train "
        "the embedding longer, or record episodes that go from one part to the other."
    )
    return labels, Finding("graph", share >= CONNECTED, text, {"parts": float(parts), "largest_share": share})


def routes_finding(planner: AsymGraph, rollouts: Rollouts, maze: MazeMap) -> Finding:
    """The route of each task's first episode: how many moves from cell to cell its longest hop stands for."""
    longest: dict[str, float] = {}
    for task, first in zip(*np.unique(rollouts.tasks, return_index=True), strict=True):
        start, goal = rollouts.paths[first][0], rollouts.goals[first]
        planner.prepare(goal)
        followed = np.concatenate([[start], planner.path(start).observations, [goal]])[:, :2]
        cells = maze.number[tuple(maze.cell_of(followed).T)]
        cells = cells[cells >= 0]  # a legged robot may lean over the edge of a wall
        longest[rollouts.name_of(int(task))] = float(maze.cell_distances[cells[:-1], cells[1:]].max(initial=0.0))
    over = [task for task, hop in longest.items() if hop > FAR]
    numbers = {"longest_hop": max(longest.values()), "routes_over_walls": float(len(over))}
    text = (
        f"the planned route of {', '.join(over)} hops over walls ({numbers['longest_hop']:g} moves from cell to cell "
        "at once), so the distance is too short between positions on two sides of a wall; try --unobserved-cost 1000, "
        "more --nodes, or train the distance longer."
        if over
        else f"the planned routes of all {len(longest)} tasks keep to the maze."
    )
    return Finding("routes", not over, text, numbers)


def hops_finding(planner: AsymGraph, hops: Hops, rollouts: Rollouts | None, generator: np.random.Generator) -> Finding:
    """Plans with hops that contradict the data: those of the episodes, or between states of the data."""
    if rollouts is not None:
        starts, goals = [path[0] for path in rollouts.paths[:PLANS]], list(rollouts.goals[:PLANS])
    else:
        starts, goals = planner.observations[generator.integers(len(planner.observations), size=(2, PLANS))]
    doubted, worst = 0, (0.0, "")
    for start, goal in zip(starts, goals, strict=True):
        known = np.isfinite(goal)
        planner.prepare(goal if known.all() else {int(column): float(goal[column]) for column in np.flatnonzero(known)})
        route = planner.path(start)
        line = route_states(planner, start, route)
        found = np.flatnonzero(hops.doubted(line, route.steps))
        doubted += len(found) > 0
        for hop in found:
            ends = line[hop : hop + 2, hops.columns]
            length = float(np.linalg.norm(ends[1] - ends[0]))
            here, there = (np.array2string(end, precision=2, separator=", ") for end in ends)
            worst = max(worst, (length, f"from {here} to {there}, {length:.2g} in {route.steps[hop]:.2g} steps"))
    text = (
        f"{doubted} of {len(starts)} plans have hops that no trajectory made, or that are faster than any logged step "
        f"({worst[1]}; the fastest logged step is {hops.fastest:.2g}), so they may lead through walls; try "
        "--unobserved-cost 1000, more --nodes, or train the distance longer."
        if doubted
        else f"the hops of {len(starts)} plans are as short or as slow as logged ones."
    )
    numbers = {"plans": float(len(starts)), "doubted_plans": float(doubted), "fastest_step": hops.fastest}
    return Finding("hops", not doubted, text, numbers)


def steps_finding(model: Model, data: Trajectories, generator: np.random.Generator) -> tuple[Curve, Finding]:
    """Predicted steps (or costs) from the states of a logged stretch to its end, which should fall all along."""
    length = min(STRETCH, int(np.diff(data.offsets).max()) - 1)
    rows = _rows_with(data, length)
    starts = rows[generator.integers(len(rows), size=min(200, len(rows)))]
    windows = starts[:, None] + np.arange(length + 1)
    goals = np.repeat(data.observations[windows[:, -1]], length + 1, axis=0)
    states, counts = data.observations[windows.ravel()], model.metric is not None and model.metric.discount is not None
    predicted = (model.steps(states, goals) if counts else model.cost(states, goals, goals)).reshape(windows.shape)
    moves = predicted[:, MOVE:] < predicted[:, :-MOVE]
    share = float(moves.mean()) if moves.size else float((predicted[:, -1] < predicted[:, 0]).mean())
    numbers, begins = {"falling_share": share}, ""
    if counts:
        numbers["predicted_over_logged"] = float(np.median(predicted[:, 0]) / length)
        begins = f" (and begin at {numbers['predicted_over_logged']:.1f} times the logged number)"
    text = f"along logged stretches of {length} steps, predictions fall in {share:.0%} of moves of {MOVE} steps"
    remedy = (
        " only, so the distance is not learned; train longer (--steps), set --standardise all if columns have "
        "different units, or give more of the steps to the embedding."
    )
    falls = np.median(predicted / np.maximum(predicted[:, :1], 1e-9), axis=0)
    return falls, Finding("steps", share >= FALLS, text + (f"{begins}." if share >= FALLS else remedy), numbers)


def policy_finding(model: Model, data: Trajectories, generator: np.random.Generator) -> Finding:
    """Squared error of the mean action with the command where the log went, with another one, and of a constant."""
    rows = _rows_with(data, AHEAD)
    rows = rows[generator.integers(len(rows), size=min(SAMPLE, len(rows)))]
    states, actions = data.observations[rows], data.actions[rows]
    others = generator.integers(data.num_states, size=len(rows))
    right, other = (
        float(((model.act(states, command_towards(model, states, data.observations[to])) - actions) ** 2).mean())
        for to in (rows + AHEAD, others)
    )
    variance = float(actions.var(axis=0).mean())
    numbers = {"right_command": right, "other_command": other, "constant_action": variance}
    text = (
        f"its squared error on logged actions is {right:.3g} with the command where the log went, {other:.3g} with "
        f"another command, and a constant action has {variance:.3g}"
    )
    if variance < 1e-8:
        return Finding("policy", False, "all logged actions are equal; check the recording.", numbers)
    if right > LEARNED * variance:
        remedy = "; it has hardly learned what the log did, so train longer, or try --policy waypoints."
    elif other < RESPONDS * right:
        remedy = "; it ignores its command, so try --policy waypoints, or --policy.future-share 1."
    else:
        return Finding("policy", True, f"{text}: it responds to its input.", numbers)
    return Finding("policy", False, text + remedy, numbers)


FATES = {
    "succeeded": "reached the goal",
    "stuck": "stood still; try `--action unstick`, or more data at that position",
    "lost": "left the data; record episodes there, or keep the start and goal inside",
    "slow": "were still moving; allow more steps (--max-steps), or train the policy longer",
}
"""What can happen to an episode, and what to do about it."""


def fate(path: NDArray, success: bool, data: Trajectories, support: Support) -> str:
    """succeeded, stuck (the last quarter hardly moves), lost (most of it is outside of the data), or slow."""
    if success:
        return "succeeded"
    last = path[-max(2, len(path) // 4) :]
    if float((support.excess(last) > 1).mean()) > 0.5:
        return "lost"
    view = support.views[-1]  # the position columns, where there are any
    scaled, logged = (
        ((table - support.mean) / support.std)[:, view.columns] for table in (last, data.episode(0).observations)
    )
    usual = float(np.median(np.linalg.norm(np.diff(logged, axis=0), axis=1)))
    net = float(np.linalg.norm(scaled - scaled.mean(axis=0), axis=1).max())
    return "stuck" if net < STILL * usual * len(last) else "slow"


def episode_finding(fates: list[str], rollouts: Rollouts) -> Finding:
    """How the episodes ended, and where the failed ones of the commonest kind did."""
    counts = {name: fates.count(name) for name in FATES if name in fates}
    numbers = {name: float(count) for name, count in counts.items()}
    reached = counts.pop("succeeded", 0)
    if not counts:
        text = f"all {reached} reached the goal, after {rollouts.steps.mean():.0f} steps on average."
        return Finding("episodes", True, text, numbers)
    worst = max(counts, key=lambda name: counts[name])
    end = np.median([rollouts.paths[e][-1] for e, name in enumerate(fates) if name == worst], axis=0)
    text = (
        f"{reached} of {len(fates)} reached the goal; {counts[worst]} {FATES[worst]} "
        f"(median of their last states: {np.array2string(end, precision=1, threshold=6)})"
    )
    rest = [f"{count} {FATES[name].partition(';')[0]}" for name, count in counts.items() if name != worst]
    return Finding("episodes", False, "; ".join([text, *rest]) + ".", numbers)


# ---------------------------------------------------------------- inside


def command_towards(model: Model, states: NDArray, towards: NDArray) -> NDArray:
    """The command of the policy when these states are its targets."""
    points, directions = model.goals(towards)
    ends = np.ones(len(states), bool)
    target = Target(points, towards, ends, points, directions, np.zeros(len(states)))
    return model.command(states, target)


def _rows_with(data: Trajectories, ahead: int) -> NDArray[np.int64]:
    """Rows with at least `ahead` more rows of their episode; where episodes are short, with as many as there are."""
    while ahead >= 1:
        rows = np.flatnonzero(data.final - np.arange(data.num_states) >= ahead)
        if len(rows):
            return rows
        ahead //= 2
    return data.transitions
