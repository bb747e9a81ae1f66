"""config.json of a model: what it may say, and which rules its parts obey together.

    {"format": 3, "algo": "iel", "observation_size": 2, "action_size": 2, "beta": 0.1, "discount": 0.99,
     "conditioning": {"kind": "direction"},
     "networks": {"embedding": {"inputs": ["observation"], "sizes": [2, 128, 128, 32], "norm": true}, ...}}

Every network is described, so that reading a model needs no method. Types and ranges are fields of the structs below;
`violations` says where a description contradicts itself. A metric that the networks do not imply has `"metric"`:
`{"kind": "quasimetric", "head": "iqe", ...}`, `{"kind": "measure", "decay": 0.98}`, `{"kind": "support", "landmarks":
256}`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from iel.distances import SupportFunction
from iel.errors import ConfigError, RunError
from iel.loader import read_json
from iel.model.costs import Measure
from iel.model.model import LARGEST, Direction, GoalState, Subgoal, Waypoint
from iel.quasimetrics import Head, check_groups
from iel.signals import UNNAMED, Signals
from iel.typed import as_struct

FORMAT = 3
Size = Annotated[int, Meta(ge=1, le=LARGEST)]
Input = Literal["observation", "without_position", "goal", "command", "action", "representation"]


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of config.json."""


# ---------------------------------------------------------------- what it may say


class NetworkTable(Table, frozen=True):
    """What the file says of a `Network`."""

    inputs: Annotated[tuple[Input, ...], Meta(min_length=1)]
    sizes: Annotated[tuple[Size, ...], Meta(min_length=2, max_length=65)]
    """Inputs, hidden widths, outputs."""
    norm: bool
    heads: Size = 1
    squash: bool = False
    stochastic: bool = False
    """Whether there is a tensor `log_std`."""
    logit: bool = False
    gelu: bool = False

    @property
    def outputs(self) -> int:
        return self.sizes[-1]


class Networks(Table, frozen=True, kw_only=True):
    """The networks that a model may have; `Model` says what each is for."""

    policy: NetworkTable
    embedding: NetworkTable | None = None
    omega: NetworkTable | None = None
    representation: NetworkTable | None = None
    value: NetworkTable | None = None
    goal_features: NetworkTable | None = None
    actor: NetworkTable | None = None
    high: NetworkTable | None = None
    forward: NetworkTable | None = None

    def named(self) -> dict[str, NetworkTable]:
        """Those that are there."""
        return {name: network for name, network in msgspec.structs.asdict(self).items() if network is not None}


class MetricTable(Table, frozen=True, tag_field="kind"):
    """A metric that the networks do not imply."""


class QuasimetricTable(MetricTable, frozen=True, tag="quasimetric"):
    head: Head
    groups: Size
    mix: Annotated[float, Meta(ge=0.0, le=1.0)]
    scale: Annotated[float, Meta(ge=1e-9, le=1e9)]


class SupportFunctionTable(MetricTable, frozen=True, tag="support"):
    landmarks: Size


class ModelTable(Table, frozen=True, kw_only=True):
    """All of config.json."""

    format: Literal[3]
    sealed: bool = False
    """Whether a manifest lists the files beside it."""
    algo: str
    observation_size: Size
    action_size: Size
    conditioning: Direction | Waypoint | GoalState | Subgoal
    networks: Networks
    beta: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    discount: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    metric: QuasimetricTable | Measure | SupportFunctionTable | None = None
    signals: Signals = UNNAMED

    def width(self, part: Input) -> int:
        """How many numbers an input has; 0 for a command, whose size only the policy tells."""
        hidden = len(self.conditioning.columns) if isinstance(self.conditioning, Waypoint) else 0
        inner = self.networks.representation
        sizes: dict[Input, int] = {
            "without_position": self.observation_size - hidden,
            "action": self.action_size,
            "command": 0,
            "representation": inner.outputs if inner else 0,
        }
        return sizes.get(part, self.observation_size)

    def needed(self, network: NetworkTable) -> int:
        """Numbers of all inputs of a network but the command."""
        return sum(self.width(part) for part in network.inputs)


def read_description(path: Path) -> ModelTable:
    """The checked content of a config.json."""
    content: dict[str, Any] = read_json(path)
    if "networks" not in content and (path.parent / "run.toml").exists():
        run = path.parent
        raise RunError(f"{run} is a run, not a saved agent; write one with `iel export {run}` or `agent.save(DIR)`.")
    if content.get("format") != FORMAT:
        raise RunError(
            f"{path} has model format {str(content.get('format'))[:40]}, but this version of iel reads format "
            f"{FORMAT}; use the version that wrote it."
        )
    description = as_struct(content, ModelTable, str(path), RunError)
    for violation in violations(description):
        raise RunError(f"{path}: {violation}; it is damaged.")
    return description


# ---------------------------------------------------------------- the rules


def violations(model: ModelTable) -> Iterator[str]:
    """Where a description contradicts itself; a rule may rely on those before it."""
    for rule in (_signals, _waypoint, _inputs, _actions, _distances, _value, _commands, _metric):
        yield from rule(model)


def _signals(model: ModelTable) -> Iterator[str]:
    if wrong := model.signals.violation(model.observation_size, model.action_size):
        yield f"signals: {wrong}"


