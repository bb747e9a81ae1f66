"""The frozen model: one numpy class for the end of training, evaluation, export and robots; JAX is only for training.

    phi = embed(x)      phi(g), omega_g = goals(g)      c = command(x, target)      a = act(x, c)      H = steps(x, g)

A method exports three things:

- the *metric* says what it costs to go from one embedded state to another (None: the method has no distances);
- the *conditioning* turns a planner's target into the command that the policy takes;
- the *policy* takes an observation and a command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import ArrayLike

from iel.distances import (
    Booleans,
    Displacement,
    Floats,
    Metric,
    Quasimetric,
    SupportFunction,
    directed,
    plain_numbers,
    projection,
)
from iel.distances import unit as unit_or_else
from iel.errors import ConfigError, GeometryError, RunError
from iel.model.costs import Measure, MeasureCost, ValueCost
from iel.model.networks import FloatArray, Network, in_blocks, on_sphere, unit
from iel.model.support import Outside, Support
from iel.quasimetrics import check_groups
from iel.signals import UNNAMED, Signals

if TYPE_CHECKING:
    from iel.planning import Atlas, Planner

LARGEST = 65536
"""Sizes above this are a damaged file, not a network."""
Length = Annotated[float, Meta(ge=0.0, le=1e30)]
LOG_STD_RANGE = (-5.0, 2.0)
"""Log standard deviations of policies are clipped to this, in training and here."""


# ---------------------------------------------------------------- conditioning: how a target becomes a command


class Target(NamedTuple):
    """Where a planner sends n episodes."""

    point: Floats
    """(n, d) where to in the latent."""
    observation: Floats
    """(n, o) that point as a state of the data, or the goal; NaN for a mixture or a direction, which is not a state."""
    is_goal: Booleans
    """(n,) whether the target is the goal itself."""
    goal_point: Floats
    """(n, d) phi(g) of the goal that is pursued."""
    goal_direction: Floats
    """(n, d) omega_g of the goal that is pursued."""
    cost: Floats
    """(n,) predicted cost to the goal from here; infinite where nothing is known."""


@dataclass(frozen=True)
class TargetSpec:
    """Which targets a policy was trained for; planners choose theirs alike."""

    columns: tuple[int, ...] = ()
    """Position columns, where it is sent to positions."""
    scale: tuple[float, ...] = ()
    """What each of them is divided by."""
    reach: float = 0.0
    """Mean distance of its waypoints in training, in these units (0: unknown)."""
    steps: int = 0
    """Steps ahead at which its targets lie in graphs, where the data says what steps cost (0: the next node)."""
    ahead: float = 0.0
    """Largest distance of its targets in training, in the metric's unit (0: no limit)."""

    def positions(self, observations: FloatArray) -> Floats | None:
        """x[columns] / scale of many states, (n, columns); None without position columns."""
        if not self.columns:
            return None
        return observations[:, list(self.columns)].astype(np.float64) / np.array(self.scale)


class Conditioning(Struct, frozen=True, tag_field="kind"):
    """What the policy receives of a planner's target; its fields are those of the model's file."""

    @property
    def kind(self) -> str:
        """Its name in files."""
        return str(self.__struct_config__.tag)

    @property
    def target_spec(self) -> TargetSpec:
        """What planners need to know of it."""
        return TargetSpec()

    def command(self, model: Model, observations: FloatArray, target: Target, embeddings: Floats) -> Floats:
        """(n, c)."""
        raise NotImplementedError


class Direction(Conditioning, frozen=True, tag="direction"):
    """z = unit(phi(target) - phi(x)): the paper's, and HILP's. The policy never sees a goal.

    A state that sits on its target heads for phi(g); one that sits on that as well follows omega_g.
    """

    ahead: Length = 0.0
    """The furthest that states were which the policy was sent to in training, in the metric's unit (0: no limit)."""

    @property
    def target_spec(self) -> TargetSpec:
        return TargetSpec(ahead=self.ahead)

    def command(self, model: Model, observations: FloatArray, target: Target, embeddings: Floats) -> Floats:
        here = np.asarray(embeddings, np.float64)
        return unit_or_else(target.point - here, lambda: target.goal_point - here, lambda: target.goal_direction)


