"""`iel export`: what is written elsewhere says the same as the run it came from, whole or not at all."""

import json
import shutil
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from benchmarks.runtime import KINDS, random_model
from iel.card import page
from iel.cli import run as iel_command
from iel.data import Trajectories, load
from iel.distances import Displacement
from iel.errors import ConfigError, RunError
from iel.export import build_graphs, export_run
from iel.files import seal, verify_seal
from iel.loader import read_safetensors
from iel.methods import GCIVL, IEL
from iel.model import Model, load_model, save_model
from iel.model.files import read_model
from iel.model.model import STEPS_AHEAD
from iel.planning import AsymGraph, Atlas, Direct, SymGraph
from iel.policies import Waypoints
from iel.serial import save_arrays
from iel.serving.engine import open_served
from iel.training import open_run, train

onnxruntime = pytest.importorskip("onnxruntime")


def made(kind: str) -> Model:
    return random_model(kind, (64, 64), 5, 3, 8)


def session(graph) -> "onnxruntime.InferenceSession":
    return onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def walks() -> Trajectories:
    generator = np.random.default_rng(0)
    actions = generator.uniform(-1, 1, (5, 40, 2))
    return Trajectories.from_episodes([(np.concatenate([np.ones((1, 2)), a.cumsum(0)]), a) for a in actions], "walks")


@pytest.fixture(scope="module")
def trained(walks, tmp_path_factory):
    """A really trained run."""
    out = tmp_path_factory.mktemp("run") / "a"
    settings = {"steps": 60, "hidden": (16, 16), "batch_size": 16, "dimension": 4}
    train(walks, IEL.preset("smoke", **settings), [0], out=out, progress=False)
    return open_run(out)


@pytest.mark.parametrize("kind", KINDS)
def test_onnx_agrees_with_numpy(kind):
    model = made(kind)
    graphs = build_graphs(model)
    whole, alone = session(graphs["model.onnx"]), session(graphs["act.onnx"])
    for scale in (0.0, 1.0, 1e3):
        states, goals = (scale * np.random.default_rng(3).standard_normal((2, 33, 5))).astype(np.float32)
        goals[:4] = states[:4]  # no displacement: the goal's own direction is followed, as the planner does
        tolerance = 1e-5 * max(1.0, scale)
        command = model.command(states, Direct(model, Atlas(states)).plan(goals).target(model.embed(states)))
        (action,) = whole.run(None, {"observation": states, "goal": goals})
        np.testing.assert_allclose(action, model.act(states, command), atol=tolerance)
        (action,) = alone.run(None, {"observation": states, "command": command})
        np.testing.assert_allclose(action, model.act(states, command), atol=tolerance)
        assert ("embed.onnx" in graphs, "omega.onnx" in graphs) == (
            "embedding" in model.networks,
            "omega" in model.networks,
        )
        if "embed.onnx" in graphs:
            (phi,) = session(graphs["embed.onnx"]).run(None, {"observation": states})
            np.testing.assert_allclose(phi, model.embed(states), atol=1e-5)
        if "omega.onnx" in graphs:
            (omega,) = session(graphs["omega.onnx"]).run(None, {"goal": goals})
            np.testing.assert_allclose(omega, model.omega(goals), atol=1e-5)


