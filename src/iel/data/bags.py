"""Bags of ROS 1 and ROS 2 and MCAP files: topics and fields to columns, by a mapping. Needs the extra `ros`.

    rate = 10.0                             # rows per second

    [episodes]
    gap = 1.0                               # seconds of silence of a topic that end an episode
    [episodes.trigger]                      # optional
    topic = "/enable"
    field = "data"
    when = "true"                           # rows while it is true; `change`, `message`: it begins an episode

    [[observations]]
    topic = "/odom"
    fields = ["pose.pose.orientation"]
    kind = "yaw"                            # value, angle (sine, cosine), yaw (the same of a quaternion)
    align = "interpolate"                   # hold, nearest, interpolate, mean (iel.data.resample)
    clock = "header"                        # log: when it was recorded; header: its stamp, plus `offset` seconds

    [[actions]]
    topic = "/cmd_vel"
    fields = ["linear.x", "angular.z"]
    align = "mean"

Times are seconds since the first message that is used. `open_bag` reads messages, `read_bags` makes rows of them, and
`iel.data.bag_guess` writes a first mapping.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from iel.data.resample import TICK, Align, Numbers, align, in_order, runs, sin_cos, time_grid, yaw_sin_cos
from iel.data.trajectories import MINIMUM_STEPS, Rows
from iel.errors import DataError, IELError, install
from iel.loader import check_budget, first_line, open_regular, read_toml
from iel.signals import CONVERSION, Signals
from iel.typed import Amount, Positive, as_struct

if TYPE_CHECKING:
    from mcap.records import Schema

Kind = Literal["value", "angle", "yaw"]
Clock = Literal["log", "header"]
Seconds = Annotated[float, Meta(ge=-1e10, le=1e10)]
SUFFIXES = (".bag", ".mcap", ".db3")
METADATA = "metadata.yaml"


class Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of one topic that become columns."""

    topic: str
    fields: Annotated[list[str], Meta(min_length=1)]
    names: list[str] = []
    """One per field (default: `topic.field`); those of angles get `.sin` and `.cos`, those of vectors `[0]`..."""
    units: list[str] = []
    """One per field."""
    kind: Kind = "value"
    align: Align = "hold"
    clock: Clock = "log"
    offset: Seconds = 0.0
    """Seconds that are added to its times."""
    gap: Positive | None = None
    """Seconds of silence that end an episode (default: that of all)."""


