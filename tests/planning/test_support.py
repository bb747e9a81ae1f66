"""Outside of the data: found by a standardised distance, stored with the model, reported by planners."""

import numpy as np
import pytest

import iel
from iel.data import Trajectories
from iel.errors import GeometryError, RunError
from iel.files import seal
from iel.model import GoalState, Model, load_model, save_model
from iel.model.networks import Network, perceptron
from iel.model.support import MARGIN, Support, View, report, support_of
from iel.planning import Direct


def walks(count: int = 40, steps: int = 80, poses: int = 0, seed: int = 0) -> Trajectories:
    """Two position columns in [0, 10]^2, and pose columns that only tremble."""
    rng = np.random.default_rng(seed)
    episodes = []
    for _ in range(count):
        heading = np.cumsum(rng.normal(0, 0.3, steps)) + rng.uniform(0, 6.3)
        position = np.clip(rng.uniform(0, 10, 2) + np.cumsum(0.3 * np.c_[np.cos(heading), np.sin(heading)], 0), 0, 10)
        pose = rng.standard_normal((steps, poses))
        episodes.append((np.concatenate([position, pose], 1), np.zeros((steps - 1, 1))))
    return Trajectories.from_episodes(episodes, name="walks", trust=True)


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return walks()


def cloner(size: int = 2) -> Model:
    """A policy that always answers the same: all a planner needs to act."""
    parts = {"layers.0.kernel": np.zeros((2 * size, 1), np.float32), "layers.0.bias": np.zeros(1, np.float32)}
    return Model(
        "gcbc", size, 1, {"policy": Network(("observation", "command"), (perceptron(parts, 1, False),))}, GoalState()
    )


def test_the_distance_is_that_of_the_nearest_state(data):
    """Against brute force, one state and one column at a time."""
    support = support_of(data)
    view = support.views[0]
    rng = np.random.default_rng(0)
    for row in rng.uniform(-5, 15, (20, 2)).astype(np.float32):
        scaled = (row.astype(np.float64) - support.mean) / support.std
        nearest = min(np.sqrt(((scaled - state) ** 2).mean()) for state in view.states.astype(np.float64))
        assert support.excess(row)[0] == pytest.approx(nearest / view.limit, rel=1e-3, abs=1e-3)


def test_new_states_of_the_same_world_are_inside_and_others_outside(data):
    support = support_of(data)
    fresh = walks(seed=1).observations
    assert (support.excess(fresh) > 1).mean() < 0.01
    outside = np.array([[14, 5], [-4, 5], [5, 999], [1e6, 1e6]], np.float32)
    assert (support.excess(outside) > 1).all()
    assert support.excess([999, 5])[0] > support.excess([99, 5])[0] > support.excess([14, 5])[0]


def test_a_strange_position_is_not_drowned_by_poses():
    data = walks(poses=20)
    support = support_of(data)
    assert [view.name for view in support.views] == ["all", "position"]
    inside = data.observations[100].copy()
    outside = inside.copy()
    outside[:2] = 16.0
    assert support.excess(inside)[0] < 1 < support.excess(outside)[0]
    everything = Support(support.mean, support.std, support.views[:1])
    assert everything.excess(outside)[0] < 1  # which is why positions are a view of their own


def test_units_do_not_matter(data):
    scale, shift = np.array([1000.0, 0.01]), np.array([-3.0, 7.0])
    other = Trajectories(data.observations * scale + shift, data.actions, data.offsets, checked=True)
    rows = np.random.default_rng(0).uniform(-3, 13, (50, 2))
    mine, theirs = support_of(data).excess(rows), support_of(other).excess(rows * scale + shift)
    np.testing.assert_allclose(mine, theirs, rtol=0.05, atol=0.02)


def test_the_limit_comes_from_held_out_states(data):
    support = support_of(data)
    within = support.excess(data.observations[data.offsets[9] : data.offsets[10]])  # episode 9 was held out
    assert within.max() <= 1.0 and np.quantile(within, 0.99) <= 1.0 / MARGIN + 0.15


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_episodes_are_enough(count):
    assert np.isfinite(support_of(walks(count)).excess([5.0, 5.0])[0])


