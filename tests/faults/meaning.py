"""The attack on meaning: `python meaning.py FIRST COUNT DIR` edits tables as people and scripts do, and compares.

Case i is drawn from its own generator. A strict, slow reader of our own decides what the edited file means; what `iel`
says of it must be one of

    same        the same episodes, to the last bit of float32
    refused     one sentence that names the location: a line, a row, an episode, a column or a file

Anything else is a fault: `different` (read, and the reference reads something else or refuses it), `foreign` (an error
that is none of ours), `vague` (a sentence without a location).
"""

import itertools
import json
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from iel.data import Trajectories, examine
from iel.data.catalogue import read
from iel.data.store import write_store
from iel.data.trajectories import Rows
from iel.errors import IELError

EPISODES = (("7", 9), ("07", 12), ("9007199254740992", 7), ("9007199254740993", 8))
"""Names that float64 would take for two, and how many steps each has."""
STEP = 1772442000000000000
OBSERVATIONS, ACTIONS = ("observation.x", "observation.y"), ("action.v",)
LOCATION = re.compile(
    r"line \d+|row \d+|episode \d+|column|frames?|header|does not exist|is cut off|no rows|manifest|parquet holds|"
    r"\.f32|\.i64"
)
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
Table = list[list[str]]
"""Header and rows, as text."""
Meaning = list[tuple[list[list[float]], list[list[float]]]]
"""Observations and actions of every episode, as float32 numbers."""


class RefusedError(Exception):
    """The reference does not take the file."""


# ------------------------------------------------------------------------------------------------------- the reference


def number(text: str) -> Decimal:
    if not NUMBER.fullmatch(text):
        raise RefusedError(f"'{text}'")
    try:
        return Decimal(text)
    except InvalidOperation:
        raise RefusedError(text) from None


def float32(text: str) -> float:
    with np.errstate(over="ignore"):
        value = float(np.float32(float(number(text))))
    if not np.isfinite(value):
        raise RefusedError(text)
    return value


def meaning(header: list[str], rows: Table) -> Meaning:
    """What a table says, cell by cell; every doubt is a refusal."""
    if len(set(header)) != len(header) or any(len(row) != len(header) for row in rows):
        raise RefusedError("shape")
    ids = [name for name in header if name == "episode"]
    inputs = [name for name in header if re.fullmatch(r"observations?([^a-zA-Z].*)?", name)]
    outputs = [name for name in header if re.fullmatch(r"actions?([^a-zA-Z].*)?", name)]
    if not (ids and inputs and outputs):
        raise RefusedError("columns")
    named = [dict(zip(header, row, strict=True)) for row in rows]
    order: list[str] = []
    for row in named:
        if row["episode"] == "" or (row["episode"] in order and order[-1] != row["episode"]):
            raise RefusedError("episodes")
        if row["episode"] not in order:
            order.append(row["episode"])
    found = []
    for episode in order:
        own = [row for row in named if row["episode"] == episode]
        times = [number(row["step"]) for row in own] if "step" in header else []
        if len(own) < 3 or any(b <= a for a, b in itertools.pairwise(times)):
            raise RefusedError("order")
        states = [[float32(row[name]) for name in inputs] for row in own]
        actions = [[float32(row[name]) for name in outputs] for row in own[:-1]]
        if any(abs(value) > 1.0 + 1e-5 for action in actions for value in action):
            raise RefusedError("range")
        for name in outputs:  # not used, but no words either
            if own[-1][name] not in ("", "nan"):
                number(own[-1][name].lower().replace("inf", "1"))
        found.append((states, actions))
    if not found:
        raise RefusedError("empty")
    return found


