"""What `iel theory` runs: a statement of the paper in words, our verdict, and a check that yields evidence.

A check stands beside the equations it is about. It draws its instances from a generator and yields numbers, and whether
they are what the verdict says. Verdicts: `holds` (an identity to rounding, or a bound never violated), `assumption`,
`definition`, `sharper` (more is true than the statement says), `as corrected` (holds after the change that
docs/theory.md describes), `fails` (the counterexample is the evidence).
"""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

INSTANCES = 100
ROUNDING = 1e-8


class Evidence(NamedTuple):
    """One line of the report: the world, the numbers found there, and whether they bear the verdict out."""

    on: str
    numbers: Mapping[str, float]
    holds: bool


Check = Callable[[np.random.Generator], Iterator[Evidence]]


class Statement(NamedTuple):
    """A statement, in words, with our verdict and the check behind it."""

    name: str
    says: str
    verdict: str
    check: Check


def statement(name: str, says: str, verdict: str) -> Callable[[Check], Statement]:
    """Make a check the statement it is about."""
    return lambda check: Statement(name, says, verdict, check)


def coordinates(generator: np.random.Generator, dimension: int) -> np.ndarray:
    """A well-conditioned random change of coordinates."""
    left, _ = np.linalg.qr(generator.normal(size=(dimension, dimension)))
    right, _ = np.linalg.qr(generator.normal(size=(dimension, dimension)))
    return left @ np.diag(generator.uniform(0.3, 3.0, dimension)) @ right


def off_diagonal(times: np.ndarray) -> np.ndarray:
    """All entries off the diagonal."""
    return times[~np.eye(len(times), dtype=bool)]