def test_planners_warn_once_and_refuse_on_request(data, capsys):
    model = cloner()
    model.support = support_of(data)
    planner = Direct(model, data)
    planner.prepare([5.0, 5.0])
    planner.act([5.0, 5.0])
    assert capsys.readouterr().err == ""
    planner.prepare([999.0, 999.0])
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "goal is outside of the data" in said and "999" in said
    for _ in range(3):
        planner.act([1e6, 1e6])
    assert capsys.readouterr().err.count("observation is outside") == 1  # when it left, not at every step
    planner.act([5.0, 5.0])
    planner.act([50.0, 5.0])
    assert capsys.readouterr().err.count("observation is outside") == 1
    model.outside = "refuse"
    with pytest.raises(GeometryError, match="outside of the data"):
        planner.act([1e6, 1e6])
    with pytest.raises(GeometryError, match="outside of the data"):
        planner.prepare([999.0, 999.0])
    model.outside = "ignore"
    planner.prepare([999.0, 999.0])
    assert capsys.readouterr().err == ""


def test_every_robot_gets_its_own_notice(data, capsys):
    model = cloner()
    model.support = support_of(data)
    first = Direct(model, data)
    second = first.fork()
    for robot in (first, second):
        robot.prepare([5.0, 5.0])
        robot.act([5.0, 5.0])
    for robot in (first, second):
        robot.act([1e6, 1e6])
        assert capsys.readouterr().err.count("observation is outside") == 1
    first.act([1e6, 1e6])
    second.act([5.0, 5.0])
    assert capsys.readouterr().err == "", "no step of one robot counts for the other"


@pytest.mark.parametrize("bad", [[np.nan, 0.0], [np.inf, 0.0], [1.0], [1.0, 2.0, 3.0], "here", None])
def test_what_is_no_observation_is_refused_alike(data, bad):
    model = cloner()
    planner = Direct(model, data)
    planner.prepare([5.0, 5.0])
    for call in (planner.act, planner.prepare, planner.target):
        with pytest.raises(iel.errors.IELError):
            call(bad)
    if not isinstance(bad, str) and bad is not None:
        with pytest.raises(iel.errors.IELError):
            model.act([bad], [[0.0, 0.0]])


def test_it_is_stored_with_the_model(data, tmp_path):
    model = cloner()
    model.support = support_of(data)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model", outside="refuse")
    rows = np.random.default_rng(0).uniform(-5, 15, (100, 2))
    np.testing.assert_array_equal(loaded.support.excess(rows), model.support.excess(rows))
    planner = Direct(loaded, data)
    with pytest.raises(GeometryError, match="outside"):
        planner.prepare([999, 999])
    planner.prepare([5, 5])


def test_damaged_files_are_refused(data, tmp_path):
    from safetensors.numpy import load_file, save_file

    model = cloner()
    model.support = support_of(data)
    save_model(model, tmp_path)
    path = tmp_path / "support.safetensors"
    good = load_file(path)
    changes = {
        "a standard deviation of 0": {"std": np.zeros(2, np.float32)},
        "another size": {"mean": np.zeros(3, np.float32)},
        "a column that is not there": {"all.columns": np.array([0, 7])},
        "no limit": {"all.limit": np.array([0.0], np.float32)},
        "states that are not finite": {"all.states": np.full((4, 2), np.nan, np.float32)},
        "doubles": {"all.states": np.zeros((4, 2))},
    }
    for change in changes.values():
        save_file({**good, **change}, path)
        seal(tmp_path, 1, {})
        with pytest.raises(RunError, match=r"support\.safetensors"):
            load_model(tmp_path)
    save_file({"mean": good["mean"]}, path)
    seal(tmp_path, 1, {})
    with pytest.raises(RunError, match="lacks the tensor"):
        load_model(tmp_path)


def test_an_unknown_goal_spec_is_refused():
    view = View("all", np.arange(1), np.zeros((1, 1), np.float32), 1.0)
    with pytest.raises(iel.errors.ConfigError, match="warn, refuse or ignore"):
        report(Support(np.zeros(1, np.float32), np.ones(1, np.float32), (view,)), [[0.0]], "goal", "shout")
