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

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from iel.errors import RunError
from iel.files import new_directory, seal, write_json
from iel.loader import read_json
from iel.metrics import Floats
from iel.model import Model, load_model, save_model
from iel.model.files import MANIFEST_FORMAT
from iel.model.support import Outside
from iel.planning import Acting, AsymGraph, Controller, Planner, Route, make_planner, planners_for
from iel.planning.goals import Goal, observation_table

if TYPE_CHECKING:
    from iel.data import Trajectories
    from iel.evaluation.result import Evaluation
    from iel.methods import Method

AGENT = "agent.json"
"""Which planner an agent uses; beside the files of its model."""


class Episode:
    """One agent on its way to one goal: what is remembered on the way belongs to it alone."""

    def __init__(self, planner: Planner, goal: Goal, acting: Acting | None = None, seed: int = 0):
        """`acting` says how actions are taken from the policy (by default its mean); `seed` decides what is random."""
        self._planner = planner.fork()
        self._planner.prepare(goal, acting, seed)

    def act(self, observation: Any) -> Floats:
        """The action for an observation (obs_dim,): (act_dim,), within [-1, 1]."""
        return self._planner.act(observation)

    def steps(self, observation: Any) -> float:
        """Predicted steps from an observation to the goal; infinite where no route leads there."""
        return self._planner.predicted_steps(observation)

    def plan(self, observation: Any) -> Route:
        """The route from an observation to the goal."""
        return self._planner.path(observation)


class Agent:
    """A model with a planner. It remembers nothing between calls, so any number of robots may share it."""

    def __init__(self, model: Model, planner: Planner):
        self.model, self.planner = model, planner

    def __repr__(self) -> str:
        return f"Agent({self.model!r}, {self.planner!r})"

    def act(self, observation: Any, goal: Goal) -> Floats:
        """The action towards a goal: a state, columns as in {0: 8.5}, or any goal of `iel.planning.goals`.

        One observation (obs_dim,) gives one action (act_dim,), a table (n, obs_dim) one for each row.
        """
        rows = observation_table(observation, self.model.observation_size, "observation")
        actions = Controller(self.model, self.planner.plan([goal] * len(rows))).act(rows)
        return actions[0] if np.ndim(observation) == 1 else actions

    def start(self, goal: Goal, acting: Acting | None = None, seed: int = 0) -> Episode:
        """A control loop towards a goal: `episode.act(observation)` at every step."""
        return Episode(self.planner, goal, acting, seed)

    def plan(self, observation: Any, goal: Goal) -> Route:
        """The route from an observation to a goal."""
        return self.start(goal).plan(observation)

    def steps(self, observation: Any, goal: Goal) -> float:
        """Predicted steps from an observation to a goal."""
        return self.start(goal).steps(observation)

    def evaluate(
        self, env: Any, episodes: int = 20, seed: int = 0, *, progress: bool = True, **world: Any
    ) -> Evaluation:
        """Success in an environment: its name, a Gymnasium environment of your own, or a function that makes one.

        `world` is what your environment does not say itself: `goal`, `success`, `tolerance`, `columns`, `max_steps`.
        """
        from iel.envs import World
        from iel.evaluation import Protocol
        from iel.evaluation.rollout import evaluate_planners

        place = env if isinstance(env, str) else World.of(env, **world)
        planners = {self.planner.name: self.planner}
        return evaluate_planners(self.model, planners, place, Protocol(episodes, seed=seed), progress)

    def save(self, path: Path | str) -> Path:
        """Write a directory that `iel.load_agent` reads, whole or not at all: weights, planning states, checksums."""
        final = Path(path)
        if final.exists():
            raise RunError(f"{final} already exists; choose another path, or remove it.")
        with new_directory(final) as partial:
            save_model(self.model, partial)
            if isinstance(self.planner, AsymGraph):
                self.planner.node_atlas().save(self.model, partial / "planner.safetensors")
            write_json(partial / AGENT, {"planner": self.planner.name})
            seal(partial, MANIFEST_FORMAT, {})
        return final


def load_agent(path: Path | str, planner: str | None = None, *, outside: Outside = "warn") -> Agent:
    """An agent from `Agent.save` or `iel export`; `planner` replaces the one it was saved with.

    `outside` is what happens with goals and observations far outside of the training data: warn, refuse or ignore.
    """
    directory = Path(path)
    model = load_model(directory, outside)
    if planner is None:
        usual = "asym-graph" if model.atlas is not None else "direct"
        saved = read_json(directory / AGENT) if (directory / AGENT).exists() else {}
        planner = str(saved.get("planner", usual))
    return Agent(model, model.planner(planner))


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
    can be resumed. The planner is `asym-graph`, or `direct` where a method learns no distances.
    """
    from iel.data import load
    from iel.training import train

    known = load(data) if isinstance(data, (str, Path)) else data
    model = train(known, suited(known) if method is None else method, [seed], out=out, progress=progress).model
    chosen = planner or ("asym-graph" if "asym-graph" in planners_for(model) else "direct")
    return Agent(model, make_planner(chosen, model, known))


def suited(data: Trajectories) -> Method:
    """HTP with the preset that suits the data: `laptop` where every column is a position, `laptop-body` where some are
    (a robot with joints), `laptop-arm` where nothing separates position from pose."""
    from iel.methods import HTP

    if not data.position_columns:
        return HTP.preset("laptop-arm")
    return HTP.preset("laptop" if len(data.position_columns) == data.observation_size else "laptop-body")
