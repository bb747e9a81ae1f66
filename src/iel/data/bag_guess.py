"""The first guess at a mapping, from a bag itself: what moves is an observation, what commands is an action.

The file is meant to be edited: everything that was found is in it, what was left out as comments with the reason.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path

import numpy as np

from iel.data.bags import bags_in, open_bag, stamp
from iel.errors import DataError

SAMPLE = 4000
"""Messages of a topic whose values are looked at."""
LONGEST = 16
"""Arrays of more numbers (scans, pictures, covariances) are left to the user."""
RATE = 10.0
COMMAND = re.compile(r"(^|[/_])(cmd|command|control|action|setpoint|target|ctrl)", re.IGNORECASE)
ANGLE = re.compile(r"(yaw|heading|theta|bearing|angle)$", re.IGNORECASE)
SKIPPED = re.compile(r"(^|\.)(header|stamp|covariance|seq)(\.|$)|covariance$")


@dataclass
class Topic:
    """What was seen of one topic."""

    name: str
    kind: str
    times: list[int] = field(default_factory=list)
    behind: list[int] = field(default_factory=list)
    """Nanoseconds from a message's stamp to its recording."""
    low: dict[str, float] = field(default_factory=dict)
    high: dict[str, float] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    """Fields that are true or false."""
    left: dict[str, str] = field(default_factory=dict)
    """Fields that are not read, and why."""

    def see(self, time: int, message: object) -> None:
        """Count a message, and look at its values if not enough were seen."""
        self.times.append(time)
        if (sent := stamp(message)) is not None:
            self.behind.append(time - sent)
        if len(self.times) > SAMPLE:
            return
        for path, value in leaves(message):
            if SKIPPED.search(path):
                continue
            if isinstance(value, str):
                self.left[path] = value
                continue
            self.flags |= {path} if isinstance(value, bool) else set()
            if np.isfinite(value):
                self.low[path] = min(self.low.get(path, value), value)
                self.high[path] = max(self.high.get(path, value), value)

    @property
    def rate(self) -> float:
        """Messages per second where it is not silent: by the mean of intervals up to three usual ones."""
        between = np.diff(np.sort(self.times))
        between = between[between <= 3 * np.median(between)] if len(between) else between
        return 1e9 / float(between.mean()) if len(between) and between.mean() > 0 else 0.0

    @property
    def silence(self) -> float:
        """The longest silence, in seconds."""
        return float(np.max(np.diff(np.sort(self.times)), initial=0)) / 1e9

    @property
    def moving(self) -> list[str]:
        """Fields that change."""
        return [path for path in self.low if self.low[path] < self.high[path]]


def leaves(message: object, path: str = "") -> Iterator[tuple[str, float | bool | str]]:
    """(path, number) of every number of a message; (path, reason) of what is not read."""
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


def look_at(path: Path) -> list[Topic]:
    """All topics of a bag, or of the first in a folder."""
    with open_bag(bags_in(path)[0]) as bag:
        topics = {name: Topic(name, kind) for name, kind in sorted(bag.topics.items())}
        for name, time, message in bag.messages(topics):
            topics[name].see(time, message)
    return [topic for topic in topics.values() if topic.times]


def guess(path: Path) -> str:
    """The text of a mapping for a bag."""
    topics = look_at(path)
    if not topics:
        raise DataError(f"{path} holds no messages; record some.")
    commands = [t for t in topics if (COMMAND.search(t.name) or "Twist" in t.kind.rpartition("/")[2]) and t.moving]
    observed = [t for t in topics if t not in commands and set(t.moving) - t.flags]
    flags = [t for t in topics if t not in commands and set(t.moving) & t.flags]
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
    for topic in flags:
        lines += _trigger(topic)
    for topic in observed:
        lines += _entry(topic, "observations", rate)
    for topic in commands:
        lines += _entry(topic, "actions", rate)
    if not commands:
        lines += [
            "# No topic is called a command; name yours:",
            "# [[actions]]",
            '# topic = "..."',
            '# fields = ["..."]',
        ]
    rest = [t for t in topics if t not in (*commands, *observed, *flags)]
    lines += [
        f"# {t.name}: {t.kind}, {len(t.times)} messages; nothing in it changes, or it holds no numbers." for t in rest
    ]
    return "\n".join(lines).rstrip() + "\n"


def _seen(topic: Topic) -> str:
    return f"# {topic.kind}, {len(topic.times)} messages, {topic.rate:.1f} Hz, longest silence {topic.silence:.2f} s"


def _trigger(topic: Topic) -> list[str]:
    """A flag is proposed as what says where episodes are, as a comment: it may also be a sensor."""
    name = sorted(set(topic.moving) & topic.flags)[0]
    lines = ["[episodes.trigger]", f'topic = "{topic.name}"', f'field = "{name}"', 'when = "true"  # change, message']
    return [_seen(topic), *(f"# {line}" for line in lines), ""]


def _entry(topic: Topic, table: str, rate: float) -> list[str]:
    """One or several sources for one topic: headings and angles apart from plain values."""
    moving = topic.moving
    turned = sorted(
        {m[1] for path in topic.low if (m := re.fullmatch(r"(.*)\.[xyzw]", path)) and _is_quaternion(m[1], topic)}
    )
    turned = [stem for stem in turned if any(path.startswith(f"{stem}.") for path in moving)]
    rest = [path for path in moving if not any(path.startswith(f"{stem}.") for stem in turned)]
    angles = [path for path in rest if ANGLE.search(path)]
    plain = [path for path in rest if path not in angles]
    align = "mean" if table == "actions" else "interpolate" if topic.rate > 2 * rate else "hold"
    lines = [f"# {topic.name}", _seen(topic)]
    fixed = [path for path in topic.low if path not in moving]
    lines += [f"# constant: {', '.join(fixed)}"] if fixed else []
    lines += [f"# not read: {path} ({reason})" for path, reason in topic.left.items()]
    for kind, chosen in (("value", plain), ("angle", angles), ("yaw", turned)):
        if chosen:
            lines += [f"[[{table}]]", f'topic = "{topic.name}"', f"fields = {_listed(chosen)}"]
            lines += [f"names = {_listed(_short(chosen, topic))}"]
            lines += [f'kind = "{kind}"  # sine and cosine'] if kind != "value" else []
            lines += [f'align = "{align}"', *_clock(topic)]
            lines += (
                [f"gap = {max(2.0 / rate, 5.0 / topic.rate):.3g}  # seconds of silence that end an episode"]
                if topic.rate
                else []
            )
            lines.append("")
    return lines


def _clock(topic: Topic) -> list[str]:
    """Stamps are better times than those of the recording, if they are there and run like it."""
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


def _is_quaternion(stem: str, topic: Topic) -> bool:
    return all(f"{stem}.{axis}" in topic.low for axis in "xyzw")


def _short(paths: list[str], topic: Topic) -> list[str]:
    """The last parts of paths, as few as tell them apart among all of the topic."""
    stem = topic.name.strip("/").replace("/", "_")
    return [f"{stem}.{re.sub(r'^(pose|twist|data|msg)[.](pose|twist)[.]', '', path)}" for path in paths]


def _listed(names: list[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"
