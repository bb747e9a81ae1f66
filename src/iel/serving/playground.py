"""The playground behind the page: one stage per model, one session per open page.

The page sends a *scene* (start, goal, planner, what to draw, obstacles) whenever it changes, and waits for the answer
before it sends the next one, so nothing queues up. While the agent walks, frames of it are sent in between.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field
from scipy.spatial import cKDTree

from iel.envs import make_env
from iel.errors import ConfigError, IELError, NoPath
from iel.files import notice
from iel.metrics import Floats, Integers, LatentGoal
from iel.planning import AsymGraph, Planner
from iel.planning.goals import latent_wishes
from iel.planning.graph import Edges
from iel.planning.planners import AlongGraph
from iel.serving.engine import Engine, finite
from iel.serving.schemas import Answer, Body, Number
from iel.serving.views import View, view_of

Row = NDArray[np.float32]
Place = Annotated[list[Number], Field(min_length=2, max_length=2)]
FRAMES = 30
"""Frames a second while the agent walks."""
STROKES, STROKE_POINTS = 64, 512
SAMPLES, ALONG = 4096, 24
"""Samples of all strokes together, and of one edge, at most; what is longer is sampled more thinly."""
ROUND, LONG = (2, 4), (3, 5)
"""MuJoCo's numbers of spheres and ellipsoids, of capsules and cylinders."""


class Stroke(Body):
    """One stroke of the brush."""

    points: Annotated[list[Place], Field(min_length=1, max_length=STROKE_POINTS)]
    radius: float = Field(gt=0.0, le=1e6, allow_inf_nan=False)


class Scene(Body):
    """What the page shows."""

    id: int = Field(ge=0, lt=2**53)
    start: Place
    goal: Place
    planner: str = Field(max_length=40)
    field: Literal["straight", "graph", "none"] = "none"
    graph: bool = False
    """Whether the edges of the graph are wanted."""


class PlayMessage(Body):
    """One message of the page."""

    scene: Scene | None = None
    strokes: Annotated[list[Stroke], Field(max_length=STROKES)] | None = None
    """Obstacles, all of them, when they have changed."""
    agent: Literal["run", "pause", "reset"] | None = None
    speed: int | None = Field(default=None, ge=1, le=16)
    """Steps of the simulator per frame."""


class Obstacles:
    """Strokes on a map whose axes are measured in `scale`: which nodes and edges of a planning graph they block.

    A stroke is a polyline with a brush radius r. It is sampled at distances of r or less, so whatever crosses it comes
    within r of a sample: a node is blocked within r of one, an edge if any of its own samples, r apart too, is.
    """

    def __init__(self, strokes: Sequence[Stroke], scale: Floats):
        self.scale = scale
        parts: dict[float, list[Floats]] = {}
        left = SAMPLES
        for stroke in strokes:
            samples = _sampled(np.asarray(stroke.points, np.float64) / scale, stroke.radius, left)
            left -= len(samples)
            if len(samples):
                parts.setdefault(stroke.radius, []).append(samples)
        self._trees = {radius: cKDTree(np.concatenate(pieces)) for radius, pieces in parts.items()}

    def __bool__(self) -> bool:
        return bool(self._trees)

    def covers(self, places: Floats) -> NDArray[np.bool_]:
        """Whether places (n, 2) lie on an obstacle."""
        covered = np.zeros(len(places), bool)
        for radius, tree in self._trees.items():
            covered |= tree.query(places / self.scale, distance_upper_bound=np.nextafter(radius, np.inf))[0] <= radius
        return covered

    def crossed(self, edges: Edges, places: Floats) -> NDArray[np.int64]:
        """(m, 2) edges between nodes at these places that an obstacle crosses."""
        if not self._trees:
            return np.empty((0, 2), np.int64)
        gap = np.min([tree.query(places / self.scale)[0] for tree in self._trees.values()], axis=0)
        ahead = (places[edges.target] - places[edges.source]) / self.scale
        length = np.hypot(*ahead.T)
        near = np.flatnonzero(np.minimum(gap[edges.source], gap[edges.target]) <= length / 2 + max(self._trees))
        count = int(np.clip(np.ceil(length[near].max(initial=0.0) / min(self._trees)), 1, ALONG)) + 1
        share = np.linspace(0.0, 1.0, count)[:, None, None]
        samples = places[edges.source[near]] + share * (ahead[near] * self.scale)
        hit = self.covers(samples.reshape(-1, 2)).reshape(count, -1).any(axis=0)
        return np.stack([edges.source[near][hit], edges.target[near][hit]], 1)


