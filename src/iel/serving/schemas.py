"""What requests and messages may hold, and how large they may be; `/openapi.json` describes them by the same types."""

from dataclasses import fields
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from iel.errors import ConfigError, unknown_name
from iel.planning.planner import ActionKind
from iel.planning.watchdog import Watchdog
from iel.signals import Units

ROWS = 256
"""Rows of one request."""
LONGEST = 65_536
"""Numbers of one row."""

T = TypeVar("T")
S = TypeVar("S", bound=Struct)
Answer = dict[str, Any]
"""A JSON object."""


def about(text: str) -> Meta:
    """A field's line in /openapi.json and on the page."""
    return Meta(description=text)


Row = Annotated[list[float], Meta(min_length=1, max_length=LONGEST)]
Range = Annotated[list[float], Meta(min_length=2, max_length=2)]
Columns = Annotated[dict[Annotated[str, Meta(max_length=200)], float | Range], Meta(min_length=1, max_length=64)]
"""Some columns by their names or numbers: a value, or [low, high]."""
Goal = Row | Columns
Rows = Annotated[list[Row], Meta(min_length=1, max_length=ROWS)]
Goals = Annotated[list[Goal], Meta(min_length=1, max_length=ROWS)]
Avoided = Annotated[list[Row], Meta(max_length=ROWS)]
Name = Annotated[str, Meta(max_length=40)]
ActionUnits = Annotated[Units, about("Actions within [-1, 1] (unit), or in the units of the logs (robot).")]
WithSteps = Annotated[bool, about("Also return the predicted steps to the goal.")]


class Message(Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """A JSON object whose types are strict: a text is not a number, and a misspelt field is an error."""


class Query(Message, frozen=True):
    """One observation and one goal, or a batch of them."""

    observation: Annotated[Row | None, about("One observation, in the order and units of the training data.")] = None
    observations: Annotated[Rows | None, about(f"Several observations instead of one, at most {ROWS}.")] = None
    goal: Annotated[Goal | None, about("One goal for all: an observation, or {column: value or [low, high]}.")] = None
    goals: Annotated[Goals | None, about("A goal for each observation.")] = None
    planner: Annotated[Name | None, about("One of /v1/model; by default the last, for /v1/steps the network.")] = None

    def __post_init__(self) -> None:
        if (self.observation is None) == (self.observations is None):
            raise ValueError("give either observation or observations")
        if (self.goal is None) == (self.goals is None):
            raise ValueError("give either goal or goals")
        observations, goals = self.rows
        if len(observations) != len(goals) and 1 not in (len(observations), len(goals)):
            sizes = f"{len(observations)} observations and {len(goals)} goals"
            raise ValueError(f"there are {sizes}; give one goal, or as many")

    @property
    def rows(self) -> tuple[list[list[float]], list[Goal]]:
        """(observations, goals), each a list."""
        return self.observations or [self.observation or []], self.goals or [self.goal or []]

    @property
    def count(self) -> int:
        """Number of answers."""
        observations, goals = self.rows
        return max(len(observations), len(goals))

    @property
    def single(self) -> bool:
        """Whether the answer is one value instead of a list."""
        return not (self.observations or self.goals)

    def one_or_all(self, values: list[T]) -> T | list[T]:
        """The answers in the form of the query."""
        return values[0] if self.single else values


class ActQuery(Query, frozen=True):
    """A query for actions."""

    units: ActionUnits = "unit"
    steps: WithSteps = False


class ControlMessage(Message, frozen=True):
    """One message of a control loop: a goal, an observation, states to avoid, or several of these."""

    goal: Annotated[Goal | None, about("Head for this goal from now on: an observation or {column: value}.")] = None
    planner: Annotated[Name | None, about("Planner for the goal in this message.")] = None
    acting: Annotated[ActionKind, about("How actions are taken from the policy, until the next goal.")] = "mean"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="Seed of sampled actions and of noise.")] = 0
    observation: Annotated[Row | None, about("The robot's observation; the answer is an action.")] = None
    units: ActionUnits = "unit"
    stamp: Annotated[float | None, about("Time of the observation in seconds, or its number: for the watchdog.")] = None
    steps: WithSteps = False
    watchdog: Annotated[dict[str, Any] | None, about("Settings of iel.Watchdog for the goal in this message.")] = None
    avoid: Annotated[Avoided | None, about("States to keep away from, in place of the former ones.")] = None
    radius: Annotated[float, Meta(ge=0.0, description="How far to keep away, in latent units (about steps).")] = 1.0

    def __post_init__(self) -> None:
        if self.goal is None and self.observation is None and self.avoid is None:
            raise ValueError("give a goal, an observation, or states to avoid")
        if self.watchdog is not None and self.goal is None:
            raise ValueError("a watchdog begins with a goal; send both")


class Refusal(Struct):
    """The answer to a refused request: one sentence."""

    error: str


def parse(schema: type[S], text: str | bytes) -> S:
    """A checked request body or message; ConfigError is one sentence about the first thing that is wrong with it."""
    try:
        return msgspec.json.decode(text, type=schema)
    except (ValueError, RecursionError) as problem:
        raise _sentence(problem) from None


def watchdog_of(settings: dict[str, Any]) -> Watchdog:
    """The watchdog with these settings; a misspelt one is refused."""
    known = [field.name for field in fields(Watchdog)]
    for name in settings:
        if name not in known:
            raise unknown_name("setting of the watchdog", name[:40], known)
    try:
        return msgspec.convert(settings, Watchdog)
    except msgspec.ValidationError as problem:
        raise _sentence(problem) from None


def _sentence(problem: Exception) -> ConfigError:
    """What msgspec says, such as "Expected `float`, got `str` - at `$.goal[0]`", as one sentence."""
    reason, _, path = str(problem).partition(" - at `$")
    location = path.strip(".`")[:80]
    return ConfigError(f"{location}: {reason[:200]}." if location else f"The request body is wrong: {reason[:200]}.")
