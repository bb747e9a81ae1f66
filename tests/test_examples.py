"""The examples do what they say."""

import importlib.util
import json
import time
from pathlib import Path

import numpy as np
import pytest

import iel
from benchmarks.runtime import random_model
from iel.model.support import support_of

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trained(maze_data, tmp_path_factory) -> str:
    """A run that has learned next to nothing, for examples that take one."""
    algo = iel.IEL.preset("smoke", steps=60, hidden=(16,), batch_size=16)
    out = tmp_path_factory.mktemp("trained") / "run"
    iel.train(maze_data, algo, out=out, progress=False)
    return str(out)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_own_logs_run():
    assert 0 <= load("own_logs").main(steps=60) < 15


@pytest.mark.long
@pytest.mark.optimised
def test_own_logs_succeed():
    """With a third of the example's steps, which is enough to reach the goal."""
    assert load("own_logs").main(steps=2000) < 1.5


@pytest.mark.long
@pytest.mark.optimised
def test_teleports_lead_to_the_other_room():
    without, with_teleports = load("two_rooms").main()
    assert with_teleports >= 0.9 > without


@pytest.mark.slow
def test_detour_costs_no_less(trained):
    before, after = load("detour").main(trained, nodes=200)
    assert after >= before


def run_notebook(name: str, steps: int, monkeypatch, tmp_path) -> dict:
    """Every code cell in turn, in a folder of its own; what the cells leave behind."""
    cells = json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    found: dict = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "strip the notebook's outputs before committing it"
            exec("".join(cell["source"]).replace("STEPS = 3000", f"STEPS = {steps}"), found)
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_the_notebook_runs(monkeypatch, tmp_path):
    """From the CSV to a cart that is driven; so few steps teach it nothing."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr("own_robot.Cart.horizon", 40)
    found = run_notebook("own_robot", 60, monkeypatch, tmp_path)
    (results,) = found["results"].values()
    assert len(found["path"]) > 1 and len(results.success) == 20 and found["fig"].axes


@pytest.mark.long
@pytest.mark.optimised
def test_the_notebooks_cart_succeeds(monkeypatch, tmp_path):
    (results,) = run_notebook("own_robot", 3000, monkeypatch, tmp_path)["results"].values()
    assert results.success.mean() >= 0.8


@pytest.mark.long
@pytest.mark.optimised
def test_own_robot_moves(tmp_path):
    """From a CSV to a moving agent, as the page about it says."""
    assert load("own_robot").main(str(tmp_path)) >= 0.8


def test_own_robots_logs_are_in_order(tmp_path):
    example = load("own_robot")
    example.write_logs(tmp_path / "logs.csv", episodes=12)
    columns = {"observations": ["x", "y", "vx", "vy"], "actions": ["push_x", "push_y"], "episode": "run"}
    data = iel.load(tmp_path / "logs.csv", columns=columns)
    assert len(data) == 12 and data.num_transitions == 12 * 199
    crossings = np.diff(np.sign(data.observations[:, 0] - 5.0))[data.transitions[:-1]]
    assert np.count_nonzero(crossings) > 12  # the logs pass the gap


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_prompts_are_driven_and_drawn(trained, maze_data, tmp_path, drawn):
    example = load("prompts")
    goal_specs = {"columns": {0: float(maze_data.observations[0, 0])}, "reward": example.Reward(example.near(0.0, 0.0))}
    routes = example.main(trained, str(tmp_path / "prompts.png"), goal_specs, steps=5, nodes=200)
    assert {len(route) for route in routes.values()} == {6} and (tmp_path / "prompts.png").exists()
    assert min(drawn[-1][: len(goal_specs)]) > 1


# ---------------------------------------------------------------- a control loop, and what may go wrong with it


@pytest.fixture(scope="module")
def carts():
    example = load("control_loop")
    example.WATCHDOG = {**example.WATCHDOG, "max_age": 30.0}  # a busy machine is not a fault here
    return example


@pytest.fixture(scope="module")
def driver(carts) -> iel.Agent:
    """An agent that has learned nothing, but knows where the cart has been."""
    data, model = carts.logs(episodes=30), random_model("directed", (16, 16), 4, 2, 8)
    model.support, model.signals = support_of(data), data.signals
    return iel.Agent(model, data, nodes=100)


def drive(carts, robot, act, **options):
    """The loop, quickly, and the commands that the robot got."""
    commands: list[np.ndarray] = []
    command = robot.command
    robot.command = lambda action: (commands.append(np.asarray(action)), command(action))
    options = {"rate": 500.0, "deadline": 5.0, "patience": 5, "most": 30, **options}
    ending = carts.drive(robot, act, lambda observation: False, **options)
    assert np.array_equal(commands[-1], carts.STOP), "whatever happens, the last command is the stop"
    return ending, commands


def faulty(carts, fault):
    """A cart whose sensor breaks after the tenth observation."""
    cart, seen = carts.Cart(), []
    observe = cart.observe

    def broken():
        observation, stamp = observe()
        seen.append((observation, stamp))
        return (observation, stamp) if len(seen) <= 10 else fault(observation, stamp, seen)

    cart.observe = broken
    return cart


FAULTS = {
    "stale": lambda observation, stamp, seen: seen[9],
    "old": lambda observation, stamp, seen: (observation, stamp - 60.0),
    "not finite": lambda observation, stamp, seen: (np.full_like(observation, np.nan), stamp),
    "outside": lambda observation, stamp, seen: (observation + 1000, stamp),
    "refused": lambda observation, stamp, seen: (observation[:2], stamp),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_a_control_loop_stops_for_every_fault_of_a_sensor(carts, driver, fault):
    ending, commands = drive(carts, faulty(carts, FAULTS[fault]), carts.local(driver))
    expected = "stale" if fault == "old" else fault
    assert ending.reason.startswith(expected) and not ending.reached, ending
    assert ending.steps == 15 and ending.stops == 5, "at once, and for good after `patience` steps"
    assert any(np.abs(action).max() > 0 for action in commands[:10]) and not np.any(commands[10:])


@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_a_control_loop_goes_on_when_a_fault_has_passed(carts, driver):
    def once(observation, stamp, seen):
        return (observation * np.nan, stamp) if len(seen) == 12 else (observation, stamp)

    ending, commands = drive(carts, faulty(carts, once), carts.local(driver))
    assert (ending.reason, ending.stops, ending.steps) == ("out of steps", 1, 30)
    assert np.any(commands[12]) and not np.any(commands[11])


def test_a_late_answer_is_not_used(carts):
    def slow(observation, stamp):
        time.sleep(0.02)
        return np.ones(2), None

    ending, commands = drive(carts, carts.Cart(), slow, deadline=0.01)
    assert ending.reason.startswith("late: the answer took") and not np.any(commands)


def test_an_exception_stops_the_robot_as_well(carts):
    class Pulled(carts.Cart):
        def observe(self):
            raise OSError("the cable is out")

    robot, commands = Pulled(), []
    robot.command = commands.append
    with pytest.raises(OSError, match="cable"):
        carts.drive(robot, None, None)
    assert np.array_equal(commands, [carts.STOP])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_a_server_that_is_gone_stops_the_robot_until_it_is_back(carts, driver):
    pytest.importorskip("starlette")
    from iel.serving.engine import Served
    from tests.serving.conftest import Running

    def served():
        return Running(Served("cart", driver.model, driver.atlas))

    with served() as server:
        act = carts.remote(server.url, deadline=10.0)
        ending, commands = drive(carts, carts.Cart(), act, most=10)
        assert ending.reason == "out of steps" and ending.stops == 0 and np.any(commands[:10])
        assert act(np.full(4, np.nan), time.time())[1].startswith("not finite")
        assert act(np.array([5.0, 5, 0, 0]), time.time() - 60)[1].startswith("stale")
    ending, commands = drive(carts, carts.Cart(), act)
    assert ending.reason.startswith("server: ") and ending.steps == 5 and not np.any(commands)


@pytest.mark.long
@pytest.mark.optimised
@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_a_control_loop_succeeds(carts, monkeypatch):
    monkeypatch.setattr(carts, "RATE", 200.0)
    assert carts.main().reached


# ---------------------------------------------------------------- a node of ROS 2, with a stand-in of the node


class Node:
    """The three calls."""

    def __init__(self):
        self.callbacks, self.published, self.period = {}, [], 0.0

    def create_subscription(self, message, topic, callback, depth):
        self.callbacks[topic] = callback

    def create_publisher(self, message, topic, depth):
        self.topic = topic
        return self

    def publish(self, message):
        self.published.append(message.data)

    def create_timer(self, period, callback):
        self.period, self.tick = period, callback


class Message:
    def __init__(self, data):
        self.data = data


@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_a_ros_node_acts_on_goals_and_stops_without_them(carts, driver, monkeypatch):
    ros, node = load("ros2_node"), Node()
    robot = ros.GoToGoal(node, Message, driver, [0.0, 0.0], carts.RATE)
    now = [1000.0]
    monkeypatch.setattr("time.time", lambda: now[0])

    def send(topic: str, *numbers: float) -> None:
        node.callbacks[topic](Message(list(numbers)))

    def action() -> tuple[list[float], str | None]:
        now[0] += node.period
        node.tick()
        return node.published[-1], robot.reason

    assert node.topic == "action" and node.period == 1 / carts.RATE
    send("observation", 5.0, 5.0, 0.0, 0.0)
    assert action() == ([0.0, 0.0], "no goal")
    send("goal", 8.0, 8.0, np.nan, np.nan)
    moved, reason = action()
    assert np.any(moved) and reason is None
    expected = driver.start({0: 8.0, 1: 8.0}).act(np.array([5.0, 5.0, 0.0, 0.0]))
    assert np.allclose(moved, expected)
    assert action() == (moved, None), "between two observations the last action holds"
    for _ in range(5):
        stopped, reason = action()
    assert stopped == [0.0, 0.0] and reason.startswith("stale")
    send("observation", 5.0, np.nan, 0.0, 0.0)
    assert action()[0] == [0.0, 0.0] and robot.reason.startswith("not finite")
    send("observation", 5.1, 5.0, 0.0, 0.0)
    assert np.any(action()[0])
    send("goal", 8.0)
    assert action()[0] == [0.0, 0.0] and robot.reason.startswith("goal: ")
    send("goal")
    assert action() == ([0.0, 0.0], "no goal")


def test_every_example_is_tested():
    tested = "\n".join(path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    assert all(
        f'load("{path.stem}")' in tested or f"from {path.stem} import" in tested for path in EXAMPLES.glob("*.py")
    )