class Waypoint(Conditioning, frozen=True, tag="waypoint"):
    """z = unit((target - x)[columns] / scale): the direction to the target's own state, in the position columns.

    Its policy usually does not see these columns of its own state (its input is `without_position`): what it learns at
    one position holds at every other.
    """

    columns: Annotated[tuple[Annotated[int, Meta(ge=0, lt=LARGEST)], ...], Meta(min_length=1)]
    scale: tuple[Annotated[float, Meta(ge=1e-30, le=1e30)], ...]
    reach: Length = 0.0
    """How far away, in these units, the policy's waypoints were in training, on average (0: not known)."""

    @property
    def target_spec(self) -> TargetSpec:
        return TargetSpec(self.columns, self.scale, self.reach)

    def command(self, model: Model, observations: FloatArray, target: Target, embeddings: Floats) -> Floats:
        chosen = list(self.columns)
        ahead = _state_of(target)[:, chosen].astype(np.float64) - observations[:, chosen]
        return unit_or_else(ahead / np.array(self.scale))


STEPS_AHEAD = 10
"""Steps ahead at which a graph's targets lie for policies that are sent to states, where the data says what steps cost.
Few of their goals in training were nearer: sent to the next node of a fine graph, some stand still."""


class GoalState(Conditioning, frozen=True, tag="goal"):
    """The target's own state, as it is: for policies pi(a | x, g)."""

    @property
    def target_spec(self) -> TargetSpec:
        return TargetSpec(steps=STEPS_AHEAD)

    def command(self, model: Model, observations: FloatArray, target: Target, embeddings: Floats) -> Floats:
        return _state_of(target)


class Subgoal(Conditioning, frozen=True, tag="subgoal"):
    """What a high-level network makes of the target: high(x, target) or high(target), scaled to length sqrt(c)."""

    @property
    def target_spec(self) -> TargetSpec:
        return TargetSpec(steps=STEPS_AHEAD)

    def command(self, model: Model, observations: FloatArray, target: Target, embeddings: Floats) -> Floats:
        high = model.networks["high"]
        return on_sphere(high(model.inputs(high, observation=observations, goal=_state_of(target))))


def _state_of(target: Target) -> FloatArray:
    """The target as a state of the data."""
    if np.isnan(target.observation).any():
        raise GeometryError(
            "A mixture or the direction of a reward is not a state, and this policy is sent to states; use a graph "
            "planner, whose nodes are states, or give single states."
        )
    return np.asarray(target.observation, np.float32)


# ---------------------------------------------------------------- the model


class PlanningModel(Protocol):
    """What a planner needs of a model: embeddings, goals, a metric, and how a target becomes an action.

    A class of your own inherits from it, and with that the defaults of what it does not know.
    """

    metric: Metric | None = None
    """Costs between embeddings; None for a method that has no distances and can only be pursued directly."""
    algo: str = ""
    """The method that trained it."""
    support: Support | None = None
    """Where the training data was, if it is known."""
    outside: Outside = "warn"
    """What to do about goals and observations far outside of it."""
    signals: Signals = UNNAMED
    """Names, units and ranges of its columns."""

    @property
    def target_spec(self) -> TargetSpec:
        """Which targets the policy was trained for."""
        return TargetSpec()

    def embed(self, observations: Floats, /) -> Floats:
        """phi: (n, obs_dim) -> (n, d)."""

    def goals(self, states: Floats, /) -> tuple[Floats, Floats]:
        """(phi(g), omega_g): (n, obs_dim) -> (n, d) and (n, d), unit vectors."""

    def command(self, observations: Floats, target: Target, embeddings: Floats, /) -> Floats:
        """The policy's input beside the observation: (n, c)."""

    def act(self, observations: Floats, commands: Floats, generator: np.random.Generator | None = None, /) -> Floats:
        """The policy's mean action for each observation and command, or a sample of it: (n, act_dim)."""

    def drive(
        self, observations: Floats, target: Callable[[Floats], Target], generator: np.random.Generator | None = None
    ) -> Floats:
        """Actions (n, act_dim) towards the targets that a plan returns for the embeddings of these observations."""
        embeddings = self.embed(observations)
        commands = self.command(observations, target(embeddings), embeddings)
        return self.act(observations, commands) if generator is None else self.act(observations, commands, generator)


