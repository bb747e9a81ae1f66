"""The demo: data, training, planning and evaluation on a real maze, in a minute on a laptop."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import iel
from iel.commands.common import PLANNER_NAMES, Command, Facts
from iel.commands.evaluate import Evaluate
from iel.commands.plan import PlanCommand

ENV = "pointmaze-large-navigate-v0"
DATA_EPISODES = 300
STEPS, POLICY_HIDDEN = 4_000, (128, 128)
"""Enough for this maze (docs/htp.md)."""


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Collect data in a maze, train HTP, plan in four ways, evaluate and draw, in about a minute."""

    out: Path | None = None
    """Run directory (default: the next free runs/demo-NNN)."""
    seed: int = 0
    """Seed of training and evaluation."""
    episodes: int = 10
    """Evaluation episodes per task."""

    def __call__(self) -> Facts:
        from rich.console import Console

        from iel.training.run import next_free

        started, say = time.monotonic(), Console().print
        say(f"[bold]1/4[/bold] data: {DATA_EPISODES} episodes of {ENV}, collected in MuJoCo and kept for next time")
        data = iel.load(ENV, episodes=DATA_EPISODES)
        out = self.out or next_free(Path("runs"), "demo")  # not before the data is there: a failure leaves nothing
        say(f"[bold]2/4[/bold] training: a waypoint policy, then the geometry ({out})")
        method = iel.HTP.preset("laptop", steps=STEPS, policy_hidden=POLICY_HIDDEN)
        run = iel.train(data, method, [self.seed], out=out).runs[self.seed]
        say(f"[bold]3/4[/bold] evaluation: five tasks, {self.episodes} episodes each, four ways of acting")
        summary = Evaluate(run=run.path, planners=PLANNER_NAMES, episodes=self.episodes, seed=self.seed)()
        say(
            "direct and rec-mid have no graph: far from the goal the network's direction leads into walls, so they are "
            "expected to fail here; the graph planners add up short distances, which are right."
        )
        say("[bold]4/4[/bold] a plan")
        PlanCommand(run=run.path, seed=self.seed)()
        seconds = time.monotonic() - started
        pictures = sorted(str(path) for path in run.folder("plots").glob("*.png"))
        say("\n".join([f"done in {seconds:.0f} s; look at", *(f"  {picture}" for picture in pictures)]))
        say(f"and play with it in the browser: iel play {out}")
        return {**summary, "seconds": round(seconds, 1), "run": str(out), "pictures": pictures}
