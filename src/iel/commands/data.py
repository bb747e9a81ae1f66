"""`iel data make`, `iel data info`, `iel data check`."""

from __future__ import annotations

from typing import Any

import numpy as np

from iel.data import load
from iel.errors import DataError
from iel.options import DataCheck, DataInfo, DataMake

TABLE = ("observation_low", "observation_high", "slowness")
"""Facts of `iel data info` that are numbers a column."""


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
        "observation_low": _few_digits(data.observations.min(0)),
        "observation_high": _few_digits(data.observations.max(0)),
        **_motion(data),
        "fingerprint": data.fingerprint,
    }
    if not options.json:
        for name, value in facts.items():
            if name not in TABLE:
                print(f"{name:18} {value}")
        _print_columns(facts)
    return facts


def _motion(data: Any) -> dict[str, Any]:
    """What the columns do: how slow each is, which tell the place, and how often the place jumps."""
    from iel.data.jumps import jump_rows
    from iel.data.slowness import place_columns, slowness

    try:
        ratios = slowness(data)
    except DataError as problem:  # episodes too short to tell
        return {"slowness": None, "place_columns": None, "jumps": len(jump_rows(data)), "note": str(problem)}
    facts: dict[str, Any] = {"slowness": _few_digits(ratios, 3)}
    try:
        facts["place_columns"] = place_columns(data, ratios=ratios)
    except DataError as problem:
        return {**facts, "place_columns": None, "jumps": 0, "note": str(problem)}
    return {**facts, "jumps": len(jump_rows(data, facts["place_columns"]))}


def _few_digits(values: Any, digits: int = 4) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def _print_columns(facts: dict[str, Any], shown: int = 8) -> None:
    """The slowest columns, with range and ratio."""
    ratios = facts["slowness"] or [0.0] * facts["observation_size"]
    order = sorted(range(len(ratios)), key=lambda column: -ratios[column])
    print(f"{'column':>8} {'lowest':>10} {'highest':>10} {'slowness':>9}")
    for column in order[:shown]:
        low, high = facts["observation_low"][column], facts["observation_high"][column]
        place = "  place" if column in (facts["place_columns"] or []) else ""
        print(f"{column:>8} {low:>10g} {high:>10g} {ratios[column]:>9g}{place}")
    if len(order) > shown:
        print(f"{len(order) - shown} more columns, with a slowness of {ratios[order[shown]]:g} and less")