def test_several_policies_act_by_their_mean_here_there_and_after_saving(tmp_path):
    model, other = (random_model("iel", (16, 16), 5, 3, 8, seed) for seed in (0, 1))
    policy = model.networks["policy"]
    model.networks["policy"] = replace(policy, heads=(*policy.heads, *other.networks["policy"].heads))
    states = np.random.default_rng(3).standard_normal((33, 5)).astype(np.float32)
    command = np.random.default_rng(4).standard_normal((33, model.command_size)).astype(np.float32)
    action = model.act(states, command)
    x = np.concatenate([states, command], axis=1)
    expected = (policy(x) + other.networks["policy"](x)) / 2
    np.testing.assert_allclose(action, np.clip(expected, -1, 1), atol=1e-6)
    (there,) = session(build_graphs(model)["act.onnx"]).run(None, {"observation": states, "command": command})
    np.testing.assert_allclose(there, action, atol=1e-5)
    save_model(model, tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").act(states, command), action)


def test_batch_axis_is_free_and_names_are_the_documented_ones():
    whole = session(build_graphs(made("directed"))["model.onnx"])
    assert [(value.name, value.shape) for value in whole.get_inputs()] == [
        ("observation", ["batch", 5]),
        ("goal", ["batch", 5]),
    ]
    assert [value.name for value in whole.get_outputs()] == ["action"]
    for rows in (1, 7):
        assert (
            whole.run(None, dict.fromkeys(("observation", "goal"), np.ones((rows, 5), np.float32)))[0].shape[0] == rows
        )


def test_export_of_a_run_is_whole_and_plans_like_the_run(trained, walks, tmp_path):
    out = tmp_path / "robot"
    card = export_run(trained, out, data=walks, nodes=32)
    verify_seal(out, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"robot"}  # nothing is left beside it
    assert card["data"]["fingerprint"] == walks.fingerprint and card["planner"]["nodes"] == 32
    assert max(card["agreement"]["onnx"].values()) < 1e-5
    text = (out / "README.md").read_text()
    assert "plans over 32 states" in text and "not finished" not in text
    assert "Its training is not finished (interrupted, step" in page({**card, "status": "interrupted"})
    assert json.loads((out / "card.json").read_text()) == card

    model = load_model(out)  # an export is a model directory too
    ours, theirs = model.planner("asym-graph"), AsymGraph(trained.model, walks, nodes=32)
    state, goal = walks.observations[3], walks.observations[150]
    for planner in (ours, theirs):
        planner.prepare(goal)
    np.testing.assert_allclose(ours.path(state).observations, theirs.path(state).observations)
    np.testing.assert_allclose(ours.act(state), theirs.act(state), atol=1e-5)
    assert np.array_equal(model.embed(state[None]), trained.model.embed(state[None]))


def test_an_export_knows_who_passed_where(trained, walks, tmp_path):
    with pytest.raises(ConfigError, match="--nodes 2048"):
        export_run(trained, tmp_path / "none", data=walks, unobserved_cost=1000, onnx=False)
    card = export_run(trained, tmp_path / "out", data=walks, nodes=40, unobserved_cost=1000, onnx=False)
    planner = load_model(tmp_path / "out").planner("asym-graph")
    goal, starts = walks.observations[3], walks.observations[::7]
    others = (AsymGraph(trained.model, walks, nodes=40, unobserved_cost=factor) for factor in (1000, 1))
    ours, same, plain = (p.plan([goal] * len(starts)).steps(p.model.embed(starts)) for p in (planner, *others))
    np.testing.assert_allclose(ours, same, rtol=1e-4)
    assert (ours != plain).any() and card["planner"]["unobserved_cost"] == 1000
    arrays = read_safetensors(tmp_path / "out" / "planner.safetensors")
    save_arrays(tmp_path / "out" / "planner.safetensors", {**arrays, "codes": arrays["codes"][::-1].copy()})
    seal(tmp_path / "out", 1, {})
    with pytest.raises(RunError, match="observed edges that do not fit"):
        read_model(tmp_path / "out")


def test_an_export_knows_what_throws_one_elsewhere(tmp_path):
    """A belt with a pad at 100: six of ten who step on it start again, the others are thrown to its far end."""
    walk = np.arange(250, dtype=np.float32)
    thrown = [np.concatenate([walk[:100], walk[:100] if n % 5 < 3 else walk[150:]]) for n in range(30)]
    table = [np.stack([position + 0.01 * n, np.full(len(position), 0.1 * n)], 1) for n, position in enumerate(thrown)]
    data = Trajectories.from_episodes([(rows, np.sin(rows[1:, :1])) for rows in table], "belt")
    settings = {"hidden": (16, 16), "batch_size": 16, "dimension": 4, "policy": Waypoints(columns=(0,))}
    train(data, IEL.preset("smoke", steps=60, cut_jumps=False, **settings), [0], out=tmp_path / "run", progress=False)
    run = open_run(tmp_path / "run")
    export_run(run, tmp_path / "out", data=data, nodes=40, onnx=False)
    ours, theirs = load_model(tmp_path / "out").planner("asym-graph"), AsymGraph(run.model, data, nodes=40)
    for name in ("aims", "source", "entered", "left", "exits", "shares"):
        assert np.array_equal(getattr(ours.graph.teleports, name), getattr(theirs.graph.teleports, name)), name
    starts = data.observations[::7]
    routes = [p.plan([data.observations[-1]] * len(starts)).steps(p.model.embed(starts)) for p in (ours, theirs)]
    np.testing.assert_allclose(*routes, rtol=1e-4)
    arrays = read_safetensors(tmp_path / "out" / "planner.safetensors")
    for name, wrong in {"source": 40, "entered": 1, "left": -1, "exits": 40, "shares": 0.0, "aims": np.nan}.items():
        broken = arrays[f"teleports.{name}"].copy()
        broken.flat[0] = wrong
        save_arrays(tmp_path / "out" / "planner.safetensors", {**arrays, f"teleports.{name}": broken})
        seal(tmp_path / "out", 1, {})
        with pytest.raises(RunError, match="teleports"):
            read_model(tmp_path / "out")


def test_an_export_that_lost_or_gained_a_file_is_refused_by_its_name(trained, walks, tmp_path):
    """Without its states an export has no planner but `direct`: a robot would drive straight."""
    whole = tmp_path / "whole"
    export_run(trained, whole, data=walks, nodes=8)
    names = sorted(path.name for path in whole.iterdir())
    assert {"planner.safetensors", "support.safetensors", "card.json", "model.onnx"} < set(names)
    for name in names:
        out = tmp_path / name
        shutil.copytree(whole, out)
        (out / name).unlink()
        with pytest.raises(RunError, match=name):
            load_model(out)
        with pytest.raises(RunError, match=name):
            open_served(out)
    for change in ("missing", "cut", "flipped"):  # of files that no model is read from
        for name in ("card.json", "act.onnx", "README.md"):
            out = tmp_path / f"{change}-{name}"
            shutil.copytree(whole, out)
            content = bytearray((out / name).read_bytes())
            content[len(content) // 2] ^= 1
            (out / name).write_bytes({"missing": b"", "cut": content[:-1], "flipped": content}[change])
            with pytest.raises(RunError, match=rf"{name} is damaged"):
                load_model(out)
    (whole / "extra.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match=r"extra\.safetensors is not listed"):
        load_model(whole)


def test_the_command_checks_an_export(trained, walks, tmp_path, capsys):
    out = tmp_path / "out"
    export_run(trained, out, data=walks, nodes=8)
    assert iel_command(["export", "--check", str(out)]) == 0
    assert "is whole: " in capsys.readouterr().out
    (out / "support.safetensors").unlink()
    with pytest.raises(RunError, match=r"support\.safetensors does not exist"):
        iel_command(["export", str(out), "--check"])


def test_an_export_says_nothing_of_this_machines_directories(walks, tmp_path):
    walks.save(tmp_path / "walks.npz")
    settings = {"steps": 30, "hidden": (16, 16), "batch_size": 16, "dimension": 4}
    algo = IEL.preset("smoke", **settings)
    train(
        load(tmp_path / "walks.npz"), algo, [0], out=tmp_path / "run", data_file=tmp_path / "walks.npz", progress=False
    )
    run = open_run(tmp_path / "run")
    assert str(tmp_path) in run.config["data"]["file"]
    export_run(run, tmp_path / "out", onnx=False)
    for path in (tmp_path / "out").iterdir():
        assert str(tmp_path).encode() not in path.read_bytes(), path.name


def test_the_same_run_exports_the_same_bytes(trained, walks, tmp_path):
    for name in ("a", "b"):
        export_run(trained, tmp_path / name, data=walks, nodes=8)
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_the_command_exports_and_never_overwrites(trained, tmp_path, capsys):
    out = tmp_path / "out"
    assert iel_command(["export", str(trained.path), "--out", str(out), "--no-onnx", "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["onnx"] is None and not list(out.glob("*.onnx")) and result["files"].keys() >= {"model.safetensors"}
    before = (out / "manifest.json").read_bytes()
    with pytest.raises(RunError, match="already exists"):
        iel_command(["export", str(trained.path), "--out", str(out), "--no-onnx"])
    assert (out / "manifest.json").read_bytes() == before


def test_missing_onnx_names_the_extra_and_writes_nothing(trained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ConfigError, match=r"'\.\[onnx\].*--no-onnx"):
        export_run(trained, tmp_path / "out")
    assert not list(tmp_path.iterdir())
    export_run(trained, tmp_path / "out", onnx=False)
    load_model(tmp_path / "out").planner("direct").prepare(np.zeros(2))


def test_a_failed_export_leaves_nothing(trained, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("iel.export.directory.seal", full)
    with pytest.raises(RunError, match="No space left"):
        export_run(trained, tmp_path / "out", onnx=False)
    assert not list(tmp_path.iterdir())


def test_an_export_that_disagrees_is_refused(trained, tmp_path, monkeypatch):
    """The negative control of the agreement check: graphs with another GELU do not pass."""
    monkeypatch.setattr("iel.export.graphs.Graph.gelu", lambda self, x: self.add("Relu", x))
    with pytest.raises(RunError, match="differs from the model"):
        export_run(trained, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_planning_states_need_distances(tmp_path):
    class GoalRun:
        model = made("goal")
        config = {"algo": "gcbc"}  # noqa: RUF012

    with pytest.raises(ConfigError, match="without --nodes"):
        export_run(GoalRun(), tmp_path / "out", data=object(), nodes=4)


def test_an_export_plans_with_values_as_the_run_does(walks, tmp_path):
    algo = GCIVL.preset("smoke", steps=30, hidden=(16, 16), batch_size=16)
    train(walks, algo, [0], out=tmp_path / "run", progress=False)
    run = open_run(tmp_path / "run")
    model = run.model
    export_run(run, tmp_path / "out", data=walks, nodes=40, onnx=False)
    planner = load_model(tmp_path / "out").planner("asym-graph")
    known = AsymGraph(model, walks, nodes=40)
    starts = np.concatenate([np.arange(a, b - STEPS_AHEAD) for a, b in pairwise(walks.offsets)])
    each = model.metric.row_costs(walks.observations[starts], walks.observations[starts + STEPS_AHEAD], [])
    assert planner.lookahead == known.lookahead == pytest.approx(np.median(each), rel=1e-6)
    symmetric = SymGraph(model, walks, nodes=40).lookahead
    assert load_model(tmp_path / "out").planner("sym-graph").lookahead == pytest.approx(symmetric) != known.lookahead
    assert open_served(tmp_path / "out")[0].agent("asym-graph").planner.lookahead == known.lookahead
    assert AsymGraph(model, load_model(tmp_path / "out").atlas, metric=Displacement(0.0)).lookahead == 0.0
    assert AsymGraph(model, Atlas(walks.observations), nodes=40).lookahead == 0.0  # states alone do not tell
    assert AsymGraph(model, walks, nodes=40, lookahead=0.0).lookahead == 0.0
    for exported in (planner, open_served(tmp_path / "out")[0].agent("asym-graph").planner):
        np.testing.assert_array_equal(exported.node_scale, known.node_scale)
        np.testing.assert_array_equal(exported.graph.tree.first, known.graph.tree.first)
        np.testing.assert_array_equal(exported.graph.tree.second, known.graph.tree.second)
    arrays = read_safetensors(tmp_path / "out" / "planner.safetensors")
    for name, wrong, said in (("lookahead", [1.0, -1.0], "negative"), ("node_scale", [0.0, 0.0], "negative")):
        save_arrays(tmp_path / "out" / "planner.safetensors", {**arrays, name: np.array(wrong)})
        seal(tmp_path / "out", 1, {})
        with pytest.raises(RunError, match=said):
            read_model(tmp_path / "out")
