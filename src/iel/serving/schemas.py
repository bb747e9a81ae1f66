"""Bodies of requests: what they may hold and how long they may be. A field's docstring is its line on the page."""

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from iel.errors import ConfigError
from iel.planning.watchdog import Watchdog
from iel.signals import Units

ROWS = 256
"""Rows of one request."""
LONGEST = 65_536
"""Numbers of one row."""

T = TypeVar("T")
S = TypeVar("S", bound=BaseModel)
Answer = dict[str, Any]
"""A JSON object."""
Number = Annotated[float, Field(allow_inf_nan=False)]
Row = Annotated[list[Number], Field(min_length=1, max_length=LONGEST)]
Table = Annotated[list[Row], Field(min_length=1, max_length=ROWS)]
Range = Annotated[list[Number], Field(min_length=2, max_length=2)]
Columns = Annotated[dict[Annotated[str, Field(max_length=200)], Number | Range], Field(min_length=1, max_length=64)]
"""What some columns should be, by their numbers or names: a number, or [low, high]."""
Wanted = Row | Columns


class Body(BaseModel):
    """Strict: a text is no number, and a misspelt field is an error."""

    model_config = ConfigDict(strict=True, extra="forbid", use_attribute_docstrings=True)


class Question(Body):
    """One observation and one goal, or a batch of them."""

    observation: Row | None = None
    """One observation, in the order and units of the training data."""
    observations: Table | None = None
    """Several observations, instead of one."""
    goal: Wanted | None = None
    """One goal, a full observation or {column: value}; it may stand for all observations."""
    goals: Annotated[list[Wanted], Field(min_length=1, max_length=ROWS)] | None = None
    """A goal for each observation."""
    planner: str | None = Field(default=None, max_length=40)
    """direct, rec-mid, greedy, sym-graph or asym-graph; by default the best one the model can be used with."""

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        if (self.observation is None) == (self.observations is None):
            raise ValueError("give either observation or observations")
        if (self.goal is None) == (self.goals is None):
            raise ValueError("give either goal or goals")
        return self

    @property
    def rows(self) -> tuple[list[list[float]], list[Wanted]]:
        """(observations, goals) as lists of rows."""
        return self.observations or [self.observation or []], self.goals or [self.goal or []]

    @property
    def single(self) -> bool:
        return self.observations is None and self.goals is None

    def one_or_all(self, values: list[T]) -> T | list[T]:
        """The answers in the form of the question."""
        return values[0] if self.single else values


class ActQuestion(Question):
    """What to do now."""

    units: Units = "unit"
    """Actions within [-1, 1] (unit), or in the units of the robot."""
    steps: bool = False
    """Also answer the predicted steps to the goal."""


class StepsQuestion(Question):
    """How far it is."""

    planner: str | None = Field(default=None, max_length=40)
    """Add up along this planner's route; by default the network's own prediction."""


class ControlMessage(Body):
    """One message of a control loop: a goal, an observation, or both."""

    goal: Wanted | None = None
    """Head for this goal from now on: a full observation or {column: value}."""
    planner: str | None = Field(default=None, max_length=40)
    """Planner for the goal in this message."""
    acting: Literal["mean", "sample", "unstick"] = "mean"
    """How actions are taken from the policy, for the goal in this message."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """What is random follows from it."""
    observation: Row | None = None
    """Where the robot is; answered by an action."""
    units: Units = "unit"
    """Of the actions for this observation: within [-1, 1] (unit), or those of the robot."""
    stamp: Number | None = None
    """When it was observed, or its number; for the watchdog."""
    steps: bool = False
    """Also answer the predicted steps."""
    watchdog: Watchdog | None = None
    """Stop the robot where an answer should not be trusted, on the way to the goal in this message."""
    avoid: Annotated[list[Row], Field(max_length=ROWS)] | None = None
    """Keep away from these states, which replace the former ones (graph planners)."""
    radius: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    """How far in the latent space, about that many steps."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.goal is None and self.observation is None and self.avoid is None:
            raise ValueError("give a goal, an observation, or states to avoid")
        if self.watchdog is not None and self.goal is None:
            raise ValueError("a watchdog begins with a goal; send both")
        return self


class Refusal(BaseModel):
    """What every refused request is answered."""

    error: str


def parse(schema: type[S], text: str | bytes) -> S:
    """A checked body, or one sentence about the first thing that is wrong with it."""
    try:
        return schema.model_validate_json(text)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_context=False, include_input=False)[0]
        location = ".".join(str(part) for part in first["loc"])[:80]
        reason = str(first["msg"]).removeprefix("Value error, ")[:200]
        raise ConfigError(f"{location}: {reason}." if location else f"The body is wrong: {reason}.") from None
