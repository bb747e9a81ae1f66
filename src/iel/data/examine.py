"""`iel data check`: what is wrong with a data set, each finding with its episode, step and column and a remedy.

Errors are what training would refuse or learn wrongly; warnings are what a person should look at. Each kind of
problem has one function, which sees the rows as they are in the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iel.data.catalogue import obtain, read_rows, resolve
from iel.data.delay import estimate_delay
from iel.data.positions import Table, monotone_columns, pairs
from iel.data.tables import Given
from iel.data.trajectories import MINIMUM_STEPS, Rows, Trajectories, non_finite, short_episodes
from iel.errors import DataError, IELError
from iel.files import notice
from iel.signals import Kind

Severity = Literal["error", "warning"]
SHOWN = 3
"""Findings of one kind that are listed one by one; the last of them says how many more there are."""
JUMP = 10.0
"""A step is a teleport when it is this many times larger than nearly all others of its column..."""
JUMP_SHARE = 0.5
"""... and moves by this share of the column's standard deviation."""
LIMITS: dict[str, tuple[float, Severity, str]] = {
    "action": (
        1.0 + 1e-5,
        "error",
        "policies act in [-1, 1], so rescale the actions with `iel data convert --unit-actions` (discrete actions "
        "cannot be used)",
    ),
    "observation": (1e6, "warning", "no network learns from numbers this large, so rescale or drop the column"),
}
WINDOW = 3
"""Consecutive rows that two episodes must share to overlap: single states can repeat by chance."""


