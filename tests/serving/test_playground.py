"""Maps, obstacles and sessions of the playground."""

import json
import resource
import time

import numpy as np
import pytest
from starlette.testclient import TestClient

from iel.errors import ConfigError
from iel.planning import Atlas
from iel.planning.graph import Edges
from iel.serving.app import create_app
from iel.serving.engine import Engine, Served
from iel.serving.playground import Obstacles, PlayMessage, Scene, Session, Stage
from iel.serving.schemas import parse
from iel.serving.views import view_of
from tests.serving.conftest import atlas, maze_model, nodes, served, walk

HERE = "http://127.0.0.1:8420"


# ---------------------------------------------------------------- maps


def test_position_columns_are_found_among_noise():
    """Columns 3 and 4 go somewhere, the first three tremble."""
    view = view_of(served(columns=5))
    assert view.kind == "columns" and view.axes == ("column 3", "column 4")
    np.testing.assert_allclose(view.xy(view.pool), view.pool[:, 3:5])
    left, right, bottom, top = view.extent
    assert left < view.pool[:, 3].min() and top > view.pool[:, 4].max() and right > left and top > bottom


def test_without_a_position_the_latent_is_drawn():
    noise = np.random.default_rng(0).normal(size=(600, 4)).astype(np.float32)
    model = served(columns=4).model
    slow = view_of(Served("noise", model, atlas(noise, np.array([0, 300, 600]))))
    wide = view_of(Served("noise", model, Atlas(noise)))
    assert slow.kind == wide.kind == "latent" and slow.axes[0].startswith("slow") and wide.axes[0].startswith("wide")
    for view in (slow, wide):
        np.testing.assert_allclose(view.xy(noise).std(axis=0), 1.0, atol=0.05)  # in units of their own std
    values = view_of(Served("noise", served("goal-value", columns=4).model, Atlas(noise)))  # embeds by doing nothing
    assert values.kind == "latent"


def test_a_conditioning_says_which_columns_tell_the_position():
    assert view_of(served("waypoint", columns=5, episodes=False)).axes == ("column 0", "column 1")


def test_a_click_means_the_nearest_state_and_empty_positions_stay_empty():
    view = view_of(served())
    for row in (0, 77, 400):
        np.testing.assert_array_equal(view.state(view.pool[row] + 1e-4), view.pool[row])
    gaps = np.linalg.norm(view.raster.xy[:, None] - view.pool[None], axis=2).min(axis=1)
    left, right, _, _ = view.extent
    assert len(view.raster.pixels) < np.prod(view.raster.shape)
    assert gaps.max() < 0.1 * (right - left)


def test_one_column_is_a_line():
    states, offsets = walk()
    model = served("directed", columns=2).model
    flat = view_of(Served("line", model, atlas(states, offsets)))
    assert flat.kind == "columns"
    from benchmarks.runtime import random_model

    single = view_of(Served("line", random_model("directed", (16,), 1, 1, 3), atlas(states[:, :1], offsets)))
    assert (single.xy(states[:5, :1])[:, 1] == 0).all() and len(single.state([0.5, 0.0])) == 1


def test_nothing_to_draw_is_reported():
    with pytest.raises(ConfigError, match="export with --nodes"):
        view_of(served(states=False))


# ---------------------------------------------------------------- obstacles


def test_an_obstacle_blocks_what_it_covers_and_crosses():
    """Against every sample of every edge and every point of the stroke, by brute force."""
    generator = np.random.default_rng(1)
    xy = generator.uniform(0, 10, (60, 2))
    source, target = generator.integers(0, 60, (2, 150))
    edges = Edges(source, target, np.ones(150))
    bent, dot = [[2.0, 2.0], [8.0, 7.0], [8.0, 9.0]], [[5.0, 1.0]]
    obstacles = Obstacles([bent, dot], (0.0, 10.0, 0.0, 10.0), np.ones(2), 0.4)

    lines = [((2.0, 2.0), (8.0, 7.0), 0.4), ((8.0, 7.0), (8.0, 9.0), 0.4), ((5.0, 1.0), (5.0, 1.0), 0.4)]

    def depth(points):  # below 0: inside
        gaps = []
        for a, b, radius in lines:
            a, ahead = np.array(a), np.subtract(b, a)
            along = np.clip((points - a) @ ahead / max(ahead @ ahead, 1e-12), 0, 1)
            gaps.append(np.linalg.norm(points - a - along[:, None] * ahead, axis=1) - radius)
        return np.min(gaps, axis=0)

    covered = obstacles.covers(xy)
    sure = np.abs(depth(xy)) > 0.06  # cells
    np.testing.assert_array_equal(covered[sure], depth(xy)[sure] < 0)
    crossed = {tuple(pair) for pair in obstacles.crossed(edges, xy)}
    for i, j in zip(source, target, strict=True):
        gap = depth(xy[i] + np.linspace(0, 1, 400)[:, None] * (xy[j] - xy[i])).min()
        if gap < -0.25:
            assert (i, j) in crossed or covered[i] or covered[j]
        if gap > 0.06:
            assert (i, j) not in crossed


