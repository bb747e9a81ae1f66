"""The demos: data, training, planning and evaluation in a real maze; a point in a minute, an ant in at most five."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import iel
from iel.commands.common import Command, Facts, Flag
from iel.commands.evaluate import Evaluate, VideoCommand
from iel.commands.plan import PlanCommand


class Show(NamedTuple):
    """What a demo is made of."""

    run: str
    """Its directories are called runs/RUN-NNN."""
    env: str
    data_episodes: int
    preset: str
    settings: dict[str, Any]
    """Of HTP, besides the preset's."""
    planners: tuple[str, ...]
    episodes: int
    """Evaluation episodes per task."""
    remark: str = ""
    """Printed below the table."""
    film: bool = False


POINT = Show(
    "demo", "pointmaze-large-navigate-v0", 300, "laptop",
    {"steps": 4_000, "push_offset": 100.0, "policy_hidden": (128, 128)},
    ("direct", "rec-mid", "sym-graph", "asym-graph"),
    10, "direct and rec-mid have no graph: far from the goal the network's direction leads into walls, so they are "
    "expected to fail here; the graph planners add up short distances, which are right.",
)  # fmt: skip
"""Enough steps for this maze (docs/htp.md)."""
ANT = Show("demo-ant", "antmaze-large-navigate-v0", 300, "laptop-robot", {}, ("asym-graph",), 4, film=True)


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Collect data in a maze, train HTP, compare four planners, evaluate and draw, in about a minute.

    With --ant, an ant learns to cross a large maze and is filmed, in at most five minutes."""

    ant: Flag = False
    """An ant with eight joints instead of a point."""
    out: Path | None = None
    """Run directory (default: the next free runs/demo-NNN or runs/demo-ant-NNN); one that was stopped is continued."""
    seed: int = 0
    """Seed of training and evaluation."""
    episodes: int | None = None
    """Evaluation episodes per task (default: 10, with --ant 4)."""

    def __call__(self) -> Facts:
        from rich.console import Console

        from iel.envs import require_simulator
        from iel.training.run import next_free

        require_simulator("The demo")  # also where the data exists already
        show, started, say = ANT if self.ant else POINT, time.monotonic(), Console().print
        say(f"[bold]1/4[/bold] data: {show.data_episodes} episodes of {show.env}, collected in MuJoCo and stored")
        data = iel.load(show.env, episodes=show.data_episodes)
        out = self.out or next_free(Path("runs"), show.run)  # not before the data exists: a failure leaves nothing
        again = f"iel demo{' --ant' if self.ant else ''} --out {out}"
        say(f"[bold]2/4[/bold] training: a waypoint policy, then the geometry (if it is stopped, {again} continues it)")
        method = iel.HTP.preset(show.preset, **show.settings)
        run = iel.train(data, method, [self.seed], out=out, resume=True).runs[self.seed]
        episodes = show.episodes if self.episodes is None else self.episodes
        say(f"[bold]3/4[/bold] evaluation: five tasks, {episodes} episodes each, by {', '.join(show.planners)}")
        summary = Evaluate(run=run.path, planners=show.planners, episodes=episodes, seed=self.seed)()
        if show.remark:
            say(show.remark)
        say(f"[bold]4/4[/bold] a plan{' and a film' if show.film else ''}")
        PlanCommand(run=run.path, seed=self.seed)()
        film = VideoCommand(run=run.path, seed=self.seed, out=Path(out) / "film.mp4")() if show.film else {}
        seconds = time.monotonic() - started
        pictures = [film["video"], film["strip"]] if film else []
        pictures += sorted(str(path) for path in run.folder("plots").glob("*.png"))
        say("\n".join([f"done in {seconds:.0f} s; look at", *(f"  {picture}" for picture in pictures)]))
        say(f"and play with it in the browser: iel play {out}")
        return {**summary, "seconds": round(seconds, 1), "run": str(out), "pictures": pictures, "film": film}
