"""`iel data score`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import iel
from iel.commands.common import Facts, RunCommand


@dataclass(frozen=True, kw_only=True)
class DataScore(RunCommand):
    """Rank episodes by how unusual they are under a trained geometry: progress, steps too long, actions, outside."""

    data: Path | None = None
    """Score these trajectories (default: those that the run was trained on)."""
    top: int = 20
    """Episodes to list."""
    picture: Path | None = None
    """Where to draw (default: RUN/plots/quality.png)."""

    def __call__(self) -> Facts:
        from iel.commands.common import known_environment
        from iel.commands.pictures import ground
        from iel.evaluation.quality import SUSPECT, score_episodes
        from iel.viz.quality import draw_quality

        run = iel.open_run(self.run)
        data = run.data(self.data)
        quality = score_episodes(run.model, data)
        picture = self.picture or run.folder("plots") / "quality.png"
        maze = iel.make_env(run.env).map if known_environment(run.env) is not None else None
        draw_quality(picture, quality, maze or ground(data))
        entries = [quality.entry(int(episode)) for episode in quality.order]
        traits = list(quality.traits)
        print(f"{'episode':>8} {'score':>8} {'because of':>11} {'at step':>8}" + "".join(f"{t:>10}" for t in traits))
        for entry in entries[: self.top]:
            head = f"{entry['episode']:>8} {entry['score']:>8.1f} {entry['trait']:>11} {entry['at']:>8}"
            print(head + "".join(f"{entry[trait]:>10.3g}" for trait in traits))
        suspects = [entry["episode"] for entry in entries if entry["score"] > SUSPECT]
        print(
            f"{len(suspects)} of {len(data)} episodes have a score above {SUSPECT:g}: look at them, or leave them out."
        )
        print(f"drawn in {picture}")
        return {
            "run": str(run.path),
            "data": data.name,
            "picture": str(picture),
            "suspects": suspects,
            "episodes": entries,
        }