@dataclass(frozen=True)
class Finding:
    """One problem and where it is."""

    kind: str
    severity: Severity
    file: str
    episode: int | None
    step: int | None
    column: str | None
    message: str
    """The fault and the remedy."""
    count: int = 1
    """How many problems of this kind there are, in the whole file or in the column."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.kind}: {self.sentence}"

    @property
    def sentence(self) -> str:
        """File, episode, step and column, what was found there, and what to do."""
        numbers = (("episode", self.episode), ("step", self.step))
        location = [self.file, *(f"{word} {value}" for word, value in numbers if value is not None), self.column]
        return f"{', '.join(part for part in location if part)}: {self.message}"


class Problem(NamedTuple):
    """One fault that a check found; its first rows become findings."""

    kind: str
    severity: Severity
    message: str | Callable[[int], str]
    """The fault and the remedy; a function of the episode where they differ."""
    rows: Sequence[int] | NDArray[np.int64] = ()
    columns: Sequence[str] = ()
    """Columns of the first rows, or one for all of them."""
    whole: bool = False
    """The rows stand for their whole episodes."""


def examine(source: str | Path, columns: Given | None = None) -> list[Finding]:
    """All findings about a data set on this machine, by name or path; errors first. Never raises for a bad file.

    `columns` are those of `iel.load`.
    """
    from iel.data.store import is_store, verify_store  # which imports this module

    path = resolve(source) or obtain(str(source), make=False)
    try:
        if is_store(path):  # its rows were checked when it was written
            verify_store(path)
            return []
        rows = read_rows(path, str(source) if isinstance(source, str) else None, columns)
    except IELError as problem:
        said = str(problem).removeprefix(f"{path}: ").removeprefix(f"{path} ")  # the finding names the file
        return [Finding("unreadable", "error", str(path), None, None, None, said)]
    return examine_rows(rows, str(path))


def validate(data: Trajectories) -> None:
    """Refuse what `iel data check` calls an error and print its warnings once, unless `data.checked`."""
    if data.checked:
        return
    findings = _findings(data, data.name, CHECKS)  # the others were refused when it was built
    errors = sum(finding.severity == "error" for finding in findings)
    if errors:
        more = f" ({errors - 1} more, which `iel data check` lists.)" if errors > 1 else ""
        raise DataError(f"{findings[0].sentence}{more} To use it all the same, say trust=True or --trust.")
    for finding in findings[:SHOWN]:
        notice(str(finding), once=True)
    if len(findings) > SHOWN:
        notice(f"{data.name}: {len(findings) - SHOWN} more warnings; `iel data check` lists them.", once=True)
    object.__setattr__(data, "checked", True)


def examine_rows(rows: Rows, file: str) -> list[Finding]:
    """All findings about rows; `file` is their name in the findings."""
    if len(rows.offsets) < 2 or len(rows.observations) == 0:
        return [Finding("empty", "error", file, None, None, None, "it holds no episodes; record some.")]
    with np.errstate(all="ignore"):  # what is too large for float32 is found as not finite
        observations, actions = (np.asarray(array, np.float32) for _, array in _tables(rows))
        rows = rows._replace(observations=observations, actions=actions)
    return _findings(rows, file, (_short, _non_finite, *CHECKS, _delayed))


def _findings(table: Table, file: str, checks: Iterable[Check]) -> list[Finding]:
    """Findings of all checks, errors first; of each problem the first few rows, of which the last counts the rest."""
    with np.errstate(all="ignore"):
        problems = [problem for check in checks for problem in check(table)]
    findings = [finding for problem in problems for finding in _listed(problem, table, file)]
    return sorted(findings, key=lambda finding: finding.severity != "error")


def _listed(problem: Problem, table: Table, file: str) -> Iterator[Finding]:
    kind, severity, message, rows, columns, whole = problem
    if len(rows) == 0 and columns:  # something about a whole column
        yield Finding(kind, severity, file, None, None, columns[0], str(message))
    by_column = len(columns) == 1
    shown = rows[:1] if by_column else rows[:SHOWN]
    for number, row in enumerate(shown):
        episode = int(np.searchsorted(table.offsets, row, side="right") - 1)
        step, column = int(row - table.offsets[episode]), columns[number] if columns else None
        said, left = message if isinstance(message, str) else message(episode), len(rows) - number - 1
        if left and number + 1 == len(shown):
            said = f"{said[:-1]} ({left} more in this column)." if by_column else f"{said} ({left} more like this)"
        yield Finding(kind, severity, file, episode, None if whole else step, column, said, len(rows))


# -------------------------------------------------------------------------------------------------------- the checks


def _short(rows: Table) -> Iterator[Problem]:
    lengths, short = np.diff(rows.offsets) - 1, short_episodes(rows.offsets)
    least = f"steps, but an episode needs at least {MINIMUM_STEPS}; remove it."
    yield Problem("single-step", "error", lambda e: f"{lengths[e]} {least}", rows.offsets[short], whole=True)


def _non_finite(rows: Table) -> Iterator[Problem]:
    for kind, array in _tables(rows):
        where, columns = non_finite(array)
        keep = _is_read(rows, where, kind)
        labels = [rows.signals.label(int(column), kind) for column in columns[keep][:SHOWN]]
        message = "the value is not a finite number; correct it, or drop the episode."
        yield Problem("non-finite", "error", message, where[keep], labels)


def _out_of_range(rows: Table) -> Iterator[Problem]:
    for kind, array in _tables(rows):
        limit, severity, remedy = LIMITS[kind]
        for column in np.flatnonzero((np.fmax.reduce(array, 0) > limit) | (np.fmin.reduce(array, 0) < -limit)):
            values = array[:, column]
            where = np.flatnonzero(((values > limit) | (values < -limit)) & np.isfinite(values))
            where = where[_is_read(rows, where, kind)]
            if len(where):
                message = f"the value is {values[where[0]]:.4g}; {remedy}."
                yield Problem("out-of-range", severity, message, where, [rows.signals.label(int(column), kind)])


def _constant(rows: Table) -> Iterator[Problem]:
    for label, values in _columns(rows):
        if values.min() == values.max():
            message = f"every value is {values[0]:.4g}; drop the column, or check the sensor."
            yield Problem("constant-column", "warning", message, columns=[label])


def _clock(rows: Table) -> Iterator[Problem]:
    """Columns that only rise or only fall within episodes: no robot can be sent back there."""
    for column, rises in monotone_columns(rows).items():
        message = f"it only {'rises' if rises else 'falls'} within episodes (battery? clock?); leave it out."
        yield Problem("one-way-column", "warning", message, columns=[rows.signals.label(column, "observation")])


def _duplicate(rows: Table) -> Iterator[Problem]:
    """Columns that are equal to an earlier one of their table, row by row."""
    seen: dict[bytes, str] = {}
    for label, values in _columns(rows):
        kind = label.partition(" ")[0].encode()
        first = seen.setdefault(kind + sha256(np.ascontiguousarray(values).data).digest(), label)
        if first != label and values.min() < values.max():
            message = f"it repeats {first} in every row; drop one of them."
            yield Problem("duplicate-column", "warning", message, columns=[label])


def _delayed(rows: Table) -> Iterator[Problem]:
    """Actions that act later than they were logged (`iel.data.delay`)."""
    if not (np.isfinite(rows.observations).all() and np.isfinite(rows.actions[pairs(rows.offsets, 1)]).all()):
        return
    found = estimate_delay(rows)
    if found is not None and found.clear:
        message = (
            f"the logged steps are explained best by actions {found.steps} steps after they were logged (they explain "
            f"{found.explained[found.steps]:.0%} of what the state alone does not, against {found.explained[0]:.0%} "
            f"without a delay); correct it with `iel data convert --action-delay {found.steps}`, or look at the clocks."
        )
        yield Problem("delayed-actions", "warning", message, columns=["actions"])


def _teleporting(rows: Table) -> Iterator[Problem]:
    """Jumps of the position, and steps far beyond a column's usual ones: teleports, or episodes glued together."""
    jumps = rows.jumps
    message = (
        "the position jumps here, over three times as far as usual steps; if two episodes meet here, mark the "
        "boundary; if the world teleports, cut the data at its jumps."
    )
    yield Problem("jumping", "warning", message, jumps)
    steps = np.setdiff1d(pairs(rows.offsets, 1), jumps)
    found: list[tuple[int, int]] = []
    for column in range(rows.observations.shape[1]):
        values = rows.observations[:, column]
        deviation = float(np.std(values, dtype=np.float64))
        moves = np.abs(values[steps + 1] - values[steps])
        moving = moves[moves > 1e-6 * deviation] if np.isfinite(deviation) else moves[:0]
        if len(moving) < 20:
            continue
        # Ninety-nine of a hundred steps are smaller than the usual one; in short logs nine of ten.
        usual = np.quantile(moving, 0.99) if len(moving) >= 1000 else np.quantile(moving, 0.9)
        found += [(int(steps[i]), column) for i in np.flatnonzero(moves > max(JUMP * usual, JUMP_SHARE * deviation))]
    found.sort()
    message = "the state jumps here, far beyond any usual step; if two episodes meet here, mark the boundary."
    labels = [rows.signals.label(column, "observation") for _, column in found[:SHOWN]]
    yield Problem("teleporting", "warning", message, [row for row, _ in found], labels)