def table_of_text(text: str) -> Meaning:
    """Plain CSV, in which a cell may be quoted as a whole."""
    lines = [line for line in text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n") if line]
    if not lines:
        raise RefusedError("empty")
    separator = max(",;\t", key=lines[0].count)
    cells = []
    for line in lines:
        if line.count('"') % 2:
            raise RefusedError("quotes")
        cells.append([cell.strip() for cell in split(line, separator)])
    return meaning(cells[0], cells[1:])


def split(line: str, separator: str) -> list[str]:
    found, cell, quoted = [], "", False
    for letter in line:
        if letter == '"':
            quoted = not quoted
        elif letter == separator and not quoted:
            found.append(cell)
            cell = ""
        else:
            cell += letter
    return [*found, cell]


def table_of_columns(files: list[Path]) -> Meaning:
    """Parquet: the numbers that are there, as text; of several files in the order of episode and frame."""
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    if len(files) > 1:
        rows.sort(key=lambda row: (row["episode"], row["step"]))
    text = [
        ["" if cell is None else cell if isinstance(cell, str) else repr(cell) for cell in row.values()] for row in rows
    ]
    return meaning(list(rows[0]), text) if rows else meaning([], [])


# ------------------------------------------------------------------------------------------------------------- edits


def whole() -> Table:
    """Header and rows of a table in good order; the action of a last row is empty."""
    rng = np.random.default_rng(5)
    table: Table = [["episode", "step", *OBSERVATIONS, *ACTIONS, "battery"]]
    for name, steps in EPISODES:
        walk, push = np.cumsum(rng.normal(size=(steps + 1, 2)), axis=0), rng.uniform(-0.9, 0.9, steps)
        for t in range(steps + 1):
            states = [f"{value:.5f}" for value in walk[t]]
            table.append([name, str(STEP + t), *states, f"{push[t]:.4f}" if t < steps else "", f"{1 - t / 50:.2f}"])
    return table


def edit(table: Table, rng: np.random.Generator) -> Table:
    """One thing that a person, a spreadsheet or a script does to a table."""
    table = [list(row) for row in table]
    row, column = int(rng.integers(1, len(table))), int(rng.integers(len(table[0])))
    other = (column + int(rng.integers(1, len(table[0])))) % len(table[0])
    first = 0 if rng.random() < 0.5 else 1
    kind = int(rng.integers(16))
    if kind == 0:  # duplicate a cell
        table[row].insert(column, table[row][column])
    elif kind == 1:  # drop a cell
        del table[row][column]
    elif kind == 2:  # swap two columns, header and cells, or cells alone
        for line in table[first:]:
            line[column], line[other] = line[other], line[column]
    elif kind == 3:  # swap two names
        table[0][column], table[0][other] = table[0][other], table[0][column]
    elif kind == 4:  # shift a column by a row
        values = [line[column] for line in table[1:]]
        values = [values[-1] if rng.random() < 0.5 else "", *values[:-1]]
        for line, value in zip(table[1:], values, strict=True):
            line[column] = value
    elif kind == 5:  # change a unit
        for line in table[1:]:
            line[column] = repr(float(line[column]) * 1000.0) if line[column] else ""
    elif kind == 6:  # merge two ids, or write one of them in another form
        names = [name for name, _ in EPISODES]
        old, new = (
            str(rng.choice(names)),
            str(rng.choice([*names, "7.0", "inf", "nan", "+7", " 7", "9.007199254740992e15"])),
        )
        for line in table[1:]:
            line[0] = new if line[0] == old else line[0]
    elif kind == 7:  # decimal comma
        table[row][column] = table[row][column].replace(".", ",") or ","
    elif kind == 8:  # a line is gone, doubled or moved
        line = table.pop(row)
        table[row:row] = [[], [line, line], []][n := int(rng.integers(3))]
        if n == 2:
            table.insert(int(rng.integers(1, len(table) + 1)), line)
    elif kind == 9:
        table[row][column] = str(
            rng.choice(["", "nan", "inf", "-inf", "1e400", "1_0", "0x1", "--1", "\u0663", "1 2", "TRUE"])
        )
    elif kind == 10:  # a column is gone, or is there twice
        for line in table:
            line[column : column + 1] = [line[column]] * (2 * first)
    elif kind == 11:  # another way to write a number
        text = table[row][column]
        table[row][column] = str(rng.choice([f" {text} ", f"+{text}", f"{text}e0", f"0{text}", f"{text}.0"]))
    elif kind == 12:  # times in seconds, to the nanosecond
        for line in table[1:]:
            line[1] = str(Decimal(line[1]).scaleb(-9))
    elif kind == 13:  # two cells of a row are swapped
        table[row][column], table[row][other] = table[row][other], table[row][column]
    elif kind == 14:  # everything from here on is gone
        del table[row:]
        table[-1][column:] = []
    else:
        table[0][column] = table[0][column][:-1] + "s"
    return table


def as_text(table: Table, rng: np.random.Generator) -> str:
    """CSV as programs write it, sometimes without one of its newlines."""
    separator = str(rng.choice([",", ";", "\t"]))
    quoted = rng.random() < 0.3
    safe = [
        [f'"{cell}"' if quoted or (separator in cell and rng.random() < 0.5) else cell for cell in row] for row in table
    ]
    text = "\n".join(separator.join(row) for row in safe) + "\n"
    if rng.random() < 0.15:
        locations = [location for location, letter in enumerate(text) if letter == "\n"]
        location = locations[int(rng.integers(len(locations)))]
        text = text[:location] + text[location + 1 :]
    return ("\ufeff" if rng.random() < 0.2 else "") + (text.replace("\n", "\r\n") if rng.random() < 0.3 else text)


def typed(table: Table, text_ids: bool) -> pa.Table | None:
    """A Parquet table of numbers where a column is numbers, else of text; None where rows are not equally long."""
    if any(len(row) != len(table[0]) for row in table) or len(set(table[0])) != len(table[0]):
        return None
    columns = {}
    for location, name in enumerate(table[0]):
        cells = [row[location].strip() for row in table[1:]]
        columns[name] = pa.array(cells)
        for kind in (int, float):
            if name == "episode" and text_ids:
                break
            try:
                columns[name] = pa.array([kind(cell) if cell else None for cell in cells])
                break
            except (ValueError, OverflowError):
                continue
    return pa.table(columns)


def numbers(column: pa.ChunkedArray) -> list[float | str | None]:
    return [float(cell) if isinstance(cell, int) else cell for cell in column.to_pylist()]


# ------------------------------------------------------------------------------------------------------------- targets


class Lab:
    """Where edited files are written."""

    def __init__(self, root: Path):
        self.root, self.table = root, whole()
        store = Trajectories.from_episodes(
            [(np.array(x), np.array(a)) for x, a in meaning(self.table[0], self.table[1:])]
        )
        write_store([Rows(store.observations, store.actions, store.offsets, "a")], root / "store", "a")
        self.targets: tuple[Callable[[np.random.Generator], tuple[Path, Callable[[], Meaning]]], ...] = (
            self.csv, self.csv, self.csv, self.parquet, self.lerobot, self.store,
        )  # fmt: skip

    def fresh(self, name: str) -> Path:
        path = self.root / "edited" / name
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir()
        return path

    def csv(self, rng: np.random.Generator) -> tuple[Path, Callable[[], Meaning]]:
        path = self.fresh("a.csv")
        text = as_text(edit(self.table, rng), rng)
        path.write_text(text, newline="", encoding="utf-8")
        return path, lambda: table_of_text(text)

    def parquet(self, rng: np.random.Generator) -> tuple[Path, Callable[[], Meaning]]:
        path = self.fresh("a.parquet")
        table = None
        while table is None:
            table = typed(edit(self.table, rng), bool(rng.random() < 0.7))
        pq.write_table(table, path)
        return path, lambda: table_of_columns([path])

    def lerobot(self, rng: np.random.Generator) -> tuple[Path, Callable[[], Meaning]]:
        """A file per episode; one may be missing, or edited."""
        path = self.fresh("set")
        (path / "meta").mkdir(parents=True)
        (path / "data").mkdir()
        own = [row[:] for row in self.table[1:]]
        for row in own:
            row[0] = str([name for name, _ in EPISODES].index(row[0]))
        table = [self.table[0], *own]
        features = {"observation.state": {"names": ["x", "y"]}, "action": {"names": ["v"]}}
        facts = {
            "codebase_version": "v2.1",
            "total_episodes": 4,
            "total_frames": len(own),
            "features": features,
            "fps": 10,
        }
        (path / "meta" / "info.json").write_text(json.dumps(facts))
        edited, gone = int(rng.integers(4)), int(rng.integers(8))
        for number in range(4):
            part = [table[0], *(row for row in own if row[0] == str(number))]
            if number == edited:
                part = edit(part, rng)
            columns = typed(part, False)
            if (
                columns is None
                or number == gone
                or not {"episode", "step", *OBSERVATIONS, *ACTIONS} <= set(columns.column_names)
            ):
                continue
            vectors = {"observation.state": OBSERVATIONS, "action": ACTIONS}
            try:
                made = {
                    word: pa.array(zip(*(numbers(columns[n]) for n in names), strict=True))
                    for word, names in vectors.items()
                }
            except pa.ArrowException:  # text beside numbers, which no such file can hold
                continue
            made |= {"episode_index": columns["episode"], "frame_index": columns["step"]}
            pq.write_table(pa.table(made), path / "data" / f"episode_{number}.parquet")
        return path, lambda: self.lerobot_meaning(path, len(own))

    @staticmethod
    def lerobot_meaning(path: Path, frames: int) -> Meaning:
        rows = [row for file in sorted((path / "data").iterdir()) for row in pq.read_table(file).to_pylist()]
        plain = []
        for row in rows:
            cells = row["episode_index"], row["frame_index"], *row["observation.state"], *row["action"]
            if isinstance(cells[0], float) or any(isinstance(cell, str) for cell in cells):
                raise RefusedError("types")
            plain.append(["" if cell is None else repr(cell) for cell in cells])
        if len(plain) != frames or any(row[0] == "" or row[1] == "" for row in plain):
            raise RefusedError("frames")
        plain.sort(key=lambda row: (int(row[0]), Decimal(row[1])))
        found = meaning(["episode", "step", *OBSERVATIONS, *ACTIONS], plain)
        if len(found) != 4:
            raise RefusedError("episodes")
        return found

    def store(self, rng: np.random.Generator) -> tuple[Path, Callable[[], Meaning]]:
        """A listed file is gone, or its cells are: its manifest tells."""
        path = self.fresh("store")
        shutil.copytree(self.root / "store", path)
        file = path / str(rng.choice(["observations.f32", "actions.f32", "offsets.i64", "manifest.json"]))
        content, kind = file.read_bytes(), int(rng.integers(5))
        location = 4 * int(rng.integers(len(content) // 4 - 2))
        cells = content[location : location + 4], content[location + 4 : location + 8]
        if kind == 0:
            file.unlink()
        else:
            middle = (b"", cells[1] + cells[0], cells[0] + cells[0], cells[0] + cells[1] + cells[1])[kind - 1]
            file.write_bytes(content[:location] + middle + content[location + 8 :])
        changed = not file.exists() or file.read_bytes() != content

        def reference() -> Meaning:
            if changed:
                raise RefusedError("manifest")
            return meaning(self.table[0], self.table[1:])

        return path, reference


def outcome(target: Callable, rng: np.random.Generator) -> tuple[str, str]:
    """What became of a case, and what was said."""
    path, reference = target(rng)
    try:
        expected: Meaning | None = reference()
    except RefusedError:
        expected = None
    try:
        errors = [finding.sentence for finding in examine(path) if finding.severity == "error"]
        data = read(path)
    except IELError as refusal:
        return ("refused" if LOCATION.search(str(refusal)) else "vague"), str(refusal)
    except Exception as problem:
        return "foreign", repr(problem)
    if errors:
        return ("refused" if LOCATION.search(errors[0]) else "vague"), errors[0]
    found = [(episode.observations.tolist(), episode.actions.tolist()) for episode in data]
    return ("same" if expected is not None and found == expected else "different"), str(path)


def main(first: int, count: int, root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    lab, counts, began = Lab(root), Counter[str](), time.process_time()
    for case in range(first, first + count):
        rng = np.random.default_rng([2, case])
        target = lab.targets[int(rng.integers(len(lab.targets)))]
        what, said = outcome(target, rng)
        counts[f"{target.__name__} {what}"] += 1
        if what not in ("same", "refused"):
            print(json.dumps({"case": case, "target": target.__name__, "outcome": what, "said": said}), flush=True)
    print(json.dumps({"counts": dict(sorted(counts.items())), "seconds": round(time.process_time() - began, 1)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