def test_no_obstacle_blocks_nothing():
    none = Obstacles([], (0.0, 1.0, 0.0, 1.0), np.ones(2), 0.1)
    edges = Edges(np.array([0]), np.array([1]), np.ones(1))
    assert not none and not none.covers(np.zeros((2, 2))).any() and len(none.crossed(edges, np.zeros((2, 2)))) == 0


def scribble(number: int, count: int, low: float, high: float) -> list[list[list[float]]]:
    """This number of strokes all over a square."""
    return [np.random.default_rng(n).uniform(low, high, (count, 2)).tolist() for n in range(number)]


ABSURD = {
    "far apart": [[[1e12, 1.0], [-1e12, 1.0]]],
    "all over": scribble(64, 512, 0.0, 20.0),
    "all over, shorter": scribble(64, 12, 0.0, 20.0),
    "far away": scribble(64, 512, -1e9, 1e9),
    "dots": scribble(64, 1, 0.0, 20.0),
}


@pytest.fixture(scope="module")
def large():
    """The largest graph there is by default, on a map of 20 by 20."""
    states = np.random.default_rng(0).uniform(0, 20, (12_000, 2)).astype(np.float32)
    stage = Stage(Engine(Served("large", served().model, Atlas(states), options=nodes(8192))))
    stage.cells  # noqa: B018
    Session(stage).show(scene(stage, field="graph", graph=True))
    return stage


@pytest.mark.parametrize("name", ABSURD)
def test_no_message_costs_much(large, name):
    """200 MB, and 0.2 s of a free core's time; twice that passes here, where tests run side by side."""
    session = Session(large)
    message = PlayMessage(strokes=ABSURD[name], scene=scene(large, field="graph", graph=True))
    before, started = peak_memory(), time.process_time()
    try:
        (answer,) = session.take(message)
        json.dumps(answer)
    except ConfigError as refusal:
        assert not session.obstacles and session.scene is None, refusal
    assert time.process_time() - started < 0.4
    assert peak_memory() - before < 200e6


def peak_memory() -> float:
    """Bytes."""
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def test_numbers_beyond_any_map_are_refused():
    with pytest.raises(ConfigError, match=r"strokes\[0\]\[0\]\[0\]: Expected `float` <= 1000000000000.0"):
        parse(PlayMessage, '{"strokes": [[[1e308, 1.0], [-1e308, 1.0]]]}')
    with pytest.raises(ConfigError, match="Expected `array`"):  # a page cannot choose the brush
        parse(PlayMessage, '{"strokes": [{"points": [[1.0, 1.0]], "radius": 1e6}]}')


def test_a_refused_message_changes_nothing(stage):
    session = Session(stage)
    session.take(PlayMessage(scene=scene(stage), strokes=[[[0.0, 0.0]]], speed=4))
    before = session.scene, session.obstacles, session.planner, session.goal, session.speed
    wall, moved = [[[1.0, 1.0]]], scene(stage, goal=[1.0, 2.0])
    for refused in (
        PlayMessage(scene=scene(stage, planner="no"), strokes=wall, speed=9),
        PlayMessage(scene=moved, strokes=ABSURD["all over"]),
        PlayMessage(scene=moved, strokes=wall, agent="step"),
    ):
        with pytest.raises(ConfigError):
            session.take(refused)
        assert (session.scene, session.obstacles, session.planner, session.goal, session.speed) == before


# ---------------------------------------------------------------- sessions


@pytest.fixture(scope="module")
def stage(model):
    return Stage(Engine(model))


def scene(stage, **changes) -> Scene:
    world = stage.describe()
    known = {"id": 1, "start": world["start"], "goal": world["goal"], "planner": "asym-graph"}
    return Scene(**{**known, **changes})


def test_the_shown_plan_is_the_planners(stage, model):
    session = Session(stage)
    shown = session.show(scene(stage, field="straight", graph=True))
    planner = model.agent("asym-graph").planner
    start, goal = (stage.view.state(point) for point in (stage.describe()["start"], stage.describe()["goal"]))
    planner.prepare(goal)
    route = planner.path(start)
    np.testing.assert_allclose(shown["path"], np.concatenate([[start], route.observations, [goal]]), atol=1e-3)
    assert shown["steps"] == pytest.approx(route.total)
    raster = stage.view.raster
    wanted = model.model.steps(raster.observations, np.tile(goal, (len(raster.observations), 1)))
    np.testing.assert_allclose(np.array(shown["field"]) / 10, wanted, atol=0.06)
    assert len(shown["graph"]["nodes"]) == 80 and max(shown["graph"]["edges"]) < 80


