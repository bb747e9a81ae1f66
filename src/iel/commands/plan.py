"""`iel plan`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

import iel
from iel.commands.common import Facts, Flag, PlanningCommand, known_environment
from iel.commands.prompts import parse_goal, parse_region, parse_regions, parse_reward, parse_weighted
from iel.errors import ConfigError

if TYPE_CHECKING:
    from iel.envs import MazeMap
    from iel.planning.goals import Goal
    from iel.signals import Signals
    from iel.training import Run

SHOWN = 12
"""Waypoints that are printed without --all."""


@dataclass(frozen=True, kw_only=True)
class PlanCommand(PlanningCommand):
    """Plan a route from a start to a goal: print its waypoints and draw it in the planning graph."""

    planner: Literal["asym-graph", "sym-graph", "gas-graph"] | None = None
    """Which graph to plan in (default: the one that suits the model and the data)."""
    task: int = 1
    """Take start and goal from this task of the environment; for logs of your own they come from the data."""
    start: tuple[float, ...] | None = None
    """Start observation instead (for a PointMaze: x y)."""
    goal: tuple[str, ...] | None = None
    """Goal observation instead, or some of its columns, x=8.5 y=2.0 (or 0=8.5 1=2.0): any state of the data that
    matches (x=4:8 is a range)."""
    via: tuple[str, ...] | None = None
    """Regions to pass on the route, in this order: 0=8.5,1=2.0 0=20:24."""
    avoid: tuple[str, ...] | None = None
    """Regions to keep out of: 0=4:8,1=2:6."""
    reward: tuple[str, ...] | None = None
    """Collect a reward instead of heading for a goal: regions and the reward of a step in them, 0=4:8,1=2:6@1, or an
    npz file whose array `rewards` has one number per state of the data."""
    weighted: tuple[str, ...] | None = None
    """Goals that attract and repel instead of one goal: 8.5,2.0@1 20,4@-0.5."""
    outside: Literal["warn", "refuse", "ignore"] = "warn"
    """What to do if the start or the goal is far outside of the training data."""
    seed: int = 0
    """Seed of the task's start and goal."""
    all: Flag = False
    """Print all waypoints instead of twelve."""
    picture: Path | None = None
    """Where to draw (default: RUN/plots/plan.png)."""

    def __call__(self) -> Facts:
        from iel.commands.pictures import draw_plan, ground
        from iel.model.support import support_of
        from iel.planning.hops import Hops, route_states

        run = iel.open_run(self.run)
        data, model = run.data(self.planning.data), run.model
        start, task_goal, maze = self._ends(run, data)
        signals = model.signals
        wanted, words = self._wanted(task_goal, signals)
        stops = [parse_region(region, signals) for region in self.via or ()]
        goal = iel.Sequence([*stops, wanted]) if stops else wanted
        goal = goal if self.avoid is None else iel.Avoid(goal, parse_regions(self.avoid, signals))
        model.outside = self.outside
        model.support = model.support or support_of(data)
        planner = self.planning.agent(self.planner, model, data).planner
        planner.prepare(goal)
        route = planner.path(start)
        picture = self.picture or run.folder("plots") / "plan.png"
        hops, line = Hops.of(planner), route_states(planner, start, route)
        simple = len(line) == len(route.steps) + 1  # not several stages
        doubted = hops.doubted(line, route.steps) if hops and simple else np.zeros(0, bool)
        draw_plan(picture, maze or ground(data), planner, start, route, doubted)
        waypoints = route.observations
        reading = planner.reward_model.read(wanted) if isinstance(wanted, iel.Reward) else None
        if reading:
            print(reading.sentence)
        print(f"{len(waypoints)} waypoints, {route.total:.1f} predicted steps from start to goal")
        count = len(waypoints) if self.all else min(SHOWN, len(waypoints))
        for number in np.unique(np.linspace(0, len(waypoints) - 1, count).round().astype(int)):
            numbers = np.array2string(waypoints[number], precision=2, threshold=8, max_line_width=80)
            print(f"  {number:3d}  {numbers}  {route.steps_to_go[number + 1]:.1f} steps to go")
        if count < len(waypoints):
            print(f"({count} of {len(waypoints)} waypoints; --all prints every one)")
        if hops and doubted.any():
            print(
                f"{doubted.sum()} of {len(doubted)} hops were made by no trajectory, or are faster than any logged "
                f"step ({hops.fastest:.2g}); they may lead through walls (dashed); "
                "try --unobserved-cost 1000 or more --nodes"
            )
        print(f"drawn in {picture}")
        ends = {"start": start, **({"goal": goal} if isinstance(goal, np.ndarray) else {})}
        return {
            "planner": planner.name,
            "start": start.tolist(),
            "goal": words,
            "in_span": reading and reading.readout.share,
            "waypoints": waypoints.tolist(),
            "costs": route.costs.tolist(),
            "steps": route.steps.tolist(),
            "predicted_steps": route.total,
            "doubted_hops": np.flatnonzero(doubted).tolist(),
            "excess": {name: float(model.support.excess(row)[0]) for name, row in ends.items()},
            "picture": str(picture),
        }

    def _ends(self, run: Run, data: iel.Trajectories) -> tuple[np.ndarray, np.ndarray, MazeMap | None]:
        """(start, goal, map or None): the given start; else both of the environment's task, or two states of the data
        where no environment is known."""
        if known_environment(run.env) is None:  # logs of one's own: a long route through the data
            first, last, maze = data.episode(0).observations[0], data.episode(len(data) - 1).observations[-1], None
        else:
            env = iel.make_env(run.env, reference=data.observations[0])
            first, info = env.reset(seed=self.seed, options={"task_id": self.task})
            last, maze = info["goal"], env.map
        start = np.asarray(first if self.start is None else self.start, np.float32)
        if start.shape != (data.observation_size,):
            raise ConfigError(
                f"--start has {start.size} numbers, but an observation has {data.observation_size}; give all of them."
            )
        return start, np.asarray(last, np.float32), maze

    def _wanted(self, task_goal: np.ndarray, signals: Signals) -> tuple[Goal, list[float] | str]:
        """The goal without --via and --avoid, and how it is printed: numbers or the words that were given."""
        options = {"goal": self.goal, "reward": self.reward, "weighted": self.weighted}
        given = {name: words for name, words in options.items() if words is not None}
        if len(given) > 1:
            raise ConfigError(f"--{' and --'.join([*given][:2])} exclude each other; give one of them.")
        if not given:
            return task_goal, task_goal.tolist()
        ((name, words),) = given.items()
        if name == "reward":
            return iel.Reward(parse_reward(words, signals)), " ".join(words)
        if name == "weighted":
            return iel.Weighted(*parse_weighted(words)), " ".join(words)
        goal = parse_goal(words, signals)
        return goal, " ".join(words) if isinstance(goal, dict) else goal.tolist()