def _repeated(rows: Table) -> Iterator[Problem]:
    """Episodes that occur twice, and episodes that share a stretch of rows."""
    keys = _row_keys(rows.observations)
    seen: dict[bytes, int] = {}
    content = (keys[first:end].tobytes() for first, end in itertools.pairwise(rows.offsets))
    first = [seen.setdefault(part, number) for number, part in enumerate(content)]
    twice = np.flatnonzero(np.array(first) != np.arange(len(first)))
    few_states = 2 * len(np.unique(keys)) < len(keys)  # a world of few states, where routes meet
    message = lambda e: f"it repeats episode {first[e]} state by state; drop one of them."  # noqa: E731
    yield Problem("duplicated-episode", "warning", message, rows.offsets[twice], whole=True)
    episode = np.repeat(np.arange(len(rows.offsets) - 1), np.diff(rows.offsets))
    starts = np.arange(len(keys) - WINDOW + 1)
    starts = starts[episode[starts] == episode[starts + WINDOW - 1]]
    # Standing still repeats a state honestly; only stretches that move can overlap.
    starts = starts[(keys[starts] != keys[starts + 1]) & (keys[starts + 1] != keys[starts + 2])]
    starts = starts[~np.isin(episode[starts], twice)]
    action_keys = _row_keys(rows.actions)  # two drives that end in one corner do not overlap: their actions differ
    mixed = keys[starts] * np.uint64(3) + keys[starts + 1] * np.uint64(5) + keys[starts + 2] * np.uint64(7)
    mixed += action_keys[starts] * np.uint64(11) + action_keys[starts + 1] * np.uint64(13)
    order = np.argsort(mixed, kind="stable")
    same = np.flatnonzero((np.diff(mixed[order]) == 0) & (np.diff(episode[starts[order]]) != 0))
    pairs: dict[tuple[int, int], int] = {}
    for one, other in zip(starts[order[same]], starts[order[same + 1]], strict=True):
        pair = (int(episode[other]), int(episode[one]))
        pairs[pair] = min(pairs.get(pair, int(other)), int(other))
    also = lambda e: (  # noqa: E731
        f"its rows are also in episode {min(b for a, b in pairs if a == e)}; "
        "cut episodes so that no row is in two of them."
    )
    yield Problem("overlapping", "warning" if few_states else "error", also, [row for _, row in sorted(pairs.items())])


