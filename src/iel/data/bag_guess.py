"""A first mapping for a bag, made from the bag: fields that change are observations, topics named as commands actions.

The file is meant to be edited: fields that were left out are comments with the reason.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path

import numpy as np

from iel.data.bags import bags_in, open_bag, stamp
from iel.errors import DataError

SAMPLE = 4000
"""Messages of a topic whose values are compared."""
LONGEST = 16
"""Arrays of more numbers (scans, pictures, covariances) are left to the user."""
RATE = 10.0
"""Rows per second, unless commands come more seldom."""
COMMAND = re.compile(r"(^|[/_])(cmd|command|control|action|setpoint|target|ctrl)", re.IGNORECASE)
ANGLE = re.compile(r"(yaw|heading|theta|bearing|angle)$", re.IGNORECASE)
SKIPPED = re.compile(r"(^|\.)(header|stamp|covariance|seq)(\.|$)|covariance$")
PREFIX = re.compile(r"^(pose|twist|data|msg)[.](pose|twist)[.]")


@dataclass
class Topic:
    """What the messages of one topic hold."""

    name: str
    kind: str
    times: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    """Nanoseconds from a message's stamp to its recording."""
    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    """Fields that are true or false."""
    unread: dict[str, str] = field(default_factory=dict)
    """Fields that are not read, and why."""

    def add(self, time: int, message: object) -> None:
        """Count a message; of the first `SAMPLE` the values are compared."""
        self.times.append(time)
        if (sent := stamp(message)) is not None:
            self.behind.append(time - sent)
        for path, value in leaves(message) if len(self.times) <= SAMPLE else ():
            if SKIPPED.search(path):
                continue
            if isinstance(value, str):
                self.unread[path] = value
            elif np.isfinite(value):
                self.flags |= {path} if isinstance(value, bool) else set()
                self.low[path] = min(self.low.get(path, value), value)
                self.high[path] = max(self.high.get(path, value), value)

    @property
    def rate(self) -> float:
        """Messages per second outside of silences: from the mean of the intervals up to three medians."""
        between = np.diff(np.sort(self.times))
        between = between[between <= 3 * np.median(between)] if len(between) else between
        return 1e9 / float(between.mean()) if len(between) and between.mean() > 0 else 0.0

    @property
    def moving(self) -> list[str]:
        """Fields that change."""
        return [path for path in self.low if self.low[path] < self.high[path]]

    def __str__(self) -> str:
        silence = float(np.max(np.diff(np.sort(self.times)), initial=0)) / 1e9
        return f"{self.kind}, {len(self.times)} messages, {self.rate:.1f} Hz, longest silence {silence:.2f} s"


def leaves(message: object, path: str = "") -> Iterator[tuple[str, float | bool | str]]:
    """(path, number) of every number of a message; (path, reason) of every field that is not read."""
    inside = path and f"{path}."
    if isinstance(message, bool | int | float | np.bool_ | np.number):
        yield path, bool(message) if isinstance(message, bool | np.bool_) else float(message)
    elif isinstance(message, dict):
        for name, value in message.items():
            yield from leaves(value, f"{inside}{name}")
    elif is_dataclass(message):
        for entry in fields(message):
            if not entry.name.startswith("_"):
                yield from leaves(getattr(message, entry.name), f"{inside}{entry.name}")
    elif isinstance(message, np.ndarray | list):
        numeric = all(isinstance(value, int | float | np.number) for value in message[:1])
        if len(message) > LONGEST or not numeric:
            yield path, f"{len(message)} {'numbers' if numeric else 'entries'}"
        else:
            for index, value in enumerate(message):
                yield from leaves(value, f"{path}[{index}]")