class Model:
    """A frozen model that acts, measures and plans with numpy alone."""

    def __init__(
        self,
        algo: str,
        observation_size: int,
        action_size: int,
        networks: Mapping[str, Network],
        conditioning: Conditioning,
        *,
        beta: float | None = None,
        discount: float | None = None,
        metric: Quasimetric | SupportFunction | Measure | None = None,
        atlas: Atlas | None = None,
        support: Support | None = None,
        signals: Signals = UNNAMED,
    ):
        """`networks` hold `policy`, and `embedding` and `omega`, `value`, `high` as the method has them.

        A `metric` that is given is used as it is. Without one, the networks imply it: with an embedding a
        `Displacement` with this `beta`; with a value, a `ValueCost`; with neither there is none. `discount` says what
        costs are worth in steps. A value may need more networks: `goal_features` (it is a product), `representation`
        (its input in place of the goal), `actor` (the policy at whose action a critic is evaluated, where `policy`
        receives something other than the goal). A `Measure` is made of `forward` and of `high`, which is B.
        """
        self.algo, self.observation_size, self.action_size = algo, observation_size, action_size
        self.networks, self.atlas = dict(networks), atlas
        self.support = support
        """Where the training data was; None if unknown."""
        self.outside: Outside = "warn"
        """What planners do about goals and observations far outside of it: warn, refuse or ignore."""
        self.signals = signals.require(observation_size, action_size, "signals", ConfigError)
        """Names, units and ranges of its columns, and the rate at which they were recorded."""
        self.metric: Metric | None = None
        self.stated_metric = metric
        """The metric where it was given rather than implied: what a file must say about it."""
        if isinstance(metric, Measure):
            self.metric = MeasureCost(self, metric.decay)
        elif metric is not None:
            self.metric = metric
            if isinstance(metric, Quasimetric):
                check_groups(metric.head, self.dimension, metric.groups)
        elif "embedding" in self.networks:
            self.metric = Displacement(0.0 if beta is None else beta, discount)
        elif "value" in self.networks:
            self.metric = ValueCost(self, discount)
        self.conditioning = conditioning
        columns = set(conditioning.columns) if isinstance(conditioning, Waypoint) else set()
        self.elsewhere = [column for column in range(observation_size) if column not in columns]
        """Columns that a policy without positions receives: all but those it is conditioned on."""
        self._elsewhere = np.array(self.elsewhere, np.int64)
        policy = self.networks["policy"]
        seen = self.observation_size if "observation" in policy.inputs else len(self.elsewhere)
        self.command_size = policy.heads[0].kernels[0].shape[0] - seen
        """Size of a command."""

    def driven_by(self, other: Model) -> Model:
        """These distances with the policy of another model that is conditioned on states: a model like any other.

        A critic that needs the action of its own policy keeps that policy as its `actor`.
        """
        if not isinstance(other.conditioning, (Waypoint, GoalState)):
            raise ConfigError(
                f"The policy of {other.algo} is conditioned on its own embedding ({other.conditioning.kind}), so it "
                "can follow no other distances; give a waypoint policy."
            )
        ours, theirs = ((model.observation_size, model.action_size) for model in (self, other))
        if ours != theirs:
            raise ConfigError(
                f"The two models have {ours} and {theirs} numbers in an observation and an action; give a policy of "
                "the same robot."
            )
        networks = {name: network for name, network in self.networks.items() if name != "policy"}
        if "forward" in networks:
            networks.setdefault("actor", self.networks["policy"])
        elif "value" in networks and "action" in networks["value"].inputs:
            networks.setdefault("actor", replace(self.networks["policy"], inputs=("observation", "goal")))
        if "forward" not in networks:
            networks.pop("high", None)
        networks["policy"] = other.networks["policy"]
        model = self.replaced(networks, other.conditioning)
        model.atlas = None
        return model

    def replaced(self, networks: Mapping[str, Network], conditioning: Conditioning) -> Model:
        """The same metric, states and support with other networks and another conditioning."""
        model = Model(
            self.algo,
            self.observation_size,
            self.action_size,
            networks,
            conditioning,
            beta=self.metric.beta if isinstance(self.metric, Displacement) else None,
            discount=None if self.metric is None else self.metric.discount,
            metric=self.stated_metric,
            atlas=self.atlas,
            support=self.support,
            signals=self.signals,
        )
        model.outside = self.outside
        return model

    @property
    def target_spec(self) -> TargetSpec:
        """Which targets the policy was trained for."""
        return self.conditioning.target_spec

    def __repr__(self) -> str:
        metric = "no distances" if self.metric is None else type(self.metric).__name__
        sizes = f"{self.observation_size} -> {self.action_size}"
        return f"Model({self.algo}, {sizes}, {metric}, policy conditioned on {self.conditioning.kind})"

    @property
    def dimension(self) -> int:
        """Size of an embedding."""
        return self.networks["embedding"].sizes[-1] if "embedding" in self.networks else self.observation_size

    @property
    def actor(self) -> Network:
        """The policy pi(a | x, g) at whose action a critic is evaluated."""
        return self.networks.get("actor", self.networks["policy"])

    # ---------------------------------------------------------------- for planners

    def embed(self, observations: ArrayLike) -> FloatArray:
        """phi(x): (n, observation size) -> (n, dimension); the observation itself where none was learned."""
        return self._embedded(self._rows(observations, "observations"))

    def _embedded(self, rows: FloatArray) -> FloatArray:
        network = self.networks.get("embedding")
        return rows if network is None else in_blocks(network, "embeddings", rows)

    def goals(self, states: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """(phi(g), omega_g): (n, observation size) -> (n, dimension) twice."""
        return self.embed(states), self.omega(states)

    def omega(self, goals: ArrayLike) -> FloatArray:
        """omega_g: of length one, except for a support function, where <phi(g) - phi(x), omega_g> is in steps.

        Without a network for it the first axis, which changes no cost of the metric.
        """
        rows = self._rows(goals, "goals")
        network = self.networks.get("omega")
        if network is not None and isinstance(self.metric, SupportFunction):
            return in_blocks(network, "goal directions", rows)
        if network is not None:
            return in_blocks(lambda x: unit(network(x)), "goal directions", rows)
        axis = np.zeros((len(rows), self.dimension), np.float32)
        axis[:, 0] = 1.0
        return axis

    def command(self, observations: ArrayLike, target: Target, embeddings: Floats | None = None) -> FloatArray:
        """The policy's second input, to get from the observations to a planner's target: (n, command size).

        `embeddings` are those of the observations, if they are known already.
        """
        rows = self._rows(observations, "observations")
        known = self._embedded(rows) if embeddings is None else embeddings
        return np.asarray(self.conditioning.command(self, rows, target, known), np.float32)

    def act(
        self, observations: ArrayLike, commands: ArrayLike, generator: np.random.Generator | None = None
    ) -> FloatArray:
        """The policy's mean action, or with a generator a sample of it, within [-1, 1]: (n, action size)."""
        rows = self._rows(observations, "observations")
        conditions = _numbers(commands, "The commands")
        if conditions.shape != (len(rows), self.command_size):
            raise ConfigError(
                f"The commands have shape {conditions.shape}, but {len(rows)} observations need "
                f"({len(rows)}, {self.command_size})."
            )
        if not np.isfinite(conditions).all():
            raise GeometryError("The commands hold a number that is not finite; act needs finite commands.")
        return self._acted(rows, conditions, generator)

    def _acted(self, rows: FloatArray, commands: FloatArray, generator: np.random.Generator | None) -> FloatArray:
        if generator is None:
            return in_blocks(self.mean_action, "actions", rows, commands)
        noise = generator.standard_normal((len(rows), self.action_size), np.float32)
        return in_blocks(self._sample, "actions", rows, commands, noise)

    def drive(
        self,
        observations: ArrayLike,
        target: Callable[[Floats], Target],
        generator: np.random.Generator | None = None,
    ) -> FloatArray:
        """Actions (n, action size) towards the targets that a plan returns for the embeddings of these observations,
        which are checked once."""
        rows = self._rows(observations, "observations")
        embeddings = self._embedded(rows)
        commands = np.asarray(self.conditioning.command(self, rows, target(embeddings), embeddings), np.float32)
        return self._acted(rows, commands, generator)

    def reward_command(self, states: ArrayLike, rewards: ArrayLike) -> FloatArray:
        """The command for a reward, (command size,): z = E[r B(x)], scaled to length sqrt(d).

        `states` (n, observation size) are drawn as the data is, `rewards` (n,) are what it is worth to be there.
        """
        if not isinstance(self.metric, MeasureCost) or not isinstance(self.conditioning, Subgoal):
            raise GeometryError(f"The policy of {self.algo} takes no task vectors; use a graph planner with a Reward.")
        rows, worth = self._rows(states, "states"), np.asarray(rewards, np.float64)
        if worth.shape != (len(rows),) or not np.isfinite(worth).all() or len(rows) == 0:
            raise ConfigError(f"The rewards must be {len(rows)} finite numbers, one per state, and at least one.")
        task = worth @ self.metric.tasks(rows) / len(rows)
        if np.linalg.norm(task) < 1e-6 * max(1e-30, float(np.abs(worth).max())):
            raise GeometryError("This reward is worth nothing anywhere as far as the model can tell; give another one.")
        return on_sphere(task.astype(np.float32) / np.float32(np.linalg.norm(task)))

    # ---------------------------------------------------------------- for people

    def steps(self, observations: ArrayLike, goals: ArrayLike) -> FloatArray:
        """Predicted steps from x to g, row by row: what `cost` stands for."""
        cost = self.cost(observations, goals, goals)
        assert self.metric is not None
        return np.asarray(self.metric.steps(cost), np.float32)

    def cost(self, sources: ArrayLike, targets: ArrayLike, goals: ArrayLike) -> FloatArray:
        """The learned cost of going from s to t towards the goal g, row by row, in the metric's own unit."""
        if self.metric is None:
            raise GeometryError(f"{self.algo} learned no distances; it can only act.")
        if isinstance(self.metric, Displacement):
            return directed(self.embed(sources), self.embed(targets), self.omega(goals), self.metric.beta)
        return np.asarray(self.metric.row_costs(self.embed(sources), self.embed(targets), []), np.float32)

    def displacement(self, observations: ArrayLike, goals: ArrayLike) -> FloatArray:
        """<phi(g) - phi(x), omega_g>, row by row: the displacement read along the goal's own direction."""
        if "omega" not in self.networks:
            raise GeometryError(
                f"{self.algo} learns no goal directions to measure a displacement along; use model.cost."
            )
        return projection(self.embed(observations), self.embed(goals), self.omega(goals))

    def planner(self, name: str = "asym-graph", **settings: Any) -> Planner:
        """A planner of `iel.planning` over the states that were exported with the model; `direct` needs none."""
        from iel.planning import Atlas, make_planner  # acting needs no scipy, planning does

        if name == "direct":
            return make_planner(name, self, self.atlas or Atlas.blank(self.observation_size), **settings)
        if self.atlas is None:
            raise RunError(
                "This model was exported without planning states; export it with --nodes 2048, or give make_planner "
                "observations of your own."
            )
        return make_planner(name, self, self.atlas, **settings)

    # ---------------------------------------------------------------- inside

    def inputs(self, network: Network, **known: FloatArray) -> FloatArray:
        """A network's inputs side by side, in the order its description lists them."""
        if network.inputs[0] == "without_position":
            known["without_position"] = known["observation"].take(self._elsewhere, axis=1)
        if "representation" in network.inputs:
            inner = self.networks["representation"]
            known["representation"] = on_sphere(inner(self.inputs(inner, **known)))
        return np.concatenate([known[name] for name in network.inputs], axis=1)

    def mean_action(self, rows: FloatArray, commands: FloatArray, policy: Network | None = None) -> FloatArray:
        """The action at the mean of the policy, or of another one that takes the same."""
        policy = policy or self.networks["policy"]
        mean = policy.mean(self.inputs(policy, observation=rows, command=commands, goal=commands))
        if policy.squash:
            mean = np.tanh(mean[:, : self.action_size])
        return np.minimum(np.maximum(mean, -1.0, out=mean), 1.0, out=mean)

    def _sample(self, rows: FloatArray, commands: FloatArray, noise: FloatArray) -> FloatArray:
        policy = self.networks["policy"]
        answer = policy.mean(self.inputs(policy, observation=rows, command=commands))
        if policy.squash and policy.log_std is None:
            mean, log_std = np.split(answer, 2, axis=1)
            return np.tanh(mean + np.exp(np.clip(log_std - 1.0, *LOG_STD_RANGE)) * noise)
        if policy.log_std is None:
            raise ConfigError(f"{self.algo} learned no standard deviation of its actions to sample with; use the mean.")
        answer = np.tanh(answer) if policy.squash else answer
        return np.clip(answer + np.exp(np.clip(policy.log_std, *LOG_STD_RANGE)) * noise, -1.0, 1.0)

    def _rows(self, values: ArrayLike, kind: str) -> FloatArray:
        rows = _numbers(values, f"The {kind}")
        if rows.ndim != 2 or rows.shape[1] != self.observation_size:
            raise ConfigError(
                f"The {kind} have shape {rows.shape}, but this model takes rows of "
                f"{self.observation_size} numbers: (n, {self.observation_size})."
            )
        # A sensor that says NaN must stop here, not at the motors.
        if not np.isfinite(rows).all():
            row = int(np.argmin(np.isfinite(rows).all(axis=1)))
            raise GeometryError(f"The {kind} hold a number that is not finite in row {row}; fix the input.")
        return rows


def _numbers(values: ArrayLike, what: str) -> FloatArray:
    """Float32 numbers; what planners have made is that already."""
    if type(values) is np.ndarray and values.dtype == np.float32:
        return values
    return plain_numbers(values, what, GeometryError).astype(np.float32, copy=False)