def _standing(rows: Table) -> Iterator[Problem]:
    keys = _row_keys(rows.observations)
    moves = np.concatenate([[0], np.cumsum(keys[1:] != keys[:-1])])
    still = np.flatnonzero(moves[rows.offsets[1:] - 1] == moves[rows.offsets[:-1]])
    still = np.setdiff1d(still, short_episodes(rows.offsets))
    message = "all of its states are equal; check the recording, or drop the episode."
    yield Problem("standing-still", "warning", message, rows.offsets[still], whole=True)


Check = Callable[[Table], Iterator[Problem]]
CHECKS: tuple[Check, ...] = (_out_of_range, _constant, _duplicate, _clock, _teleporting, _repeated, _standing)
"""All checks but those for short episodes and numbers that are not finite, which no `Trajectories` has."""


# ----------------------------------------------------------------------------------------------------------- helpers


def _tables(rows: Table) -> tuple[tuple[Kind, NDArray], ...]:
    return ("observation", rows.observations), ("action", rows.actions)


def _columns(rows: Table) -> Iterator[tuple[str, NDArray]]:
    """(label, values that are read) of every column, where there are at least two values."""
    for kind, array in _tables(rows):
        used = array[pairs(rows.offsets, 1)] if kind == "action" else array
        for column in range(used.shape[1] if len(used) > 1 else 0):
            yield rows.signals.label(column, kind), used[:, column]


def _is_read(rows: Table, where: NDArray, kind: Kind) -> NDArray[np.bool_]:
    """Of these rows, which are read at all: the action of a last row is not."""
    return np.ones(len(where), bool) if kind == "observation" else ~np.isin(where, rows.offsets[1:] - 1)


def _row_keys(table: NDArray) -> NDArray[np.uint64]:
    """A 64-bit number per row: equal rows have equal ones, others almost surely not."""
    keys = np.zeros(len(table), np.uint64)
    factor = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore", invalid="ignore"):
        for column in range(table.shape[1]):
            bits = np.ascontiguousarray(table[:, column], np.float32).view(np.uint32).astype(np.uint64)
            keys = (keys ^ bits) * factor
            keys ^= keys >> np.uint64(29)
    return keys
