"""The numpy runtime is the model: the same numbers to 1e-5, without JAX, and it trusts no file."""

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.runtime import trained_like
from iel.algos.contract import Spec
from iel.algos.model import ModelConfig, goal_model_config, load_model
from iel.errors import ConfigError, GeometryError, IELError, RunError
from iel.planning import make_planner
from iel.runtime import Pack, RuntimeConfig, load_runtime
from iel.runtime.files import file_facts
from iel.serial import load_arrays, save_arrays

pytestmark = pytest.mark.optimised  # agreement to the last digits is with the programs users run

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*/*"))
SPEC = Spec(5, 3)


def configs(width: int) -> list[ModelConfig]:
    hidden = (width, width)
    return [
        ModelConfig("iel", 5, 3, 8, hidden, 0.3, 0.99),
        ModelConfig("iel", 5, 3, 8, (width,), 1.0, 0.999),
        ModelConfig("hilp", 5, 3, 8, hidden, 0.0, 0.99, directed=False),
        goal_model_config("gcbc", SPEC, hidden, 0.99),
        goal_model_config("gcivl", SPEC, hidden, 0.99, value="state"),
        goal_model_config("gciql", SPEC, hidden, 0.99, value="action"),
        goal_model_config("gccql", SPEC, hidden, 0.99, value="action", squashed=True),
    ]


def inputs(scale: float) -> tuple[np.ndarray, np.ndarray]:
    states, goals = scale * np.random.default_rng(1).standard_normal((2, 64, 5))
    goals[:8] = states[:8]  # a goal that is reached already
    return states.astype(np.float32), goals.astype(np.float32)


@pytest.fixture
def saved(tmp_path):
    """A small directed model on disk."""
    trained_like(configs(16)[0]).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("width", [8, 64])
@pytest.mark.parametrize("kind", range(7))
def test_numpy_agrees_with_jax(kind, width, tmp_path):
    model = trained_like(configs(width)[kind], seed=width)
    model.save(tmp_path)
    runtime = load_runtime(tmp_path)
    assert runtime.beta == model.beta and runtime.discount == model.discount
    assert runtime.has_distance == model.has_distance and runtime.has_geometry == model.has_geometry
    for scale in (0.0, 1.0, 1e3):
        states, goals = inputs(scale)
        directions = model.task(goals)
        # A policy has no LayerNorm: its rounding grows with the input, in JAX as in numpy.
        tolerance = 1e-5 * max(1.0, scale)
        np.testing.assert_allclose(runtime.task(goals), directions, atol=1e-5)
        np.testing.assert_allclose(runtime.embed(states), model.embed(states), atol=1e-5)
        np.testing.assert_allclose(runtime.act(states, directions), model.act(states, directions), atol=tolerance)
        if model.has_distance:
            ours, theirs = runtime.distance(states, goals, goals), model.distance(states, goals, goals)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
            ours, theirs = runtime.hitting_time(states, goals), model.hitting_time(states, goals)
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-4)
        if model.has_directions:
            ours, theirs = runtime.displacement(states, goals), model.displacement(states, goals)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_agreement_is_not_an_accident_of_small_numbers(tmp_path):
    """Distances and actions of these models vary; a wrong sign of beta or a wrong GELU is far above the tolerance."""
    model = trained_like(configs(64)[0])
    model.save(tmp_path)
    runtime = load_runtime(tmp_path)
    states, goals = inputs(1.0)
    distance = runtime.distance(states, goals, goals)
    assert distance[8:].std() > 0.05 and runtime.act(states, runtime.task(goals)).std() > 0.05
    other = dataclasses.replace(runtime.config, beta=-0.3)
    runtime.config = other
    assert np.abs(runtime.distance(states, goals, goals) - distance)[8:].min() > 1e-3


@pytest.mark.parametrize("planner", ["direct", "rec-mid", "sym-graph", "asym-graph"])
def test_planners_act_alike_over_both(planner, tmp_path):
    """The same nodes, the same way, the same action: the runtime is all that planning needs."""
    model = trained_like(configs(32)[0])
    model.save(tmp_path)
    runtime = load_runtime(tmp_path)
    nodes = np.random.default_rng(2).standard_normal((200, 5)).astype(np.float32)
    runtime.pack = Pack(nodes, model.embed(nodes))
    settings = {"coreset": "all"} if planner.endswith("graph") else {}
    theirs, ours = make_planner(planner, model, runtime.pack, **settings), runtime.planner(planner)
    for goal, state in zip(nodes[:5], nodes[5:10] + 0.01, strict=True):
        theirs.prepare(goal)
        ours.prepare(goal)
        assert np.array_equal(theirs.path(state).nodes, ours.path(state).nodes)
        np.testing.assert_allclose(ours.act(state), theirs.act(state), atol=1e-4)
        np.testing.assert_allclose(ours.predicted_steps(state), theirs.predicted_steps(state), rtol=1e-4)


def test_runtime_acts_and_plans_without_jax(tmp_path):
    """Not imported, not even importable; nor is anything else that a robot does not have."""
    model = trained_like(configs(16)[0])
    model.save(tmp_path)
    nodes = np.random.default_rng(2).standard_normal((50, 5)).astype(np.float32)
    save_arrays(tmp_path / "planner.safetensors", {"observations": nodes, "embeddings": model.embed(nodes)})
    absent = ["jax", "jaxlib", "equinox", "optax", "safetensors", "tyro", "gymnasium", "mujoco", "matplotlib", "h5py"]
    code = f"""
import sys
sys.modules.update(dict.fromkeys({absent}))
import numpy as np
from iel.runtime import load_runtime
model = load_runtime({str(tmp_path)!r})
model.act(np.zeros((1, 5)), np.zeros((1, 8)))
assert not any(name.startswith("scipy") for name in sys.modules)
planner = model.planner("asym-graph")
planner.prepare(np.ones(5))
assert planner.act(np.zeros(5)).shape == (3,)
assert sys.modules["jax"] is None and not any(name.startswith("jax.") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
    plain = f"import sys; from iel.runtime import load_runtime as load; load({str(tmp_path)!r}).planner(); "
    subprocess.run([sys.executable, "-c", plain + "sys.exit('jax' in sys.modules)"], check=True)


def test_config_is_the_model_s(tmp_path):
    """The runtime's reading of config.json has the fields and the defaults of the writer's."""
    fields = {field.name: field.default for field in dataclasses.fields(ModelConfig)}
    assert fields == {field.name: field.default for field in dataclasses.fields(RuntimeConfig)}


def test_many_rows_are_the_rows_one_by_one(saved, monkeypatch):
    runtime = load_runtime(saved)
    states, _ = inputs(1.0)
    whole = runtime.embed(states)
    monkeypatch.setattr("iel.runtime.model.BLOCK", 7)
    np.testing.assert_allclose(runtime.embed(states), whole, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_input_never_becomes_an_action(saved, bad):
    runtime = load_runtime(saved)
    states, directions = np.zeros((2, 5), np.float32), np.zeros((2, 8), np.float32)
    states[1, 2] = bad
    with pytest.raises(GeometryError, match="not finite in row 1"):
        runtime.act(states, directions)
    directions[0, 0] = bad
    with pytest.raises(GeometryError, match="directions"):
        runtime.act(np.zeros((2, 5)), directions)
    with pytest.raises(GeometryError, match="absurdly large"):
        runtime.embed(np.full((1, 5), 3e38))


def test_wrong_shapes_are_named(saved):
    runtime = load_runtime(saved)
    with pytest.raises(ConfigError, match=r"\(n, 5\)"):
        runtime.embed(np.zeros(5))
    with pytest.raises(ConfigError, match=r"\(2, 8\)"):
        runtime.act(np.zeros((2, 5)), np.zeros((2, 7)))
    with pytest.raises(RunError, match="--nodes"):
        runtime.planner("asym-graph")


# ---------------------------------------------------------------- files that lie

BAD_SETTINGS = {
    "format": (2, "format 2"),
    "hidden": ("16", "list"),
    "dimension": (10**9, "dimension"),
    "observation_size": (True, "observation_size"),
    "action_size": (-1, "action_size"),
    "beta": ("0.1", "beta"),
    "discount": (1.0, "discount"),
    "conditioning": ("../../etc/passwd", "conditioning"),
    "value": ([], "value"),
    "weights": ("/etc/passwd", "unexpected weights"),
    "algo": (["iel"], "algo"),
    "heads": (0, "heads"),
    "directed": (False, "beta"),
}


@pytest.mark.parametrize("field", BAD_SETTINGS)
def test_config_that_lies_is_refused(saved, field):
    value, said = BAD_SETTINGS[field]
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(RunError, match=said):
        load_runtime(saved)


def test_weights_that_lie_are_refused(saved):
    source = saved / "model.safetensors"
    arrays = load_arrays(source)
    name = "policy.mean.layers.1.kernel"
    cases = {
        "lacks the tensor": {key: array for key, array in arrays.items() if key != name},
        "asks for float32": {**arrays, name: arrays[name][:-1]},
        r"float64\[16, 16\]": {**arrays, name: arrays[name].astype(np.float64)},
        "not finite": {**arrays, name: np.where(np.eye(16) > 0, np.nan, arrays[name]).astype(np.float32)},
        "unexpected tensor": {**arrays, "../evil": arrays[name]},
    }
    for said, changed in cases.items():
        save_arrays(source, changed)
        with pytest.raises(RunError, match=said):
            load_runtime(saved)
    source.write_bytes(source.read_bytes()[:-10])
    with pytest.raises(RunError):
        load_runtime(saved)
    source.unlink()
    with pytest.raises(RunError):
        load_runtime(saved)


def test_planning_states_of_another_model_are_refused(saved):
    nodes = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
    runtime = load_runtime(saved)
    good = {"observations": nodes, "embeddings": runtime.embed(nodes)}
    cases = {
        "another model": {**good, "embeddings": good["embeddings"] + np.float32(0.1)},
        "not fit": {**good, "embeddings": good["embeddings"][:-1]},
        "not finite": {**good, "observations": np.full_like(nodes, np.nan)},
        "does not hold observations": {"observations": nodes},
        "float32": {**good, "observations": nodes.astype(np.float64)},
    }
    for said, arrays in cases.items():
        save_arrays(saved / "planner.safetensors", arrays)
        with pytest.raises(RunError, match=said):
            load_runtime(saved)
    save_arrays(saved / "planner.safetensors", good)
    assert len(load_runtime(saved).planner("asym-graph").states) == 20


def test_manifest_is_believed_only_about_its_own_directory(saved):
    facts = {name: file_facts(saved / name) for name in ("config.json", "model.safetensors")}

    def write(files, version=1):
        (saved / "manifest.json").write_text(json.dumps({"format": version, "files": files}))

    write(facts)
    load_runtime(saved)
    for said, files, version in [
        ("not the name of a file", {**facts, "../../secret": facts["config.json"]}, 1),
        ("not listed", {"config.json": facts["config.json"]}, 1),
        ("damaged", {**facts, "config.json": {**facts["config.json"], "sha256": "0" * 64}}, 1),
        ("manifest format 9", facts, 9),
        ("lists no files", [], 1),
    ]:
        write(files, version)
        with pytest.raises(RunError, match=said):
            load_runtime(saved)


def test_a_flipped_bit_is_found(saved):
    facts = {name: file_facts(saved / name) for name in ("config.json", "model.safetensors")}
    (saved / "manifest.json").write_text(json.dumps({"format": 1, "files": facts}))
    generator = np.random.default_rng(0)
    for name in facts:
        whole = (saved / name).read_bytes()
        for place in generator.integers(0, len(whole), 20):
            broken = bytearray(whole)
            broken[place] ^= 1 << int(generator.integers(8))
            (saved / name).write_bytes(broken)
            with pytest.raises(IELError):
                load_runtime(saved)
        (saved / name).write_bytes(whole)
    load_runtime(saved)


# ---------------------------------------------------------------- what earlier releases wrote


def test_there_are_golden_files():
    assert len(GOLDEN) >= 5


@pytest.mark.parametrize("directory", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_golden_files_of_earlier_releases_still_mean_the_same(directory, tmp_path):
    expected = load_arrays(directory / "expected.safetensors")
    # A directory without the extra file is exactly what that release shipped.
    for name in ("config.json", "model.safetensors"):
        shutil.copy(directory / name, tmp_path)
    for model in (load_model(tmp_path), load_runtime(tmp_path)):
        states, goals, directions = (expected[name] for name in ("observations", "goals", "directions"))
        np.testing.assert_allclose(model.task(goals), directions, atol=1e-5)
        np.testing.assert_allclose(model.embed(states), expected["embed"], atol=1e-5)
        np.testing.assert_allclose(model.act(states, directions), expected["act"], atol=1e-5)
        assert model.has_distance == ("distance" in expected)
        if model.has_distance:
            np.testing.assert_allclose(model.distance(states, goals, goals), expected["distance"], rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(
                model.hitting_time(states, goals), expected["hitting_time"], rtol=1e-4, atol=1e-5
            )
