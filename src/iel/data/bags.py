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
    kind = "yaw"                            # value, angle (sine, cosine), yaw (sine, cosine of a quaternion's heading)
    align = "interpolate"                   # hold, nearest, interpolate, mean (iel.data.resample)
    clock = "header"                        # log: time of recording; header: its stamp, plus `offset` seconds

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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
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

SUFFIXES = (".bag", ".mcap", ".db3")
METADATA = "metadata.yaml"
ENCODINGS = {("cdr", "ros2msg"), ("cdr", "ros2idl"), ("ros1", "ros1msg")}
"""Of messages and of their schemas, in MCAP files."""


class Clocked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic and its clock."""

    topic: str
    clock: Literal["log", "header"] = "log"
    offset: Annotated[float, Meta(ge=-1e10, le=1e10)] = 0.0
    """Seconds that are added to its times."""


class Source(Clocked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of one topic that become columns."""

    fields: Annotated[list[str], Meta(min_length=1)]
    names: list[str] = []
    """One per field (default: `topic.field`); those of angles get `.sin` and `.cos`, those of vectors `[0]`..."""
    units: list[str] = []
    """One per field."""
    kind: Literal["value", "angle", "yaw"] = "value"
    align: Align = "hold"
    gap: Positive | None = None
    """Seconds of silence that end an episode (default: `Episodes.gap`)."""