def _sampled(points: Floats, radius: float, most: int) -> Floats:
    """Points along a polyline, at most a radius apart; `most` of them, further apart where that is too few."""
    along = np.concatenate([[0.0], np.hypot(*np.diff(points, axis=0).T).cumsum()])
    at = np.linspace(0.0, along[-1], int(np.clip(np.ceil(along[-1] / radius) + 1, 1, most)))
    return np.column_stack([np.interp(at, along, axis) for axis in points.T])


class Simulation:
    """A maze environment whose start and goal can be moved."""

    def __init__(self, name: str, reference: ArrayLike):
        self.env = make_env(name, reference=reference)
        self.simulator: Any = self.env.unwrapped

    def task(self) -> tuple[Row, Row]:
        """Begin the first task: its start and goal."""
        start, info = self.env.reset(seed=0, options={"task_id": 1})
        return np.asarray(start, np.float32), np.asarray(info["goal"], np.float32)

    def reset(self, start: Row, goal: Row) -> Row:
        """Put the agent at the start, in the pose a reset gives it."""
        self.task()
        self.simulator.set_xy(np.asarray(start[:2], np.float64))
        self.set_goal(goal)
        return np.asarray(self.simulator.get_ob(), np.float32)

    def set_goal(self, goal: Row) -> None:
        """Where success is."""
        place = np.asarray(goal[:2], np.float64)
        if "cur_goal_xy" in vars(self.simulator):
            self.simulator.set_goal(goal_xy=place)
        else:
            self.simulator.set_goal(place)

    def step(self, action: ArrayLike) -> tuple[Row, bool]:
        """(observation, whether the goal is reached)."""
        observation, _, _, _, info = self.env.step(action)
        return np.asarray(observation, np.float32), bool(info["success"])

    def body(self) -> list[list[float]]:
        """The robot from above: [x1, y1, x2, y2, radius] of every part, a line with round ends."""
        model, data = self.simulator.model, self.simulator.data
        parts = []
        for geom in np.flatnonzero(model.geom_bodyid > 0):
            kind, size = int(model.geom_type[geom]), model.geom_size[geom]
            if kind not in ROUND + LONG or model.geom_rgba[geom][3] == 0.0:
                continue
            half = data.geom_xmat[geom].reshape(3, 3)[:2, 2] * (size[1] if kind in LONG else 0.0)
            centre = data.geom_xpos[geom][:2]
            parts.append([round(float(v), 3) for v in (*(centre - half), *(centre + half), size[0])])
        return parts


class Stage:
    """What all sessions of one model share."""

    def __init__(self, engine: Engine):
        self.engine, served = engine, engine.served
        live = None
        if served.env is not None:
            try:
                live = Simulation(served.env, served.states[0])
            except ConfigError as error:
                notice(f"{error} Until then there is no live agent.")
        self.view: View = view_of(served, None if live is None else live.env.map)
        # Only in mazes, which have a floor plan, can the agent be put anywhere.
        self.simulation = live if live is not None and live.env.map and hasattr(live.simulator, "set_xy") else None
        if self.simulation is not None:
            self.first = self.simulation.task()
        else:
            left, right, bottom, top = self.view.extent
            low, size = np.array([left, bottom]), np.array([right - left, top - bottom])
            self.first = self.view.state(low + 0.15 * size), self.view.state(low + 0.85 * size)
        engine.agent()  # the page should not wait for it

    @cached_property
    def cells(self) -> Floats:
        """Embeddings of the raster's states."""
        return self.engine.model.embed(self.view.raster.observations).astype(np.float64)

    def nodes(self, planner: AsymGraph) -> Floats:
        """Where a graph's nodes are drawn."""
        return self.view.places(planner.observations[planner.states])

    def describe(self) -> Answer:
        """The world as the page draws it, without what changes."""
        start, goal = self.view.places(np.stack(self.first)).tolist()
        return {
            **self.engine.served.describe(),
            "view": self.view.describe(),
            "start": start,
            "goal": goal,
            "live": self.simulation is not None,
        }


