"""Every statement as a check that runs: what was checked, on what, and the numbers (`iel theory`).

tests/theory runs them with another seed, and breaks one assumption at a time.
"""

import time
from typing import Any

import numpy as np

from iel.theory import (
    bounds,
    concentration,
    diagnostics,
    distances,
    identifiability,
    optimal,
    programming,
    recovery,
    representation,
    sample_bound,
    span,
)
from iel.theory.evidence import Statement

PAPER = (optimal, representation, identifiability, bounds, recovery, concentration, sample_bound, span, diagnostics)
OURS = (distances, programming)
STATEMENTS = [value for module in PAPER + OURS for value in vars(module).values() if isinstance(value, Statement)]
"""In the order of the paper, then those on the planner's distance and on hitting-time programming."""


def check_all(seed: int = 0) -> list[dict[str, Any]]:
    """Run every check; one JSON-safe row per statement."""
    rows = []
    for number, entry in enumerate(STATEMENTS):
        begin = time.perf_counter()
        evidence = [
            {"on": item.on, "holds": bool(item.holds), "numbers": {k: float(v) for k, v in item.numbers.items()}}
            for item in entry.check(np.random.default_rng((seed, number)))
        ]
        words = {"statement": entry.name, "says": entry.says, "verdict": entry.verdict}
        holds = all(item["holds"] for item in evidence)
        rows.append({**words, "holds": holds, "evidence": evidence, "seconds": time.perf_counter() - begin})
    return rows