def guess(path: Path) -> str:
    """The text of a mapping for a bag, or for the first bag in a folder."""
    with open_bag(bags_in(path)[0]) as bag:
        found = {name: Topic(name, kind) for name, kind in sorted(bag.topics.items())}
        for name, time, message in bag.messages(found):
            found[name].add(time, message)
    topics = [topic for topic in found.values() if topic.times]
    if not topics:
        raise DataError(f"{path} holds no messages; record some.")
    commands = [t for t in topics if (COMMAND.search(t.name) or "Twist" in t.kind.rpartition("/")[2]) and t.moving]
    rate = min([RATE, *(t.rate for t in commands if t.rate)])
    lines = [
        f"# A first guess from {path.name}. Edit it, then: iel data convert BAG --map THIS_FILE --out FILE.npz",
        "# 1. Take out what a robot must not use (batteries, clocks, counters) and what it will not have when it acts.",
        "# 2. Check that actions are the commands, in the order your robot takes them.",
        "# 3. Say where episodes are. Alignment: hold, nearest, interpolate, mean. Kinds: value, angle, yaw.",
        "",
        f"rate = {rate:.4g}  # rows per second",
        "",
        "[episodes]",
        "shortest = 1.0  # seconds; shorter ones are dropped",
        "",
    ]
    others = [topic for topic in topics if topic not in commands]
    for topic in others:
        if flags := sorted(topic.flags.intersection(topic.moving)):  # a comment: a flag may also be a sensor
            trigger = f'topic = "{topic.name}"', f'field = "{flags[0]}"', 'when = "true"  # change, message'
            lines += [f"# {topic}", *(f"# {line}" for line in ("[episodes.trigger]", *trigger)), ""]
    for topic in others:
        if topic.flags.issuperset(topic.moving):
            lines += [] if topic.moving else [f"# {topic.name}: {topic}; nothing in it changes, or it has no numbers"]
        else:
            lines += _sources(topic, "observations", rate)
    for topic in commands:
        lines += _sources(topic, "actions", rate)
    if not commands:
        lines += [
            "# No topic is called a command; name yours:",
            "# [[actions]]",
            '# topic = "..."',
            '# fields = ["..."]',
        ]
    return "\n".join(lines).rstrip() + "\n"


def _sources(topic: Topic, table: str, rate: float) -> list[str]:
    """The entries of one topic: plain values, angles and headings apart."""
    quaternions = {path[:-2] for path in topic.low if all(f"{path[:-2]}.{axis}" in topic.low for axis in "xyzw")}
    parent = {path: path.rpartition(".")[0] for path in topic.moving}
    rest = [path for path in topic.moving if parent[path] not in quaternions]
    chosen = {
        "value": [path for path in rest if not ANGLE.search(path)],
        "angle": [path for path in rest if ANGLE.search(path)],
        "yaw": sorted(quaternions.intersection(parent.values())),
    }
    fixed = [path for path in topic.low if path not in topic.moving]
    lines = [f"# {topic.name}", f"# {topic}"]
    lines += [f"# constant: {', '.join(fixed)}"] if fixed else []
    lines += [f"# not read: {path} ({reason})" for path, reason in topic.unread.items()]
    align = "mean" if table == "actions" else "interpolate" if topic.rate > 2 * rate else "hold"
    stem = topic.name.strip("/").replace("/", "_")
    for kind, paths in chosen.items():
        if paths:
            names = [f"{stem}.{PREFIX.sub('', path)}" for path in paths]
            lines += [f"[[{table}]]", f'topic = "{topic.name}"', f"fields = {json.dumps(paths)}"]
            lines += [f"names = {json.dumps(names)}"]
            lines += [f'kind = "{kind}"  # sine and cosine'] if kind != "value" else []
            lines += [f'align = "{align}"', *_clock(topic)]
            gap = max(2.0 / rate, 5.0 / topic.rate) if topic.rate else 0.0
            lines += [f"gap = {gap:.3g}  # seconds of silence that end an episode"] if gap else []
            lines += [""]
    return lines


def _clock(topic: Topic) -> list[str]:
    """The header's clock, if all messages have a stamp and it runs like the clock of the recording."""
    if len(topic.behind) < len(topic.times):
        return []
    behind = np.array(topic.behind) / 1e9
    least, usual = float(behind.min()), float(np.median(behind))
    dispersion = float(np.quantile(behind, 0.99) - least)
    if dispersion > 1.0:
        return [f"# header stamps drift by {dispersion:.2f} s against the recording; its times are used"]
    return [
        'clock = "header"',
        f"offset = {least:.3f}  # seconds from a stamp to its recording: at least this, usually {usual:.3f}",
    ]
