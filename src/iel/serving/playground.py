"""The server's side of the playground: one stage per model, one session per open page.

The page sends a *scene* (start, goal, planner, what to draw) and obstacles when they change, and a *step* for every
frame of a walking agent. It waits for the answer before it sends the next one of either, so nothing queues up.
"""

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike, NDArray
from scipy.ndimage import distance_transform_edt
from scipy.spatial import cKDTree

from iel.distances import Floats, Integers, LatentGoal
from iel.envs import make_env
from iel.errors import ConfigError, IELError, NoPath
from iel.files import notice
from iel.planning import AsymGraph, Planner
from iel.planning.goals import staged_goals
from iel.planning.graph import Edges
from iel.planning.planners import AlongGraph
from iel.serving.engine import Engine, finite
from iel.serving.schemas import Answer, Message, Name
from iel.serving.views import Extent, View, view_of

Row = NDArray[np.float32]
Coordinate = Annotated[float, Meta(ge=-1e12, le=1e12)]
Point = Annotated[list[Coordinate], Meta(min_length=2, max_length=2)]
Stroke = Annotated[list[Point], Meta(min_length=1, max_length=512)]
STROKES = 64
CELLS = 384
"""Cells along the longer side of the raster of obstacles."""
SAMPLES, ALONG = 1 << 19, 48
"""Samples of all lines together, and of one edge, at most; long edges are sampled more thinly."""
ROUND, LONG = (2, 4), (3, 5)
"""MuJoCo's numbers of spheres and ellipsoids, of capsules and cylinders."""


class Scene(Message, frozen=True):
    """What the page shows."""

    id: Annotated[int, Meta(ge=0, lt=2**53)]
    start: Point
    goal: Point
    planner: Name
    field: Literal["straight", "graph", "none"] = "none"
    graph: bool = False
    """Whether the edges of the graph are wanted."""


class PlayMessage(Message, frozen=True):
    """One message of the page."""

    scene: Scene | None = None
    strokes: Annotated[list[Stroke], Meta(max_length=STROKES)] | None = None
    """All strokes of the brush that draws walls, when they have changed."""
    agent: Literal["step", "reset"] | None = None
    """Take steps and return a frame; or leave the map, to begin again at the start."""
    speed: Annotated[int, Meta(ge=1, le=16)] | None = None
    """Steps of the simulator per frame."""


