"""The examples do what they say."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

import iel

EXAMPLES = Path(__file__).parent.parent / "examples"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.optimised
def test_own_logs_arrive():
    """With a third of the example's steps, which is enough to arrive."""
    assert load("own_logs").main(steps=2000) < 1.5


@pytest.mark.long
@pytest.mark.optimised
def test_luck_leads_to_the_other_room():
    without, with_chance = load("two_rooms").main()
    assert with_chance >= 0.9 > without


@pytest.mark.slow
def test_detour_costs_no_less(maze_data, tmp_path):
    algo = iel.IEL.preset("smoke", steps=60, hidden=(16,), batch_size=16)
    iel.train(maze_data, algo, out=tmp_path / "run", progress=False)
    before, after = load("detour").main(str(tmp_path / "run"), nodes=200)
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
    results = found["results"]["asym-graph"]
    assert len(found["path"]) > 1 and len(results.success) == 20 and found["fig"].axes


@pytest.mark.long
@pytest.mark.optimised
def test_the_notebooks_cart_arrives(monkeypatch, tmp_path):
    results = run_notebook("own_robot", 3000, monkeypatch, tmp_path)["results"]
    assert results["asym-graph"].success.mean() >= 0.8


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
    assert np.count_nonzero(crossings) > 12  # the logs know the way through the gap


@pytest.mark.slow
def test_a_control_loop_drives_a_robot_from_afar():
    """An untrained policy seldom arrives, but every step of it comes from the server."""
    pytest.importorskip("fastapi")
    from tests.serving.conftest import Running, maze_model

    with Running(maze_model()) as server:
        arrived, steps = load("control_loop").main("pointmaze-medium-navigate-v0", server.url)
    assert arrived or steps == 1000


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_prompts_are_driven_and_drawn(maze_data, tmp_path, drawn):
    algo = iel.IEL.preset("smoke", steps=60, hidden=(16,), batch_size=16)
    iel.train(maze_data, algo, out=tmp_path / "run", progress=False)
    example = load("prompts")
    wishes = {"columns": {0: float(maze_data.observations[0, 0])}, "reward": example.Reward(example.near(0.0, 0.0))}
    ways = example.main(str(tmp_path / "run"), str(tmp_path / "prompts.png"), wishes, steps=5)
    assert {len(way) for way in ways.values()} == {6} and (tmp_path / "prompts.png").exists()
    assert min(drawn[-1][: len(wishes)]) > 1


def test_every_example_is_tested():
    tested = Path(__file__).read_text()
    assert all(f'load("{path.stem}")' in tested for path in EXAMPLES.glob("*.py"))
