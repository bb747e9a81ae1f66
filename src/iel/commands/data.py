"""`iel data make`, `iel data info`, `iel data check`."""

from __future__ import annotations

from typing import Any

import numpy as np

from iel.data import load
from iel.options import DataCheck, DataInfo, DataMake


def data_make_command(options: DataMake) -> dict[str, Any]:
    """`iel data make`."""
    from iel.data.make import make_dataset  # simulator and pictures are needed only here
    from iel.envs import make_env
    from iel.viz.coverage import draw_coverage

    files = make_dataset(
        options.name,
        episodes=options.episodes,
        seed=options.seed,
        workers=options.workers,
        directory=options.out,
        controller=options.controller,
    )
    picture = files["train"].with_suffix(".png")
    maze = make_env(options.name).map
    assert maze is not None, "makers only know mazes"
    draw_coverage(picture, maze, load(files["train"]))
    if not options.json:
        print("\n".join(str(path) for path in (*files.values(), picture)))
    return {**{split: str(path) for split, path in files.items()}, "picture": str(picture)}


def data_check_command(options: DataCheck) -> dict[str, Any]:
    """`iel data check`: the findings; errors among them make the command fail."""
    from iel.data.examine import examine

    findings = examine(options.name)
    errors = sum(finding.severity == "error" for finding in findings)
    if not options.json:
        print("\n".join(str(finding) for finding in findings) or f"{options.name}: nothing wrong was found")
    return {
        "data": options.name,
        "errors": errors,
        "warnings": len(findings) - errors,
        "findings": [finding.as_dict() for finding in findings],
        "exit_code": int(errors > 0),
    }


def data_info_command(options: DataInfo) -> dict[str, Any]:
    """`iel data info`."""
    data = load(options.name, episodes=options.episodes, make=False)
    lengths = np.diff(data.offsets) - 1
    facts = {
        "name": data.name,
        "episodes": len(data),
        "transitions": data.num_transitions,
        "observation_size": data.observation_size,
        "action_size": data.action_size,
        "shortest_episode": int(lengths.min()),
        "longest_episode": int(lengths.max()),
        "observation_low": data.observations.min(0).tolist(),
        "observation_high": data.observations.max(0).tolist(),
        "fingerprint": data.fingerprint,
    }
    if not options.json:
        for name, value in facts.items():
            print(f"{name:18} {value}")
    return facts