class Trigger(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What says where episodes are."""

    topic: str
    field: str = ""
    when: Literal["true", "change", "message"] = "true"
    clock: Clock = "log"
    offset: Seconds = 0.0


class Episodes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How rows become episodes."""

    gap: Positive = 1.0
    """Seconds of silence of any topic that end an episode."""
    shortest: Amount = 1.0
    """Episodes of fewer seconds are dropped."""
    trigger: Trigger | None = None


class BagMap(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping file."""

    rate: Annotated[float, Meta(gt=0, le=10_000)]
    observations: Annotated[list[Source], Meta(min_length=1)]
    actions: Annotated[list[Source], Meta(min_length=1)]
    episodes: Episodes = Episodes()


@dataclass
class Signal:
    """A source as it stands in a bag: one row of numbers per message, in the order of its clock."""

    source: Source
    times: Numbers
    values: Numbers
    names: list[str]
    units: dict[str, str]


@dataclass
class Report:
    """What became of a bag."""

    file: str
    seconds: float = 0.0
    rows: int = 0
    episodes: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason -> rows (of the grid) or messages; a row is counted under the first reason that holds."""

    def messages(self, reason: str, count: int) -> None:
        """Messages that were left out; of sources that share a topic, the most."""
        self.dropped[reason] = max(count, self.dropped.get(reason, 0))

    def __str__(self) -> str:
        reasons = "".join(f"\n  {count:>8} {reason}" for reason, count in self.dropped.items() if count)
        retained = f"{self.file}: {self.seconds:.1f} s, {self.rows} rows kept in {self.episodes} episodes"
        return retained + (f"; dropped:{reasons}" if reasons else "; nothing dropped")


def read_mapping(path: Path) -> BagMap:
    """A mapping file, checked."""
    return as_struct(read_toml(path, DataError), BagMap, str(path), DataError)


def is_bag(path: Path) -> bool:
    """Whether a path is a bag, or a folder of them."""
    return bool(bags_in(path))


def bags_in(path: Path) -> list[Path]:
    """The bags that a path means: itself, or those in the folder, in the order of their names."""
    if path.suffix in SUFFIXES and path.is_file():
        return [path]
    if not path.is_dir():
        return []
    if (path / METADATA).exists():
        return [path]
    return sorted(item for item in path.iterdir() if item.suffix in SUFFIXES or (item / METADATA).exists())


# ------------------------------------------------------------------------------------------------------- messages


class Bag(NamedTuple):
    """An open bag."""

    topics: dict[str, str]
    """Type of the messages of every topic."""
    messages: Callable[[Iterable[str]], Iterator[tuple[str, int, object]]]
    """(topic, time in ns when it was recorded, message) of the messages of these topics."""


@contextmanager
def open_bag(path: Path) -> Iterator[Bag]:
    """A bag of ROS 1 (.bag) or ROS 2 (a directory, .db3), or an MCAP file; what is wrong with it becomes a sentence."""
    try:
        if path.suffix == ".mcap":
            with open_regular(path, DataError) as (stream, size):
                check_budget(path, size)
                yield _mcap(stream, path)
        else:
            from rosbags.highlevel import AnyReader
            from rosbags.typesys import Stores, get_typestore

            for file in [path] if path.is_file() else path.iterdir():
                with open_regular(file, DataError):  # no pipes, no links
                    pass
            default = get_typestore(Stores.ROS2_HUMBLE)  # older bags of ROS 2 do not say what their types are
            with AnyReader([path], default_typestore=default) as reader:
                topics = {c.topic: c.msgtype for c in reader.connections}

                def messages(wanted: Iterable[str]) -> Iterator[tuple[str, int, object]]:
                    chosen = [c for c in reader.connections if c.topic in set(wanted)]
                    for connection, time, raw in reader.messages(chosen) if chosen else ():
                        yield connection.topic, time, reader.deserialize(raw, connection.msgtype)

                yield Bag(topics, messages)
    except (IELError, OSError):
        raise
    except ImportError:
        raise DataError(f"{path} is a bag, which needs packages; {install('ros')}.") from None
    except Exception as problem:  # parsers of four formats, each with errors of its own
        reason = first_line(problem) or type(problem).__name__
        raise DataError(f"{path} is not a whole bag ({reason}); copy or record it again.") from None


def _mcap(stream: BinaryIO, path: Path) -> Bag:
    """An MCAP file: messages of ROS 1 and ROS 2, and JSON."""
    from mcap.reader import make_reader

    reader = make_reader(stream, validate_crcs=True)
    summary = reader.get_summary()
    if summary is None or summary.statistics is None:
        raise DataError(f"{path} has no summary, so it was not closed; repair it with `mcap recover`.")
    decoders = {}
    for number, channel in summary.channels.items():
        schema = summary.schemas.get(channel.schema_id)
        decoders[number] = _decoder(channel.message_encoding, schema, f"{path}, {channel.topic}")
    topics = {c.topic: s.name if (s := summary.schemas.get(c.schema_id)) else "" for c in summary.channels.values()}

    def messages(wanted: Iterable[str]) -> Iterator[tuple[str, int, object]]:
        for _, channel, message in reader.iter_messages(topics=list(wanted)):
            yield channel.topic, message.log_time, decoders[channel.id](message.data)

    return Bag(topics, messages)


def _decoder(encoding: str, schema: Schema | None, what: str) -> Callable[[bytes], object]:
    """What turns the bytes of a channel into messages."""
    from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

    if encoding == "json":
        return msgspec.json.decode
    if schema is not None and (encoding, schema.encoding) in (
        ("cdr", "ros2msg"),
        ("cdr", "ros2idl"),
        ("ros1", "ros1msg"),
    ):
        store, text, kind = get_typestore(Stores.EMPTY), schema.data.decode(), schema.name
        kind = kind if "/msg/" in kind else kind.replace("/", "/msg/")
        store.register(get_types_from_idl(text) if schema.encoding == "ros2idl" else get_types_from_msg(text, kind))
        read = store.deserialize_cdr if encoding == "cdr" else store.deserialize_ros1
        return lambda data: read(data, kind)

    def refuse(data: bytes) -> object:
        raise DataError(
            f"{what}: messages in '{encoding}' are not read, only ROS 1, ROS 2 (cdr) and JSON; convert them."
        )

    return refuse


def part(message: object, path: str) -> object:
    """A field of a message by its path: `pose.pose.position.x`, `position[2]`."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        if index:
            message = message[int(index)]  # type: ignore[index]
        else:
            message = message[name] if isinstance(message, dict) else getattr(message, name)
    return message


def stamp(message: object) -> int | None:
    """Nanoseconds of a message's header; None if it has none."""
    for fraction in ("nanosec", "nsec"):
        try:
            sec, nanosec = part(message, "header.stamp.sec"), part(message, f"header.stamp.{fraction}")
        except (AttributeError, KeyError, TypeError):
            continue
        if isinstance(sec, int) and isinstance(nanosec, int):
            return sec * 1_000_000_000 + nanosec
    return None


# ----------------------------------------------------------------------------------------------------------- rows


def bag_rows(path: Path, mapping: BagMap) -> tuple[Rows, Report]:
    """The rows of a bag, named as the mapping says, and what was left out."""
    report = Report(path.name)
    signals, trigger = _signals(path, mapping, report)
    count = len(mapping.observations)
    gaps = [signal.source.gap or mapping.episodes.gap for signal in signals]
    start, end = max(s.times[0] for s in signals), min(s.times[-1] for s in signals)
    width = sum(s.values.shape[1] for s in signals)
    grid = time_grid(start, end, mapping.rate, width, str(path))
    columns, there = [], np.ones(len(grid), bool)
    for signal, gap in zip(signals, gaps, strict=True):
        values, present = align(signal.times, signal.values, grid, signal.source.align, gap)
        reason = f"rows while {signal.source.topic} was silent for over {gap:g} s"
        report.dropped[reason] = report.dropped.get(reason, 0) + int((there & ~present).sum())
        there &= present
        columns.append(values)
    begins = np.zeros(len(grid), bool)
    if trigger is not None and mapping.episodes.trigger is not None:
        on, begins = _triggered(trigger, mapping.episodes.trigger, grid)
        report.dropped[f"rows while {mapping.episodes.trigger.topic} was off"] = int((there & ~on).sum())
        there &= on
    pieces = runs(there, begins)
    least = max(MINIMUM_STEPS, mapping.episodes.shortest * mapping.rate)
    long = pieces[pieces[:, 1] - pieces[:, 0] - 1 >= least]
    retained = long[:, 1] - long[:, 0]
    report.dropped[f"rows of episodes shorter than {least:g} steps"] = int(np.diff(pieces).sum() - retained.sum())
    report.seconds, report.rows, report.episodes = float(end - start), int(retained.sum()), len(long)
    if len(long) == 0:
        raise DataError(f"{report}\nNo episode is left; correct gap, shortest, the trigger, or clocks and offsets.")
    rows = np.concatenate([np.arange(first, stop) for first, stop in long])
    observations, actions = (np.concatenate(part, axis=1)[rows] for part in (columns[:count], columns[count:]))
    names = [tuple(name for s in part for name in s.names) for part in (signals[:count], signals[count:])]
    offsets = np.concatenate([[0], np.cumsum(retained)])
    units = {name: unit for s in signals for name, unit in s.units.items()}
    described = Signals(names[0], names[1], units=units, rate=mapping.rate, conversion=CONVERSION)
    return Rows(observations, actions, offsets, path.stem, described), report


def read_bags(path: Path, mapping: BagMap) -> tuple[Rows, list[Report]]:
    """The episodes of a bag, or of all bags in a folder."""
    found = [bag_rows(bag, mapping) for bag in bags_in(path)]
    parts = [rows for rows, _ in found]
    if len({(part.observations.shape[1], part.actions.shape[1]) for part in parts}) > 1:
        raise DataError(f"{path}: its bags give different numbers of columns; name entries, as in position[0].")
    ends = np.cumsum([0, *(len(part.observations) for part in parts)])
    offsets = np.concatenate([[0], *(part.offsets[1:] + end for part, end in zip(parts, ends[:-1], strict=True))])
    observations, actions = (np.concatenate([part[kind] for part in parts]) for kind in (0, 1))
    return parts[0]._replace(observations=observations, actions=actions, offsets=offsets, name=path.stem), [
        r for _, r in found
    ]


def _triggered(trigger: Signal, rule: Trigger, grid: Numbers) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(rows that count, rows that begin an episode)."""
    everywhere = np.ones(len(grid), bool)
    if rule.when == "message":
        return everywhere, np.bincount(np.searchsorted(grid, trigger.times - TICK), minlength=len(grid) + 1)[:-1] > 0
    held, there = align(trigger.times, trigger.values, grid, "hold", np.inf)
    if rule.when == "true":
        return there & (held != 0).any(axis=1), ~everywhere
    return everywhere, np.append(False, (held[1:] != held[:-1]).any(axis=1))


def _signals(path: Path, mapping: BagMap, report: Report) -> tuple[list[Signal], Signal | None]:
    """All sources of a mapping, and its trigger."""
    sources = [*mapping.observations, *mapping.actions]
    rule = mapping.episodes.trigger
    if rule is not None:
        fields = [rule.field] if rule.field else []
        sources.append(Source(topic=rule.topic, fields=fields, clock=rule.clock, offset=rule.offset))
    with open_bag(path) as bag:
        for source in sources:
            if source.topic not in bag.topics:
                raise DataError(f"{path} has no topic '{source.topic}'; it has {', '.join(sorted(bag.topics))}.")
        collected = [_Collected(source, str(path)) for source in sources]
        cost, origin = 0, None
        for topic, time, message in bag.messages({source.topic for source in sources}):
            origin = time if origin is None else origin
            for part in collected:
                if part.source.topic == topic:
                    cost += part.add(time, origin, message)
            check_budget(path, cost)
    signals = [part.signal(report) for part in collected]
    return (signals[:-1], signals[-1]) if rule is not None else (signals, None)


class _Collected:
    """The messages of one source, as they come."""

    def __init__(self, source: Source, path: str):
        self.source, self.path = source, path
        self.times, self.numbers = array("d"), array("d")
        self.widths: list[int] = []

    def add(self, time: int, origin: int, message: object) -> int:
        """Keep a message; returns the bytes that it takes."""
        source = self.source
        if source.clock == "header":
            found = stamp(message)
            if found is None:
                raise DataError(f'{self.path}: messages of {source.topic} have no header.stamp; say clock = "log".')
            time = found
        fields = source.fields
        if source.kind == "yaw":
            fields = [f"{quaternion}.{axis}" for quaternion in fields for axis in "xyzw"]
        widths = []
        for name in fields:
            values = self._number(message, name)
            widths.append(len(values))
            self.numbers.extend(values)
        if self.widths and widths != self.widths:
            raise DataError(
                f"{self.path}: {source.topic} changes its length from {self.widths} to {widths}; name entries, as in "
                "position[0]."
            )
        self.widths = widths
        self.times.append((time - origin) / 1e9 + source.offset)
        return 24 * (1 + sum(widths))

    def _number(self, message: object, name: str) -> list[float]:
        try:
            return [float(value) for value in np.asarray(part(message, name), np.float64).reshape(-1)]
        except (AttributeError, KeyError, IndexError, TypeError, ValueError):
            raise DataError(
                f"{self.path}: messages of {self.source.topic} have no numbers at '{name}'; "
                "`iel data convert BAG` lists the fields."
            ) from None

    def signal(self, report: Report) -> Signal:
        """All of them, in order, as columns."""
        source, topic = self.source, self.source.topic
        if not self.times:
            raise DataError(f"{self.path}: {topic} has no messages; take it out of the mapping.")
        times = np.array(self.times)
        values = np.array(self.numbers).reshape(len(times), sum(self.widths))
        if source.kind == "angle":
            values = sin_cos(values)
        elif source.kind == "yaw":
            values = np.concatenate([yaw_sin_cos(values[:, i : i + 4]) for i in range(0, values.shape[1], 4)], axis=1)
        finite = np.isfinite(values).all(axis=1) & np.isfinite(times)
        times, values, late = in_order(times[finite], values[finite])
        report.messages(f"messages of {topic} with numbers that are not finite, or no heading", int((~finite).sum()))
        report.messages(f"messages of {topic} with the time of another one", late)
        if len(times) == 0:
            raise DataError(f"{self.path}: {topic} has no message with finite numbers; take it out of the mapping.")
        given = source.names or [f"{topic.strip('/')}.{name}" for name in source.fields]
        names = self._columns(given, (".sin", ".cos"))
        units = dict(zip(names, self._columns(source.units, ("", "")), strict=True)) if source.units else {}
        return Signal(source, times, values, names, {} if source.kind != "value" else units)

    def _columns(self, given: list[str], suffixes: tuple[str, str]) -> list[str]:
        """One text a column from one a field."""
        source = self.source
        widths = [1] * len(source.fields) if source.kind == "yaw" else self.widths
        if len(given) != len(source.fields):
            raise DataError(
                f"{self.path}: the mapping has {len(given)} names or units for {len(source.fields)} fields of "
                f"{source.topic}; give one per field."
            )
        stems = [
            name if width == 1 else f"{name}[{index}]"
            for name, width in zip(given, widths, strict=True)
            for index in range(width)
        ]
        return stems if source.kind == "value" else [stem + suffix for stem in stems for suffix in suffixes]
