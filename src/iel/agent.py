"""An agent: a model, the states it plans over and a planner in one hand.

agent = iel.fit(data)                         train and prepare, with defaults that suit the data
agent.act(observation, goal)                  one action; nothing is remembered
episode = agent.start(goal)                   a control loop with a memory of its own
action = episode.act(observation)
agent.plan(observation, goal)                 the route, for people
agent.steps(observation, goal)                predicted steps
agent.evaluate("pointmaze-large-navigate-v0")
agent.save("my-agent"); iel.load_agent("my-agent")     needs no JAX
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from numpy.typing import ArrayLike

from iel.card import card_of, read_origin, write_card
from iel.distances import Floats
from iel.errors import ConfigError, RunError
from iel.files import new_directory, seal, write_json
from iel.loader import read_json
from iel.model import Model, load_model
from iel.model.archive import unpacked
from iel.model.atlas import Atlas, Source
from iel.model.files import MANIFEST_FORMAT, write_model
from iel.model.support import Outside
from iel.planning import Acting, Controller, Planner, Route, make_planner, usual_planner
from iel.planning.goals import Goal, observation_table
from iel.planning.watchdog import Watchdog, Watched
from iel.signals import Signals, Units
from iel.typed import as_struct

if TYPE_CHECKING:
    from iel.data import Trajectories
    from iel.evaluation.result import Evaluation
    from iel.methods import Method

AGENT = "agent.json"
"""Which planner an agent uses; beside the files of its model."""
STORED_IN_ATLAS = ("nodes", "coreset", "sigma", "pool", "seed", "unobserved_cost")
"""Options that say which states are chosen and what the data says of them: the saved states answer that."""


class Saved(Struct, frozen=True):
    """The content of agent.json."""

    planner: str
    options: dict[str, bool | int | float | str | None] = {}


class Episode:
    """One agent in pursuit of one goal, with a memory of its own."""

    def __init__(
        self,
        planner: Planner,
        goal: Goal,
        acting: Acting | None = None,
        seed: int = 0,
        watchdog: Watchdog | None = None,
    ):
        """`acting` says how actions are taken from the policy (by default its mean); `seed` decides what is random."""
        self._planner = planner.fork()
        self._planner.prepare(goal, acting, seed)
        self._watched = None if watchdog is None else Watched(watchdog, self._planner)

    def __repr__(self) -> str:
        return f"Episode({self._planner!r})"

    def act(self, observation: ArrayLike, units: Units = "unit", stamp: float | None = None) -> Floats:
        """The action for an observation (obs_dim,): (act_dim,), within [-1, 1], or in the units of the "robot".

        Under a watchdog, `stamp` is when it was observed, or its number.
        """
        if self._watched is not None:
            return self._watched.act(observation, units, stamp)
        if stamp is not None:
            raise ConfigError("Only a watchdog looks at stamps; start the episode with watchdog=Watchdog(stop=...).")
        return self._planner.act(observation, units)

    @property
    def stopped(self) -> str | None:
        """Why the watchdog answered with the stop action last time; None if it did not."""
        return None if self._watched is None else self._watched.stopped

    def steps(self, observation: ArrayLike) -> float:
        """Predicted steps from an observation to the goal; infinite where no route leads there."""
        return self._planner.predicted_steps(observation)

    def plan(self, observation: ArrayLike) -> Route:
        """The route from an observation to the goal."""
        return self._planner.path(observation)


class Agent:
    """A model, the states it plans over and a planner. It remembers nothing between calls, so any number of robots may
    share it."""

    def __init__(self, model: Model, data: Source | None = None, planner: str | None = None, **options: Any):
        """`data` are trajectories, an `Atlas` or a table of observations; without them the states that the model was
        exported with. `direct` needs none. Without a name the planner is the one that suits the model and the data
        (`iel.planning.usual_planner`). `options` are those of the planner, such as `nodes=2048`."""
        self.model, self.options = model, options
        self.origin: dict[str, Any] = {}
        """Data, method and settings, as far as they are known: what its card says."""
        name = planner or usual_planner(model, model.atlas if data is None else data)
        if data is None:
            self.planner = model.planner(name, **options)
        else:
            self.planner = make_planner(name, model, data, **options)

    def __repr__(self) -> str:
        return f"Agent({self.model!r}, {self.planner!r})"

    @property
    def signals(self) -> Signals:
        """Names, units and ranges of its columns, and the rate at which they were recorded."""
        return self.model.signals

    @property
    def atlas(self) -> Atlas:
        """The states that it plans over."""
        return self.planner.atlas

    def using(self, planner: str, **options: Any) -> Agent:
        """The same model and states with another planner."""
        return Agent(self.model, self.atlas, planner, **options)

    def act(self, observation: ArrayLike, goal: Goal, units: Units = "unit") -> Floats:
        """The action towards a goal: a state, columns as in {"x": 8.5}, or any goal of `iel.planning.goals`.

        One observation (obs_dim,) gives one action (act_dim,), a table (n, obs_dim) one for each row. They are within
        [-1, 1], or with units="robot" what its logs held: low + (a + 1) (high - low) / 2.
        """
        rows = observation_table(observation, self.model.observation_size, "observation")
        actions = Controller(self.model, self.planner.plan([goal] * len(rows))).act(rows)
        actions = self.signals.in_units(actions, units)
        return actions[0] if np.ndim(observation) == 1 else actions

    def start(
        self,
        goal: Goal,
        acting: Acting | None = None,
        seed: int = 0,
        rate: float | None = None,
        any_rate: bool = False,
        watchdog: Watchdog | None = None,
    ) -> Episode:
        """A control loop towards a goal: `episode.act(observation)` at every step.

        `rate` is how many steps a second it will take: another one than the data's is refused unless `any_rate`. A
        `watchdog` stops the robot where an answer should not be trusted (`iel.planning.watchdog`).
        """
        if rate is not None and not any_rate:
            self.signals.check_rate(rate)
        if watchdog is not None:
            watchdog.require(self.model.action_size)
        return Episode(self.planner, goal, acting, seed, watchdog)

    def plan(self, observation: ArrayLike, goal: Goal) -> Route:
        """The route from an observation to a goal."""
        return self.start(goal).plan(observation)

    def steps(self, observation: ArrayLike, goal: Goal) -> float:
        """Predicted steps from an observation to a goal."""
        return self.start(goal).steps(observation)

    def evaluate(
        self, env: Any, episodes: int = 20, seed: int = 0, *, progress: bool = True, **world: Any
    ) -> Evaluation:
        """Success in an environment: its name, a Gymnasium environment of your own, or a function that makes one.

        `world` is what your environment does not say itself: `goal`, `success`, `tolerance`, `columns`, `max_steps`.
        """
        from iel.envs.own import arena_of
        from iel.evaluation import Protocol
        from iel.evaluation.rollout import evaluate_planners

        planners = {self.planner.name: self.planner}
        return evaluate_planners(self.model, planners, arena_of(env, **world), Protocol(episodes, seed=seed), progress)

    def save(self, path: Path | str, licence: str | None = None) -> Path:
        """Write a directory that `iel.load_agent` reads, whole or not at all: weights, planning states, a card that
        says the `licence` under which others may use it, checksums.

        What is loaded acts the same to the last bit. A metric of your own cannot be saved.
        """
        final = Path(path)
        if final.exists():
            raise RunError(f"{final} already exists; choose another path, or remove it.")
        if "metric" in self.options:
            raise ConfigError(
                "This agent plans with a metric of your own, which no file holds; save its model instead."
            )
        options = {name: value for name, value in self.options.items() if name not in STORED_IN_ATLAS}
        with new_directory(final) as partial:
            atlas = self.write(partial)
            write_json(partial / AGENT, {"planner": self.planner.name, "options": options})
            origin = self.origin if licence is None else {**self.origin, "licence": licence}
            card = card_of(self.model, atlas, origin)
            write_card(partial, card)
            seal(partial, MANIFEST_FORMAT, card["versions"])
        return final

    def write(self, directory: Path) -> Atlas | None:
        """Write the model, and the states that its planner can be built from again, which are returned."""
        write_model(self.model, directory)
        atlas = self.planner.node_atlas()
        if atlas is not None:
            atlas.save(self.model, directory / "planner.safetensors")
        return atlas


def load_agent(path: Path | str, planner: str | None = None, *, outside: Outside = "warn") -> Agent:
    """An agent from `Agent.save` or `iel export`, as a directory or a zip archive; `planner` replaces its own.

    `outside` is what happens with goals and observations far outside of the training data: warn, refuse or ignore.
    """
    with unpacked(Path(path)) as directory:
        model = load_model(directory, outside)
        saved, file = Saved(usual_planner(model, model.atlas)), directory / AGENT
        if file.exists():
            saved = as_struct(read_json(file), Saved, str(file), RunError)
        origin = read_origin(directory)
    if planner is not None:
        saved = Saved(planner)
    agent = Agent(model, None, saved.planner, **saved.options)
    agent.origin = origin
    return agent


def fit(
    data: Trajectories | str | Path,
    method: Method | None = None,
    *,
    planner: str | None = None,
    seed: int = 0,
    out: Path | str | None = None,
    progress: bool = True,
) -> Agent:
    """Train on trajectories (or a file, folder or data set of this name) and prepare a planner over them.

    Without a `method` it is HTP with a preset that suits the data (`suited`). With `out`, training is written there and
    can be resumed. Without a `planner` it is the one that suits model and data (`iel.planning.usual_planner`).
    """
    from iel.data import load
    from iel.training import train
    from iel.training.run import run_config

    known = load(data) if isinstance(data, (str, Path)) else data
    algo = suited(known) if method is None else method
    model = train(known, algo, [seed], out=out, progress=progress).model
    agent = Agent(model, known, planner)
    agent.origin = {**run_config(known, algo, [seed], None), "seed": seed, "status": "finished"}
    return agent


PASSES, FEWEST_STEPS = 64, 2000
"""How often a geometry sees every transition of the data at most, and steps that it needs to unfold."""


def suited(data: Trajectories) -> Method:
    """HTP with the preset that suits the data, and fewer steps for the geometry where the logs are small.

    Of few trajectories it would learn every turn by heart: that whatever no log shows takes long (docs/own-robot.md).
    """
    from iel.methods import HTP

    method = HTP.preset(suited_preset(data))
    enough = max(PASSES * data.num_transitions // method.batch_size, FEWEST_STEPS)
    return replace(method, steps=min(method.steps, enough))


def suited_preset(data: Trajectories) -> str:
    """`laptop` where every column is a position, `laptop-robot` where some are (a robot that turns, or has joints),
    `laptop-arm` where nothing separates position from pose."""
    if not data.position_columns:
        return "laptop-arm"
    return "laptop" if len(data.position_columns) == data.observation_size else "laptop-robot"