class Session:
    """One open page. Everything here runs in the engine's worker."""

    def __init__(self, stage: Stage):
        self.stage, self.view, self.model = stage, stage.view, stage.engine.model
        self.obstacles = Obstacles([], self.view.scale)
        self.scene: Scene | None = None
        self.planner: Planner | None = None
        self._nearest: tuple[tuple[str, bytes], Integers] | None = None
        self.simulation: Simulation | None = None
        self.observation: Row | None = None
        self.goal = stage.first[1]
        self.speed, self.steps, self.success = 2, 0, False
        self.life = 0
        """How often the agent was put on the stage: tells frames of one walk from those of the next."""

    def draw(self, strokes: list[Stroke]) -> None:
        """Replace all obstacles."""
        self.obstacles = Obstacles(strokes, self.view.scale)

    # ---------------------------------------------------------------- the scene

    def show(self, scene: Scene) -> Answer:
        """Plan for the scene: path, field and graph."""
        started = time.perf_counter()
        base = self.stage.engine.agent(scene.planner).planner
        built = time.perf_counter() - started
        self.scene = scene
        planner, latent = self._pursue(self.view.state(scene.goal), base)
        here = self.observation if self.observation is not None else self.view.state(scene.start)
        answer: Answer = {"type": "plan", "id": scene.id, **self._path(planner, here)}
        answer["field"] = self._field(scene.field, planner, latent)
        if isinstance(planner, AsymGraph):
            answer["off"] = np.flatnonzero(planner.nodes_off).tolist()
            if scene.graph:
                edges = planner.graph.edges(latent)
                pairs = np.stack([edges.source, edges.target], 1).ravel().tolist()
                answer["graph"] = {"nodes": np.round(self.stage.nodes(planner), 3).tolist(), "edges": pairs}
        answer["ms"] = round(1000.0 * (time.perf_counter() - started - built), 2)
        return answer

    def _pursue(self, goal: Row, base: Planner) -> tuple[Planner, LatentGoal]:
        """A planner of this session's own, with its obstacles switched off."""
        planner = base.fork()
        latent = latent_wishes([goal], planner)[0].stages[0][0]
        if isinstance(planner, AsymGraph) and self.obstacles:
            places = self.stage.nodes(planner)
            crossed = self.obstacles.crossed(planner.graph.edges(latent), places)
            planner.switch_off(np.flatnonzero(self.obstacles.covers(places)), map(tuple, crossed), one_way=True)
        if self.simulation is not None and not np.array_equal(goal, self.goal):
            self.simulation.set_goal(goal)
            self.steps, self.success = 0, False
        self.goal, self.planner = goal, planner
        if not (isinstance(planner, AsymGraph) and planner.nodes_off.all()):  # obstacles cover every node
            planner.prepare(goal)
        return planner, latent

    def _path(self, planner: Planner, here: Row) -> Answer:
        """The route from a state, on the map, or the sentence that says why there is none."""
        ends = self.view.places(np.stack([here, self.goal]))
        try:
            between: Floats = np.empty((0, 2))
            steps = None
            if planner.metric is not None:
                route = planner.path(here)
                between, steps = self.view.places(route.observations), finite(route.total)
            if planner.name == "rec-mid":  # its route is straight, but it heads for a midpoint first
                between = self.view.places(planner.target(here).observation)
            path = np.concatenate([ends[:1], between, ends[1:]])
            return {"path": np.round(path, 3).tolist(), "steps": steps, "problem": None}
        except (NoPath, ConfigError) as error:
            problem = "No way leads there; erase a wall." if self.obstacles else str(error)
            return {"path": [], "steps": None, "problem": problem}

    def _field(self, kind: str, planner: Planner, goal: LatentGoal) -> list[float] | None:
        """Predicted steps at the raster's points, in tenths; -1 where nothing is known.

        Along a graph they are those to the nearest node, and on from there. The planner itself takes the cheapest node
        instead of the nearest: exact, and too slow for every point.
        """
        cells, metric = self.stage.cells, self.model.metric
        if kind == "none" or metric is None or metric.discount is None:
            return None
        if kind == "graph" and isinstance(planner, AsymGraph):
            if planner.nodes_off.all():
                return [-1] * len(cells)
            pursuit, nearest = planner.prepared.pursuit, self._nearest_nodes(planner, cells)
            assert isinstance(pursuit, AlongGraph) and planner.metric is not None
            first = planner.metric.row_costs(cells, planner.graph.points[nearest], [goal] * len(cells))
            steps = planner.metric.steps(first) + pursuit.node_steps[0][nearest]
        else:
            steps = metric.steps(metric.costs(cells, goal.point[None, :], goal)[:, 0])
        return np.where(np.isfinite(steps), np.round(10.0 * steps), -1).astype(int).tolist()

    def _nearest_nodes(self, planner: AsymGraph, cells: Floats) -> Integers:
        """The nearest node in use of every raster point: in the latent, or on the map where that is no space."""
        key = planner.name, planner.nodes_off.tobytes()
        if self._nearest is None or self._nearest[0] != key:
            use = np.flatnonzero(~planner.nodes_off)
            if planner.metric is not None and planner.metric.spatial:
                found = cKDTree(planner.graph.points[use]).query(cells)[1]
            else:
                scale = self.view.scale
                tree = cKDTree(self.stage.nodes(planner)[use] / scale)
                found = tree.query(self.view.raster.places / scale)[1]
            self._nearest = key, use[found]
        return self._nearest[1]

    # ---------------------------------------------------------------- the agent

    def reset(self) -> Answer:
        """Put the agent at the scene's start."""
        if self.stage.simulation is None or self.scene is None:
            raise ConfigError("There is no simulator for this data, so there is no live agent.")
        if self.simulation is None:
            served = self.stage.engine.served
            self.simulation = Simulation(str(served.env), served.states[0])
        self.observation = self.simulation.reset(self.view.state(self.scene.start), self.goal)
        self.steps, self.success = 0, False
        self.life += 1
        return self._frame("ready")

    def leave(self) -> None:
        """Take the agent off the stage."""
        self.observation = None

    def advance(self) -> Answer | None:
        """A few steps towards the goal; the frame says how it went, None that nobody is on the stage."""
        simulation, planner = self.simulation, self.planner
        if simulation is None or planner is None or self.observation is None:
            return None
        last = min(self.steps + self.speed, simulation.env.horizon)
        try:
            while self.steps < last and not self.success:
                self.observation, self.success = simulation.step(planner.act(self.observation))
                self.steps += 1
        except IELError as error:
            return {**self._frame("lost"), "problem": str(error)}
        tired = self.steps >= simulation.env.horizon
        return self._frame("arrived" if self.success else "tired" if tired else "walking")

    def _frame(self, state: str) -> Answer:
        assert self.observation is not None and self.simulation is not None and self.planner is not None
        return {
            "type": "agent",
            "life": self.life,
            "state": state,
            "at": np.round(self.view.places(self.observation[None])[0], 3).tolist(),
            "body": self.simulation.body(),
            "step": self.steps,
            **self._path(self.planner, self.observation),
        }