class Trigger(Clocked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A topic that says where episodes are."""

    field: str = ""
    when: Literal["true", "change", "message"] = "true"


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
class Report:
    """What was read from a bag, and what was left out."""

    file: str
    seconds: float = 0.0
    rows: int = 0
    episodes: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows of the grid or messages, by reason; a row is counted under the first reason that holds."""

    def __str__(self) -> str:
        reasons = "".join(f"\n  {count:>8} {reason}" for reason, count in self.dropped.items() if count)
        retained = f"{self.file}: {self.seconds:.1f} s, {self.rows} rows in {self.episodes} episodes"
        return retained + (f"; dropped:{reasons}" if reasons else "; nothing dropped")


def read_mapping(path: Path) -> BagMap:
    """A mapping file; DataError where it does not fit `BagMap`."""
    return as_struct(read_toml(path, DataError), BagMap, str(path), DataError)


def is_bag(path: Path) -> bool:
    """Whether a path is a bag, or a folder of bags."""
    return bool(bags_in(path))


def bags_in(path: Path) -> list[Path]:
    """The bag at a path, or the bags in a folder in the order of their names."""
    if (path.suffix in SUFFIXES and path.is_file()) or (path / METADATA).exists():
        return [path]
    inside = sorted(path.iterdir()) if path.is_dir() else []
    return [item for item in inside if item.suffix in SUFFIXES or (item / METADATA).exists()]


# ------------------------------------------------------------------------------------------------------- messages


class Bag(NamedTuple):
    """An open bag."""

    topics: dict[str, str]
    """Type of the messages of every topic."""
    messages: Callable[[Iterable[str]], Iterator[tuple[str, int, object]]]
    """(topic, time of recording in ns, message) of the messages of these topics."""


@contextmanager
def open_bag(path: Path) -> Iterator[Bag]:
    """A bag of ROS 1 (.bag) or ROS 2 (a directory, .db3), or an MCAP file; DataError where it is damaged."""
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
    topics = {c.topic: s.name if (s := summary.schemas.get(c.schema_id)) else "" for c in summary.channels.values()}

    def messages(wanted: Iterable[str]) -> Iterator[tuple[str, int, object]]:
        decoders: dict[int, Callable[[bytes], object]] = {}
        for schema, channel, message in reader.iter_messages(topics=list(wanted)):
            if channel.id not in decoders:
                decoders[channel.id] = _decoder(channel.message_encoding, schema, f"{path}, {channel.topic}")
            yield channel.topic, message.log_time, decoders[channel.id](message.data)

    return Bag(topics, messages)


def _decoder(encoding: str, schema: Schema | None, what: str) -> Callable[[bytes], object]:
    """The function that turns the bytes of a channel into messages."""
    from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore

    if encoding == "json":
        return msgspec.json.decode
    if schema is None or (encoding, schema.encoding) not in ENCODINGS:
        raise DataError(
            f"{what}: messages in '{encoding}' are not read, only ROS 1, ROS 2 (cdr) and JSON; convert them."
        )
    store, text, kind = get_typestore(Stores.EMPTY), schema.data.decode(), schema.name
    kind = kind if "/msg/" in kind else kind.replace("/", "/msg/")
    store.register(get_types_from_idl(text) if schema.encoding == "ros2idl" else get_types_from_msg(text, kind))
    read = store.deserialize_cdr if encoding == "cdr" else store.deserialize_ros1
    return lambda data: read(data, kind)


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


class Signal:
    """The messages of one source: `add` collects them, `finish` makes columns of them."""

    times: Numbers
    """(messages,) seconds by the clock of the source, strictly rising."""
    values: Numbers
    """(messages, columns)"""
    names: list[str]
    units: Mapping[str, str] = MappingProxyType({})
    """By the name of a column; sines and cosines have none."""

    def __init__(self, source: Source, path: Path):
        self.source, self.path = source, path
        self._times, self._numbers = array("d"), array("d")
        self._widths: list[int] = []

    def add(self, time: int, origin: int, message: object) -> int:
        """Store a message; returns the bytes of memory that it takes."""
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
            try:
                values = np.asarray(part(message, name), np.float64).reshape(-1)
            except (AttributeError, KeyError, IndexError, TypeError, ValueError):
                raise DataError(
                    f"{self.path}: messages of {source.topic} have no numbers at '{name}'; "
                    "`iel data convert BAG` lists the fields."
                ) from None
            widths.append(len(values))
            self._numbers.extend(values)
        if self._times and widths != self._widths:
            raise DataError(
                f"{self.path}: {source.topic} changes its length from {self._widths} to {widths}; name entries, as in "
                "position[0]."
            )
        self._widths = widths
        self._times.append((time - origin) / 1e9 + source.offset)
        return 24 * (1 + sum(widths))

    def finish(self, dropped: Counter[str]) -> None:
        """Set `times`, `values`, `names` and `units`, and count the messages that were left out."""
        source, topic = self.source, self.source.topic
        if not self._times:
            raise DataError(f"{self.path}: {topic} has no messages; take it out of the mapping.")
        times = np.array(self._times)
        values = np.array(self._numbers).reshape(len(times), sum(self._widths))
        if source.kind == "angle":
            values = sin_cos(values)
        elif source.kind == "yaw":
            values = np.concatenate([yaw_sin_cos(values[:, i : i + 4]) for i in range(0, values.shape[1], 4)], axis=1)
        finite = np.isfinite(values).all(axis=1) & np.isfinite(times)
        self.times, self.values, late = in_order(times[finite], values[finite])
        if len(self.times) == 0:
            raise DataError(f"{self.path}: {topic} has no message with finite numbers; take it out of the mapping.")
        for reason, count in (
            ("numbers that are not finite, or no heading", (~finite).sum()),
            ("a repeated time", late),
        ):
            key = f"messages of {topic} with {reason}"
            dropped[key] = max(int(count), dropped[key])  # of sources that share a topic, the most
        for given in (source.names, source.units):
            if given and len(given) != len(source.fields):
                raise DataError(
                    f"{self.path}: the mapping has {len(given)} names or units for {len(source.fields)} fields of "
                    f"{topic}; give one per field."
                )
        widths = [1] * len(source.fields) if source.kind == "yaw" else self._widths
        stems = source.names or [f"{topic.strip('/')}.{name}" for name in source.fields]
        indices = [[""] if width == 1 else [f"[{index}]" for index in range(width)] for width in widths]
        suffixes = [""] if source.kind == "value" else [".sin", ".cos"]
        self.names = [
            stem + index + suffix
            for stem, own in zip(stems, indices, strict=True)
            for index in own
            for suffix in suffixes
        ]
        if source.units and source.kind == "value":
            units = [unit for unit, width in zip(source.units, widths, strict=True) for _ in range(width)]
            self.units = dict(zip(self.names, units, strict=True))


# ----------------------------------------------------------------------------------------------------------- rows


def bag_rows(path: Path, mapping: BagMap) -> tuple[Rows, Report]:
    """The rows of a bag, named as the mapping says, and what was left out."""
    report = Report(path.name)
    signals, trigger = _signals(path, mapping, report.dropped)
    start, end = max(s.times[0] for s in signals), min(s.times[-1] for s in signals)
    grid = time_grid(start, end, mapping.rate, sum(s.values.shape[1] for s in signals), str(path))
    columns, there = [], np.ones(len(grid), bool)
    for signal in signals:
        gap = signal.source.gap or mapping.episodes.gap
        values, present = align(signal.times, signal.values, grid, signal.source.align, gap)
        report.dropped[f"rows while {signal.source.topic} was silent for over {gap:g} s"] += int(
            (there & ~present).sum()
        )
        there &= present
        columns.append(values)
    on, begins = _triggered(trigger, mapping.episodes.trigger, grid)
    if trigger is not None:
        report.dropped[f"rows while {trigger.source.topic} was off"] = int((there & ~on).sum())
    pieces = runs(there & on, begins)
    least = max(MINIMUM_STEPS, mapping.episodes.shortest * mapping.rate)
    long = pieces[pieces[:, 1] - pieces[:, 0] - 1 >= least]
    retained = long[:, 1] - long[:, 0]
    report.dropped[f"rows of episodes shorter than {least:g} steps"] = int(np.diff(pieces).sum() - retained.sum())
    report.seconds, report.rows, report.episodes = float(end - start), int(retained.sum()), len(long)
    if len(long) == 0:
        raise DataError(f"{report}\nNo episode is left; correct gap, shortest, the trigger, or clocks and offsets.")
    rows = np.concatenate([np.arange(first, stop) for first, stop in long])
    count = len(mapping.observations)
    observations, actions = (np.concatenate(own, axis=1)[rows] for own in (columns[:count], columns[count:]))
    names = [tuple(name for s in own for name in s.names) for own in (signals[:count], signals[count:])]
    units = {name: unit for s in signals for name, unit in s.units.items()}
    described = Signals(names[0], names[1], units=units, rate=mapping.rate, conversion=CONVERSION)
    return Rows(observations, actions, np.append(0, np.cumsum(retained)), path.stem, described), report


def read_bags(path: Path, mapping: BagMap) -> tuple[Rows, list[Report]]:
    """The episodes of a bag, or of all bags in a folder, and a report per bag."""
    found = [bag_rows(bag, mapping) for bag in bags_in(path)]
    parts = [rows for rows, _ in found]
    if len({(part.observations.shape[1], part.actions.shape[1]) for part in parts}) > 1:
        raise DataError(f"{path}: its bags give different numbers of columns; name entries, as in position[0].")
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    observations, actions = (np.concatenate([part[kind] for part in parts]) for kind in (0, 1))
    rows = Rows(observations, actions, np.append(0, np.cumsum(lengths)), path.stem, parts[0].signals)
    return rows, [report for _, report in found]


def _triggered(
    trigger: Signal | None, rule: Trigger | None, grid: Numbers
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(rows that count, rows that begin an episode)."""
    on, begins = np.ones(len(grid), bool), np.zeros(len(grid), bool)
    if trigger is None or rule is None:
        return on, begins
    if rule.when == "message":
        rows = np.searchsorted(grid, trigger.times - TICK)
        begins[rows[rows < len(grid)]] = True
        return on, begins
    held, there = align(trigger.times, trigger.values, grid, "hold", np.inf)
    if rule.when == "true":
        return there & (held != 0).any(axis=1), begins
    begins[1:] = (held[1:] != held[:-1]).any(axis=1)
    return on, begins


def _signals(path: Path, mapping: BagMap, dropped: Counter[str]) -> tuple[list[Signal], Signal | None]:
    """The signals of a mapping, observations first, and its trigger."""
    sources = [*mapping.observations, *mapping.actions]
    rule = mapping.episodes.trigger
    if rule is not None:
        fields = [rule.field] if rule.field else []
        sources.append(Source(topic=rule.topic, fields=fields, clock=rule.clock, offset=rule.offset))
    signals = [Signal(source, path) for source in sources]
    with open_bag(path) as bag:
        for source in sources:
            if source.topic not in bag.topics:
                raise DataError(f"{path} has no topic '{source.topic}'; it has {', '.join(sorted(bag.topics))}.")
        cost, origin = 0, None
        for topic, time, message in bag.messages({source.topic for source in sources}):
            origin = time if origin is None else origin
            cost += sum(signal.add(time, origin, message) for signal in signals if signal.source.topic == topic)
            check_budget(path, cost)
    for signal in signals:
        signal.finish(dropped)
    return (signals, None) if rule is None else (signals[:-1], signals[-1])
