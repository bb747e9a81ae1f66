"""The demo: data, training, planning and evaluation on a real maze, in a minute on a laptop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from iel.commands.common import PLANNER_NAMES, Output, PlannerSettings

ENV = "pointmaze-large-navigate-v0"
DATA_EPISODES = 300
SETTINGS: dict[str, Any] = {"steps": 4_000, "policy_hidden": (128, 128)}
"""Enough for this maze (docs/htp.md)."""


@dataclass(frozen=True, kw_only=True)
class Demo(Output):
    """Collect data in a maze, train HTP, plan in four ways, evaluate and draw, in about a minute."""

    out: Path | None = None
    """Run directory (default: the next free runs/demo-NNN)."""
    seed: int = 0
    """Seed of training and evaluation."""
    episodes: int = 10
    """Evaluation episodes per task."""


def demo_command(options: Demo) -> dict[str, Any]:
    """`iel demo`."""
    return demo(options.out, options.seed, options.episodes, quiet=options.json)


def demo(out: Path | None = None, seed: int = 0, episodes: int = 10, quiet: bool = False) -> dict[str, Any]:
    """Data, three training phases, four ways of acting, a table and pictures. Returns what the table shows."""
    import numpy as np
    from rich.console import Console

    from iel.commands.evaluate import evaluate_runs
    from iel.commands.pictures import draw_plan
    from iel.data import load
    from iel.envs import make_env
    from iel.evaluation import Protocol
    from iel.evaluation.result import table
    from iel.methods import HTP
    from iel.planning import make_planner
    from iel.training import train
    from iel.training.run import next_free

    started = time.monotonic()
    console = Console(quiet=quiet)
    console.print(
        f"[bold]1/4[/bold] data: {DATA_EPISODES} episodes of {ENV}, collected in MuJoCo and kept for next time"
    )
    data = load(ENV, episodes=DATA_EPISODES)
    out = out or next_free(Path("runs"), "demo")  # not before the data is there: a failure leaves nothing behind
    console.print(f"[bold]2/4[/bold] training: a waypoint policy, then the geometry ({out})")
    trained = train(data, HTP.preset("laptop", **SETTINGS), [seed], out=out)
    run = trained.runs[seed]
    console.print(f"[bold]3/4[/bold] evaluation: five tasks, {episodes} episodes each, four ways of acting")
    summary = evaluate_runs([run], PLANNER_NAMES, Protocol(episodes, seed=seed), PlannerSettings())
    console.print("[bold]4/4[/bold] pictures")
    env = make_env(ENV)
    observation, info = env.reset(seed=seed, options={"task_id": 1})
    planner = make_planner("asym-graph", run.model, data)
    planner.prepare(info["goal"])
    start, goal = np.asarray(observation, np.float32), np.asarray(info["goal"], np.float32)
    draw_plan(run.folder("plots") / "plan.png", env.map, planner, start, goal, planner.path(start))

    seconds = time.monotonic() - started
    console.print(table(summary))
    pictures = sorted(str(path) for path in run.folder("plots").glob("*.png"))
    console.print(
        "direct and rec-mid have no graph: far from the goal the network's direction leads into walls, so they are "
        "expected to fail here; the graph planners add up short distances, which are right."
    )
    console.print("\n".join([f"done in {seconds:.0f} s; look at", *(f"  {picture}" for picture in pictures)]))
    console.print(f"and play with it in the browser: iel play {out}")
    return {**summary, "seconds": round(seconds, 1), "run": str(out), "pictures": pictures}