class Obstacles:
    """Strokes of a brush on a map, as a raster of what they cover: nodes and edges of a planning graph are blocked.

    A stroke is a polyline: a cell is covered if it is within the brush's radius of a cell that a line passes. A node is
    blocked in a covered cell, an edge if any of its samples is. What lies off the map blocks nothing.
    """

    def __init__(self, strokes: Sequence[Sequence[Sequence[float]]], extent: Extent, scale: Floats, radius: float):
        """A map of this extent, whose axes are measured in `scale`, as the radius is."""
        low, high = np.array([extent[::2], extent[1::2]]) / scale
        margin = 0.1 * (high - low).max()
        self.scale, self.low, self.high = scale, low - margin, high + margin
        self.cell = float((self.high - self.low).max()) / CELLS
        self.radius, self.drawn = max(radius, self.cell), bool(strokes)
        self.covered = np.zeros(np.ceil((self.high - self.low) / self.cell).astype(int) + 1, bool)
        if strokes:
            lines = [np.array(stroke) / scale for stroke in strokes]
            ahead = np.concatenate([np.diff(line, axis=0, append=line[-1:]) for line in lines])
            self.covered |= self._gaps(np.concatenate(lines), ahead) <= self.radius

    def __bool__(self) -> bool:
        return self.drawn

    def _gaps(self, begin: Floats, ahead: Floats) -> Floats:
        """How far each cell is from the nearest that one of these lines passes."""
        with np.errstate(over="ignore"):  # a line without length enters and leaves at once, or never
            ends = (np.stack([self.low, self.high])[:, None] - begin) / np.where(ahead == 0.0, 1e-300, ahead)
        enter = np.maximum(ends.min(axis=0).max(axis=1), 0.0)
        leave = np.minimum(ends.max(axis=0).min(axis=1), 1.0)
        on = np.flatnonzero(enter <= leave)
        begin, ahead = begin[on] + enter[on, None] * ahead[on], (leave - enter)[on, None] * ahead[on]
        counts = 2 + (np.hypot(*ahead.T) / self.cell).astype(int)
        if counts.sum() > SAMPLES:
            raise ConfigError("The walls are too long for this map; erase some.")
        free = np.ones(self.covered.shape, bool)
        free[self._cells(_samples(begin, ahead, counts)[1])] = False
        return np.full(free.shape, np.inf) if free.all() else distance_transform_edt(free, self.cell)

    def _cells(self, spots: Floats) -> tuple[Integers, Integers]:
        """The cells of points, those off the raster at its rim."""
        x, y = np.clip((spots - self.low) / self.cell, 0, np.array(self.covered.shape) - 1).astype(int).T
        return x, y

    def covers(self, xy: Floats) -> NDArray[np.bool_]:
        """Whether points (n, 2) lie on an obstacle."""
        spots = xy / self.scale
        return self.covered[self._cells(spots)] & (spots >= self.low).all(axis=1) & (spots <= self.high).all(axis=1)

    def crossed(self, edges: Edges, xy: Floats) -> NDArray[np.int64]:
        """(m, 2) edges that an obstacle crosses, between nodes at these points that it does not cover."""
        if not self:
            return np.empty((0, 2), np.int64)
        on = self.covers(xy)
        left = np.flatnonzero(~(on[edges.source] | on[edges.target]))
        begin = xy[edges.source[left]]
        ahead = xy[edges.target[left]] - begin
        most = max(1, min(ALONG, SAMPLES // max(1, len(left))))
        counts = 1 + np.clip(np.hypot(*(ahead / self.scale).T) / self.radius, 1, most).astype(int)
        number, spots = _samples(begin, ahead, counts)
        hit = left[np.unique(number[self.covers(spots)])]
        return np.stack([edges.source[hit], edges.target[hit]], 1)


def _samples(begin: Floats, ahead: Floats, counts: Integers) -> tuple[Integers, Floats]:
    """Points at even distances on lines, both ends among them: (which line, where) of each."""
    line = np.repeat(np.arange(len(counts)), counts)
    share = (np.arange(len(line)) - np.repeat(counts.cumsum() - counts, counts)) / np.repeat(counts - 1, counts)
    return line, begin[line] + share[:, None] * ahead[line]


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
        spot = np.asarray(goal[:2], np.float64)
        if "cur_goal_xy" in vars(self.simulator):
            self.simulator.set_goal(goal_xy=spot)
        else:
            self.simulator.set_goal(spot)

    def step(self, action: ArrayLike) -> tuple[Row, bool]:
        """(observation, whether the goal is reached)."""
        observation, _, _, _, info = self.env.step(action)
        return np.asarray(observation, np.float32), bool(info["success"])

    def shape(self) -> list[list[float]]:
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
                notice(f"{error} Until then the agent cannot walk here.")
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
        return self.view.xy(planner.observations[planner.states])

    def describe(self) -> Answer:
        """The world as the page draws it, without what changes."""
        start, goal = self.view.xy(np.stack(self.first)).tolist()
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
        self.obstacles = self._obstacles([])
        self.scene: Scene | None = None
        self.planner: Planner | None = None
        self._nearest: tuple[tuple[str, bytes], Integers] | None = None
        self.simulation: Simulation | None = None
        self.observation: Row | None = None
        self.goal = stage.first[1]
        self.speed, self.steps, self.success = 2, 0, False

    def take(self, message: PlayMessage) -> list[Answer]:
        """Do what a message says and return the answers; a refused message changes nothing."""
        if message.agent == "step" and (self.stage.simulation is None or (self.scene or message.scene) is None):
            raise ConfigError("This data has no simulator, so the agent cannot walk here.")
        drawn = self.obstacles
        if message.strokes is not None:
            drawn = self._obstacles(message.strokes)
        answers = [] if message.scene is None else [self.show(message.scene, drawn)]
        self.obstacles, self.speed = drawn, message.speed or self.speed
        if message.agent == "reset":
            self.observation = None
        elif message.agent == "step":
            answers.append(self.reset() if self.observation is None else self.advance())
        return answers

    def _obstacles(self, strokes: Sequence[Sequence[Sequence[float]]]) -> Obstacles:
        return Obstacles(strokes, self.view.extent, self.view.scale, self.view.brush)

    # ---------------------------------------------------------------- the scene

    def show(self, scene: Scene, obstacles: Obstacles | None = None) -> Answer:
        """Plan for the scene, around other obstacles if they are given: path, field and graph."""
        started = time.perf_counter()
        base = self.stage.engine.agent(scene.planner).planner
        built = time.perf_counter() - started
        obstacles = self.obstacles if obstacles is None else obstacles
        planner, latent = self._pursue(self.view.state(scene.goal), base, obstacles)
        self.scene, self.obstacles = scene, obstacles
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

    def _pursue(self, goal: Row, base: Planner, obstacles: Obstacles) -> tuple[Planner, LatentGoal]:
        """A planner of this session's own that heads for a goal, with what the obstacles block switched off."""
        planner = base.fork()
        latent = staged_goals([goal], planner)[0][0][0][0]
        if isinstance(planner, AsymGraph) and obstacles:
            xy = self.stage.nodes(planner)
            crossed = obstacles.crossed(planner.graph.edges(latent), xy)
            planner.switch_off(np.flatnonzero(obstacles.covers(xy)), map(tuple, crossed), one_way=True)
        if not (isinstance(planner, AsymGraph) and planner.nodes_off.all()):  # obstacles cover every node
            planner.prepare(goal)
        if self.simulation is not None and not np.array_equal(goal, self.goal):
            self.simulation.set_goal(goal)
            self.steps, self.success = 0, False
        self.goal, self.planner = goal, planner
        return planner, latent

    def _path(self, planner: Planner, here: Row) -> Answer:
        """The route from a state, on the map, or the sentence that says why there is none."""
        ends = self.view.xy(np.stack([here, self.goal]))
        try:
            between: Floats = np.empty((0, 2))
            steps = None
            if planner.metric is not None:
                route = planner.path(here)
                between, steps = self.view.xy(route.observations), finite(route.total)
            if planner.name == "rec-mid":  # its route is straight, but it heads for a midpoint first
                between = self.view.xy(planner.target(here).observation)
            path = np.concatenate([ends[:1], between, ends[1:]])
            return {"path": np.round(path, 3).tolist(), "steps": steps, "problem": None}
        except (NoPath, ConfigError) as error:
            problem = "The walls block every route; erase one." if self.obstacles else str(error)
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
        """Nearest node in use of every raster point: in the latent space, or on the map where it is not Euclidean."""
        key = planner.name, planner.nodes_off.tobytes()
        if self._nearest is None or self._nearest[0] != key:
            use = np.flatnonzero(~planner.nodes_off)
            if planner.metric is not None and planner.metric.spatial:
                found = cKDTree(planner.graph.points[use]).query(cells)[1]
            else:
                scale = self.view.scale
                tree = cKDTree(self.stage.nodes(planner)[use] / scale)
                found = tree.query(self.view.raster.xy / scale)[1]
            self._nearest = key, use[found]
        return self._nearest[1]

    # ---------------------------------------------------------------- the agent

    def reset(self) -> Answer:
        """Put the agent at the scene's start."""
        if self.stage.simulation is None or self.scene is None:
            raise ConfigError("This data has no simulator, so the agent cannot walk here.")
        if self.simulation is None:
            served = self.stage.engine.served
            self.simulation = Simulation(str(served.env), served.states[0])
        self.observation = self.simulation.reset(self.view.state(self.scene.start), self.goal)
        self.steps, self.success = 0, False
        return self._frame("ready")

    def advance(self) -> Answer:
        """A few steps of the agent towards the goal, and a frame of it."""
        simulation, planner = self.simulation, self.planner
        assert simulation is not None and planner is not None and self.observation is not None
        last = min(self.steps + self.speed, simulation.env.horizon)
        try:
            while self.steps < last and not self.success:
                self.observation, self.success = simulation.step(planner.act(self.observation))
                self.steps += 1
        except IELError:
            return self._frame("lost")  # the frame says why
        timeout = self.steps >= simulation.env.horizon
        return self._frame("reached" if self.success else "timeout" if timeout else "walking")

    def _frame(self, state: str) -> Answer:
        assert self.observation is not None and self.simulation is not None and self.planner is not None
        return {
            "type": "agent",
            "state": state,
            "at": np.round(self.view.xy(self.observation[None])[0], 3).tolist(),
            "shape": self.simulation.shape(),
            "step": self.steps,
            **self._path(self.planner, self.observation),
        }