def _waypoint(model: ModelTable) -> Iterator[str]:
    if isinstance(model.conditioning, Waypoint):
        columns = model.conditioning.columns
        if max(columns) >= model.observation_size or len(set(columns)) != len(columns):
            yield f"the waypoint's columns {str(columns)[:60]} are not different columns of the observation"
        if len(model.conditioning.scale) != len(columns):
            yield "the waypoint's scale must be one positive number per column"


def _inputs(model: ModelTable) -> Iterator[str]:
    for name, network in model.networks.named().items():
        given, needed = network.sizes[0], model.needed(network)
        if given < needed or (given != needed and "command" not in network.inputs):
            yield f"{name} takes {given} numbers, but its inputs have {needed}"


def _actions(model: ModelTable) -> Iterator[str]:
    for acting in filter(None, (model.networks.policy, model.networks.actor)):
        if acting.outputs != model.action_size * (2 if acting.squash and not acting.stochastic else 1):
            yield f"the policy returns {acting.outputs} numbers for {model.action_size} actions"


def _distances(model: ModelTable) -> Iterator[str]:
    """Embeddings, goal directions and their units."""
    embedding, omega, value = model.networks.embedding, model.networks.omega, model.networks.value
    if model.beta and omega is None:
        yield f"beta is {model.beta}, but without goal directions (omega) it must be 0"
    if embedding and omega and embedding.outputs != omega.outputs:
        yield "embedding and omega differ in size"
    counts_steps = value is None or not value.logit
    if model.discount is not None and not counts_steps:
        yield "it has a discount, but its value counts no steps"
    if model.discount is None and counts_steps and (embedding or value):
        yield "it lacks discount, without which distances mean nothing"


def _value(model: ModelTable) -> Iterator[str]:
    """What a value needs beside it, and what nothing but a value needs."""
    networks, value, features = model.networks, model.networks.value, model.networks.goal_features
    inputs = value.inputs if value else ()
    if any("representation" in network.inputs for name, network in networks.named().items() if name != "value"):
        yield "only a value takes a representation"
    if "command" in inputs or ("representation" in inputs) != (networks.representation is not None):
        yield "the inputs of the value are not what the model can give it"
    if "action" in inputs and networks.actor is None and not isinstance(model.conditioning, GoalState):
        yield "the value takes actions, but no policy takes the goal"
    if networks.representation and not set(networks.representation.inputs) <= {"observation", "goal"}:
        yield "a representation takes an observation and a goal alone"
    if features and (value is None or set(features.inputs) != {"goal"}):
        yield "goal_features go with a value and take a goal alone"
    if value and (value.outputs, value.heads) != ((features.outputs, features.heads) if features else (1, value.heads)):
        yield "the value and the features it is multiplied with differ in size"
    if value and networks.actor and networks.actor.sizes[0] != 2 * model.observation_size:
        yield "the actor of a value takes an observation and a goal"
    if networks.actor and not value and not networks.forward:
        yield "an actor goes with a value or a measure"


def _commands(model: ModelTable) -> Iterator[str]:
    """The policy takes what its conditioning gives."""
    networks, policy = model.networks, model.networks.policy
    if isinstance(model.conditioning, Direction) and networks.embedding is None:
        yield "conditioning by directions needs an embedding"
    if isinstance(model.conditioning, Subgoal) and networks.high is None:
        yield "conditioning by subgoals needs the network high"
    received = policy.sizes[0] - model.needed(policy)
    source = {Direction: networks.embedding, Subgoal: networks.high}.get(type(model.conditioning))
    otherwise = model.observation_size if isinstance(model.conditioning, GoalState) else received
    given = source.outputs if source else otherwise
    if received != given:
        yield f"the policy takes commands of {received} numbers, but its conditioning gives {given}"


def _metric(model: ModelTable) -> Iterator[str]:
    networks, metric = model.networks, model.metric
    if isinstance(metric, QuasimetricTable):
        if networks.embedding is None or networks.omega or networks.value or networks.forward:
            yield "a quasimetric is one of an embedding and of nothing else"
        else:
            try:
                check_groups(metric.head, networks.embedding.outputs, metric.groups)
            except ConfigError as problem:
                yield str(problem).removesuffix(".")
    steps = model.discount == SupportFunction.discount
    if isinstance(metric, SupportFunctionTable) and not (networks.embedding and networks.omega and steps):
        yield f"a support function needs an embedding, omega and a discount of {SupportFunction.discount}"
    if isinstance(metric, Measure) != (networks.forward is not None):
        yield "a measure and the network forward go together"
    if networks.forward is not None:
        yield from _measure(model, networks.forward)


def _measure(model: ModelTable, forward: NetworkTable) -> Iterator[str]:
    """F(x, a, z) and z = B(g), which is `high`, with the policy that takes z."""
    networks = model.networks
    if networks.high is None or not networks.named().keys() <= {"policy", "actor", "forward", "high"}:
        yield "a measure is made of the networks forward and high alone"
        return
    size = networks.high.outputs
    actor = networks.policy if isinstance(model.conditioning, Subgoal) else networks.actor
    for name, network, inputs in (
        ("forward", forward, ("observation", "action", "command")),
        ("high", networks.high, ("goal",)),
        ("actor", actor, ("observation", "command")),
    ):
        command = size if "command" in inputs else 0
        if network is None or network.inputs != inputs or network.sizes[0] != model.needed(network) + command:
            yield f"{name} must take {', '.join(inputs)}, where commands have {size} numbers"
    if forward.outputs != size:
        yield "forward and high differ in size"
