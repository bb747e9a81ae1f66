"""Names, units, ranges and the rate of the columns travel from a file to the robot."""

import json

import numpy as np
import pytest

import iel
from iel import Trajectories, load, load_agent
from iel.commands.data import ColumnSettings, DataConvert
from iel.data.store import convert, open_store
from iel.errors import ConfigError, DataError, RunError
from iel.model import load_model
from iel.signals import UNNAMED, Signals

CART = Signals(("x", "y"), ("v", "w"), {"x": "m", "v": "m/s"}, (0.0, -1.6), (0.6, 1.6), 10.0)


def cart(signals: Signals = CART) -> Trajectories:
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.normal(0, 0.3, (6, 60, 2)), axis=1).astype(np.float32)
    actions = rng.uniform(-1, 1, (6, 59, 2)).astype(np.float32)
    return Trajectories.from_episodes(list(zip(walks, actions, strict=True)), "cart").described(
        **{name: getattr(signals, name) for name in signals.__struct_fields__}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    method = iel.HTP.preset("smoke", steps=2, policy=iel.Waypoints(steps=2))
    return iel.train(cart(), method, out=tmp_path_factory.mktemp("run") / "run", progress=False).runs[0]


def test_an_action_in_the_robots_units():
    """u = low + (a + 1) (high - low) / 2: -1 is low, 1 is high, 0 the middle."""
    actions = np.array([[-1, -1], [1, 1], [0, 0.5]], np.float32)
    np.testing.assert_allclose(CART.in_units(actions, "robot"), [[0, -1.6], [0.6, 1.6], [0.3, 0.8]], rtol=1e-6)
    assert CART.in_units(actions, "unit") is actions
    with pytest.raises(ConfigError, match=r"not known.*--unit-actions"):
        UNNAMED.in_units(actions, "robot")
    with pytest.raises(ConfigError, match="choose unit or robot"):
        CART.in_units(actions, "degrees")


def test_columns_by_name_and_by_number():
    assert [CART.column(name, 2) for name in ("y", 1, "1", np.int64(0))] == [1, 1, 1, 0]
    assert CART.columns({"x": 8.5, 1: 2.0}, 2) == {0: 8.5, 1: 2.0}
    for wrong, sentence in (("yy", "did you mean y"), (2, "columns 0 to 1"), (-1, "0 to 1"), (True, "0 to 1")):
        with pytest.raises(ConfigError, match=sentence):
            CART.column(wrong, 2)
    with pytest.raises(ConfigError, match="read without names"):
        UNNAMED.column("x", 2)
    with pytest.raises(ConfigError, match="given twice"):
        CART.columns({"x": 1.0, 0: 2.0}, 2)
    assert CART.label(0) == "column 'x' (0)" and UNNAMED.label(0) == "column 0"
    assert CART.label(1, "action") == "action column 'w' (1)"
    assert (CART.axis(0), CART.axis(1), UNNAMED.axis(1)) == ("x [m]", "y", "column 1")


@pytest.mark.parametrize(
    "changes",
    [
        {"observations": ("x",)},
        {"observations": ("x", "x")},
        {"actions": ("v", "")},
        {"units": {"z": "m"}},
        {"action_low": (0.0,)},
        {"action_low": (0.7, 0.0)},
        {"action_high": ()},
        {"action_high": (1.0, float("inf"))},
        {"rate": 0.0},
        {"rate": float("nan")},
    ],
)
def test_what_does_not_fit_is_refused(changes):
    with pytest.raises(DataError, match="correct the names, units, ranges or rate"):
        cart().described(**changes)


def test_files_keep_them(tmp_path):
    data = cart()
    saved = load(data.save(tmp_path / "cart.npz"))
    assert saved.signals == CART and saved.fingerprint == data.fingerprint
    assert convert(tmp_path / "cart.npz", tmp_path / "store").signals == CART
    assert open_store(tmp_path / "store").signals == CART
    assert load(tmp_path / "cart.npz").cut([5]).signals == CART and data.select([0, 1]).signals == CART
    plain = {"observations": data.observations, "actions": data.actions, "terminals": np.zeros(360, bool)}
    plain["terminals"][59::60] = True
    for content, sentence in ((b"{", "not JSON"), (b'{"rate": "x"}', "rate"), (b'{"rate": -1}', "the rate is")):
        np.savez(tmp_path / "bad.npz", **plain, **{"signals.json": np.frombuffer(content, np.uint8)})
        with pytest.raises(DataError, match=sentence):
            load(tmp_path / "bad.npz")


def test_a_conversion_says_names_units_range_and_rate(tmp_path):
    rows = [f"{e},{e + 0.1 * t},{0.5 * t % 0.7},{0.1 * t % 0.6},{0.3 - t % 3}" for e in range(3) for t in range(20)]
    (tmp_path / "log.csv").write_text("\n".join(["run,x,y,v,w", *rows]) + "\n")
    named = ColumnSettings(observations=("x", "y"), actions=("v", "w"), episode="run")
    given = {"columns": named, "unit_actions": True, "units": ("x=m", "v=m/s"), "rate": 5.0}
    facts = DataConvert(source=str(tmp_path / "log.csv"), out=tmp_path / "log.npz", **given)()
    signals = load(tmp_path / "log.npz").signals
    assert (signals.observations, signals.actions, signals.rate) == (("x", "y"), ("v", "w"), 5.0)
    assert signals.units == {"x": "m", "v": "m/s"} and signals.conversion == 1
    assert signals.action_low == pytest.approx((0.0, -1.7)) and facts["action_low"] == pytest.approx([0.0, -1.7])
    with pytest.raises(ConfigError, match="COLUMN=UNIT"):
        DataConvert(source=str(tmp_path / "log.npz"), out=tmp_path / "b.npz", units=("m",))()
    # A range of a range is that of the robot.
    again = DataConvert(source=str(tmp_path / "log.npz"), out=tmp_path / "again.npz", unit_actions=True)()
    assert again["action_low"] == pytest.approx(facts["action_low"])


def test_a_run_its_model_and_its_agent_have_them(run, tmp_path):
    assert run.model.signals == CART
    assert json.loads((run.path / "config.json").read_text())["signals"]["rate"] == 10.0
    agent = iel.Agent(run.model, run.data())
    assert run.data().signals == CART and agent.signals == CART
    loaded = load_agent(agent.save(tmp_path / "agent"))
    observation, goal = run.data().observations[3], run.data().observations[40]
    unit, robot = (loaded.act(observation, goal, units=units) for units in ("unit", "robot"))
    np.testing.assert_allclose(robot, [0.3 * (unit[0] + 1), 1.6 * unit[1]], atol=1e-6)
    np.testing.assert_array_equal(loaded.start(goal).act(observation, units="robot"), robot)


def test_another_rate_is_refused_unless_it_is_meant(run):
    agent = iel.Agent(run.model, run.data())
    goal = run.data().observations[40]
    with pytest.raises(ConfigError, match=r"recorded at 10 Hz.*driven at 20 Hz.*any_rate=True"):
        agent.start(goal, rate=20.0)
    for known in ({"rate": 10.2}, {"rate": 20.0, "any_rate": True}, {}):
        agent.start(goal, **known)
    with pytest.raises(ConfigError, match="positive number"):
        agent.start(goal, rate=0.0)


def test_a_model_whose_signals_do_not_fit_is_refused(run, tmp_path):
    model = run.model
    for path in (run.path / "model").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert load_model(tmp_path).signals == model.signals
    config = json.loads((tmp_path / "config.json").read_text())
    for signals in ({"observations": ["x"]}, {"rate": -1.0}, {"action_low": [0.0, "a"]}, {"units": {"x": 1}}):
        (tmp_path / "config.json").write_text(json.dumps({**config, "signals": signals}))
        with pytest.raises(RunError, match="signals"):
            load_model(tmp_path)
