"""An episode as a timeline for the viewer of rerun.io: what was observed and done, and what the agent thought of it.

log_episode("drive.rrd", agent, goal, observations, actions)     then: rerun drive.rrd
"""

from pathlib import Path
from types import ModuleType

import numpy as np
from numpy.typing import ArrayLike

from iel.agent import Agent
from iel.errors import ConfigError, NoPath, install
from iel.planning.goals import Goal, observation_table
from iel.viz.style import picture_columns

TIMELINE = "step"
PLAN_EVERY = 10
"""Steps between two plans that are logged."""


def log_episode(
    path: Path | str,
    agent: Agent,
    goal: Goal,
    observations: ArrayLike,
    actions: ArrayLike = (),
    *,
    plan_every: int = PLAN_EVERY,
) -> Path:
    """Write observations (T + 1, obs_dim) and actions (T, act_dim) of an episode, and the agent's view of it, as .rrd.

    On the timeline `step` (and `time`, where the rate of the data is known): `observation/NAME`, `action/NAME`,
    `predicted_steps` to the goal, the `position` in the position columns and, every `plan_every` steps, the `plan`.
    """
    rerun, path = _require_rerun(), Path(path)
    rows = observation_table(observations, agent.model.observation_size, "observation")
    done = np.zeros((0, agent.model.action_size)) if len(np.asarray(actions)) == 0 else np.asarray(actions)
    signals, size = agent.signals, agent.model.observation_size
    pair = list(picture_columns(agent.model.target_spec.columns or agent.atlas.position_columns, size))
    names = {
        "observation": signals.observations or [str(column) for column in range(rows.shape[1])],
        "action": signals.actions or [str(column) for column in range(done.shape[1])],
    }
    episode = agent.start(goal)
    recording = rerun.RecordingStream("iel")
    path.parent.mkdir(parents=True, exist_ok=True)
    recording.save(path)
    for step, row in enumerate(rows):
        recording.set_time(TIMELINE, sequence=step)
        if signals.rate is not None:
            recording.set_time("time", duration=step / signals.rate)
        for kind, table in (("observation", rows), ("action", done)):
            for name, value in zip(names[kind], table[step] if step < len(table) else (), strict=False):
                recording.log([kind, name], rerun.Scalars(float(value)))
        recording.log("position", rerun.Points2D(row[None, pair], radii=-4.0))
        steps = episode.steps(row)
        if np.isfinite(steps):
            recording.log("predicted_steps", rerun.Scalars(steps))
        if step % plan_every == 0:
            try:
                route = np.asarray(episode.plan(row).observations)[:, pair]
            except NoPath:
                route = np.zeros((0, 2))
            recording.log("plan", rerun.LineStrips2D([route] if len(route) else []))
    recording.flush()
    recording.disconnect()
    return path


def _require_rerun() -> ModuleType:
    try:
        import rerun
    except ImportError:
        raise ConfigError(f"A timeline needs rerun-sdk; {install('rerun')}.") from None
    return rerun