def test_the_field_along_the_graph_is_near_the_planners_own(stage, model):
    session = Session(stage)
    shown = np.array(session.show(scene(stage, field="graph"))["field"]) / 10
    cells = stage.view.raster.observations
    exact = session.planner.prepared.steps(model.model.embed(cells), rows=np.zeros(len(cells), np.int64))
    assert np.median(np.abs(shown - exact)) < 0.1 and (shown >= exact - 0.5).mean() > 0.9


def test_a_wall_makes_the_path_longer_and_a_ring_makes_it_none(stage):
    session = Session(stage)
    before = session.show(scene(stage))
    middle = before["path"][len(before["path"]) // 2]
    session.take(PlayMessage(strokes=[[middle]]))
    after = session.show(scene(stage))
    assert after["problem"] or after["steps"] > before["steps"]
    assert after["path"] != before["path"] and after["off"]
    left, right, bottom, top = stage.view.extent
    lines = [[[left, y], [right, y]] for y in np.linspace(bottom, top, 64)]
    session.take(PlayMessage(strokes=lines))
    walled = session.show(scene(stage, field="graph"))
    assert walled["path"] == [] and "erase one" in walled["problem"] and set(walled["field"]) == {-1}
    session.take(PlayMessage(strokes=[]))
    assert session.show(scene(stage))["path"] == before["path"]


def test_every_planner_and_kind_of_model_can_be_shown():
    for kind, planners in {"goal": 1, "goal-value": 3, "euclidean": 5}.items():
        own = served(kind)
        stage = Stage(Engine(own))
        assert len(own.planners) == planners
        for name in own.planners:
            for field in ("none", "straight", "graph"):
                shown = Session(stage).show(scene(stage, planner=name, field=field, graph=True))
                assert len(shown["path"]) >= 2 and shown["problem"] is None
                assert (shown["field"] is None) == (kind == "goal" or field == "none")


def test_the_page_talks_to_its_session(model):
    with TestClient(create_app([model, served("goal-value")], play=True), base_url=HERE) as http:
        assert "playground" in http.get("/").text
        assert [len(each["planners"]) for each in http.get("/play/models").json()] == [4, 3]
        world = http.get("/play/world/0").json()
        assert not world["live"] and http.get("/play/world/1").status_code == 200
        assert http.get("/play/world/9").status_code == 422 and http.get("/play/world/x").status_code == 404
        with http.websocket_connect(f"{HERE}/play/ws/0".replace("http", "ws")) as socket:
            sent = {"id": 7, "start": world["start"], "goal": world["goal"], "planner": "asym-graph", "field": "graph"}
            socket.send_json({"scene": sent})
            plan = socket.receive_json()
            assert plan["id"] == 7 and len(plan["field"]) == len(world["view"]["raster"]["filled"])
            for bad in (
                {"scene": {**sent, "goal": [1]}},
                {"speed": 99},
                {"scene": {**sent, "planner": "no"}},
                {"x": 1},
            ):
                socket.send_json(bad)
                assert "error" in socket.receive_json()
            socket.send_json({"agent": "step"})
            assert "no simulator" in socket.receive_json()["error"]
    with TestClient(create_app([model]), base_url=HERE) as http:  # without the page
        assert http.get("/play/models").status_code == 404 and "policy server" in http.get("/").text


@pytest.mark.slow
def test_an_agent_walks_in_its_maze():
    """With a real simulator and an untrained policy: it moves, is seen from above, and can be sent elsewhere."""
    pytest.importorskip("ogbench")
    stage = Stage(Engine(maze_model()))
    assert stage.view.kind == "maze" and stage.describe()["live"]
    walls = stage.view.maze
    row, column = np.argwhere(walls.walls)[20]
    state = stage.view.state(walls.centre((row, column)))  # a click on a wall
    assert not walls.walls[tuple(walls.cell_of(state))]
    session = Session(stage)
    with pytest.raises(ConfigError, match="cannot walk"):
        session.reset()
    session.show(scene(stage))
    start = session.reset()
    np.testing.assert_allclose(start["at"], stage.describe()["start"], atol=1e-3)
    frames = [session.advance() for _ in range(10)]
    assert frames[-1]["step"] == 20 and frames[-1]["state"] == "walking"
    assert np.linalg.norm(np.subtract(frames[-1]["at"], start["at"])) > 0.05
    assert len(frames[-1]["shape"]) >= 1 and frames[-1]["path"][0] == frames[-1]["at"]
    near = frames[-1]["at"]
    session.show(scene(stage, goal=near))  # a goal where it stands
    assert session.advance()["state"] == "reached"
    session.take(PlayMessage(agent="reset"))
    np.testing.assert_allclose(session.show(scene(stage))["path"][0], stage.describe()["start"], atol=1e-3)
