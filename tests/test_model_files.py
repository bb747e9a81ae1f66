"""Files of a model: a lie in them is refused, and what earlier versions wrote still gives the same numbers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from iel.errors import IELError, RunError
from iel.files import _digest, file_facts, seal, write_json
from iel.model import Waypoint, load_model, save_model
from iel.model.files import write_model
from iel.serial import load_arrays, save_arrays
from model_worlds import made

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*/*"))


def unsealed(kind: str, directory: Path) -> Path:
    """A small model on disk as models were before manifests: its files can be changed."""
    directory.mkdir()
    write_model(made(kind), directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "sealed": False}))
    return directory


@pytest.fixture
def saved(tmp_path):
    return unsealed("directed", tmp_path / "model")


# ---------------------------------------------------------------- files that lie

BAD_SETTINGS = {
    "format": (4, "format 4"),
    "observation_size": (True, "observation_size"),
    "action_size": (-1, "action_size"),
    "beta": ("0.1", "beta"),
    "discount": (1.5, "discount"),
    "conditioning": ({"kind": "../../etc/passwd"}, "conditioning"),
    "networks": ({"policy": 3, "nose": {}}, "networks"),
    "weights": ("/etc/passwd", "unknown field `weights`"),
    "algo": (["iel"], "algo"),
}
BAD_NETWORKS = {
    "sizes": ([5, 16, 10**9, 8], "sizes"),
    "inputs": (["observation", "eyes"], "inputs"),
    "norm": ("yes", "norm"),
    "heads": (0, "heads"),
    "colour": (1, "unknown field `colour`"),
}


@pytest.mark.parametrize("field", BAD_SETTINGS)
def test_config_that_lies_is_refused(saved, field):
    value, said = BAD_SETTINGS[field]
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(RunError, match=said):
        load_model(saved)


@pytest.mark.parametrize("field", BAD_NETWORKS)
def test_networks_that_lie_are_refused(saved, field):
    value, said = BAD_NETWORKS[field]
    config = json.loads((saved / "config.json").read_text())
    config["networks"]["embedding"][field] = value
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match=said):
        load_model(saved)


def test_parts_that_do_not_belong_together_are_refused(saved, tmp_path):
    config = json.loads((saved / "config.json").read_text())
    for change, said in (
        ({"conditioning": {"kind": "goal"}}, "commands of 8"),
        ({"conditioning": {"kind": "subgoal"}}, "subgoals"),
        ({"conditioning": {"kind": "waypoint", "columns": [0, 9], "scale": [1, 1]}}, "columns"),
        ({"conditioning": {"kind": "waypoint", "columns": [0, 1], "scale": [1]}}, "scale"),
        ({"conditioning": {"kind": "waypoint", "columns": [0, 1], "scale": [0.0, 2.0]}}, "scale"),
        ({"discount": 0.0}, "discount"),
    ):
        (saved / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(RunError, match=said):
            load_model(saved)
    del config["discount"]
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match="lacks discount"):
        load_model(saved)


@pytest.mark.parametrize(
    "kind, network, change, said",
    [
        ("contrast", "value", {"logit": False}, "lacks discount"),
        ("contrast", "value", {"logit": 1}, r"networks\.value\.logit: expected `bool`"),
        ("contrast", "goal_features", {"inputs": ["observation"]}, "goal_features go with a value"),
        ("contrast", "actor", None, "no policy takes the goal"),
        ("contrast", "goal_features", None, "differ in size"),
        ("hierarchy", "representation", None, "takes 9 numbers"),
        ("hierarchy", "value", {"inputs": ["observation", "observation"]}, "takes 9 numbers"),
        ("hierarchy", "value", None, "not what the model can give it"),
        ("hierarchy", "high", {"inputs": ["observation", "representation"]}, "takes 10 numbers"),
        ("goal-value", "value", {"logit": True}, "counts no steps"),
        ("measure", "high", None, "needs the network high"),
        ("measure", "forward", None, "a measure and the network forward"),
        ("measure", "forward", {"inputs": ["observation", "command", "action"]}, "forward must take observation"),
        ("measure-waypoint", "high", None, "forward and high"),
        ("measure-waypoint", "actor", None, "actor must take observation"),
        ("measure-waypoint", "actor", {"squash": False}, "for 3 actions"),
    ],
)
def test_a_value_that_lacks_its_parts_is_refused(kind, network, change, said, tmp_path):
    saved = unsealed(kind, tmp_path / "model")
    config = json.loads((saved / "config.json").read_text())
    if change is None:
        del config["networks"][network]
        arrays = load_arrays(saved / "model.safetensors")
        save_arrays(saved / "model.safetensors", {k: v for k, v in arrays.items() if not k.startswith(network)})
    else:
        config["networks"][network] |= change
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunError, match=said):
        load_model(saved)


def test_weights_that_lie_are_refused(saved):
    source = saved / "model.safetensors"
    arrays = load_arrays(source)
    name = "policy.layers.1.kernel"
    cases = {
        "lacks the tensor": {key: array for key, array in arrays.items() if key != name},
        r"but float32\[16, 16\] is expected": {**arrays, name: arrays[name][:-1]},
        r"float64\[16, 16\]": {**arrays, name: arrays[name].astype(np.float64)},
        "not finite": {**arrays, name: np.where(np.eye(16) > 0, np.nan, arrays[name]).astype(np.float32)},
        "unexpected tensor": {**arrays, "../evil": arrays[name]},
    }
    for said, changed in cases.items():
        save_arrays(source, changed)
        with pytest.raises(RunError, match=said):
            load_model(saved)
    source.write_bytes(source.read_bytes()[:-10])
    with pytest.raises(RunError):
        load_model(saved)
    source.unlink()
    with pytest.raises(RunError):
        load_model(saved)


def test_planning_states_of_another_model_are_refused(saved):
    nodes = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
    good = {"observations": nodes, "embeddings": load_model(saved).embed(nodes)}
    cases = {
        "another model": {**good, "embeddings": good["embeddings"] + np.float32(0.1)},
        "is expected": {**good, "embeddings": good["embeddings"][:-1]},
        "not finite": {**good, "observations": np.full_like(nodes, np.nan)},
        "lacks the tensor observations": {"states": nodes},
        "float32": {**good, "observations": nodes.astype(np.float64)},
    }
    for said, arrays in cases.items():
        save_arrays(saved / "planner.safetensors", arrays)
        with pytest.raises(RunError, match=said):
            load_model(saved)
    save_arrays(saved / "planner.safetensors", good)
    assert len(load_model(saved).planner("asym-graph").states) == 20


def test_manifest_is_believed_only_about_its_own_directory(saved):
    facts = {name: structs.asdict(file_facts(saved / name)) for name in ("config.json", "model.safetensors")}

    def write(files, version=1):
        """A manifest that vouches for itself, whatever it says."""
        content = {"format": version, "files": files}
        write_json(saved / "manifest.json", {**content, "sha256": _digest(content)})

    write(facts)
    load_model(saved)
    for said, files, version in [
        ("not the name of a file", {**facts, "../../secret": facts["config.json"]}, 1),
        ("not listed", {"config.json": facts["config.json"]}, 1),
        ("damaged", {**facts, "config.json": {**facts["config.json"], "sha256": "0" * 64}}, 1),
        ("has format 9", facts, 9),
        ("files", [], 1),
    ]:
        write(files, version)
        with pytest.raises(RunError, match=said):
            load_model(saved)


def test_a_listed_part_that_is_gone_is_missed(saved):
    """An incomplete copy must not plan without its states, or warn of nothing outside of the data."""
    nodes = np.random.default_rng(0).standard_normal((20, 5)).astype(np.float32)
    save_arrays(saved / "planner.safetensors", {"observations": nodes})
    seal(saved, 1, {})
    load_model(saved)
    (saved / "planner.safetensors").unlink()
    with pytest.raises(RunError, match=r"planner\.safetensors does not exist"):
        load_model(saved)


def test_a_model_that_was_written_with_a_manifest_needs_it(saved, tmp_path):
    save_model(made("directed"), tmp_path / "new")
    load_model(tmp_path / "new")
    (tmp_path / "new" / "manifest.json").unlink()
    with pytest.raises(RunError, match=r"manifest\.json is missing"):
        load_model(tmp_path / "new")


def test_a_flipped_bit_is_found(saved):
    seal(saved, 1, {})
    generator = np.random.default_rng(0)
    for name in ("config.json", "model.safetensors", "manifest.json"):
        whole = (saved / name).read_bytes()
        for offset in generator.integers(0, len(whole), 20):
            broken = bytearray(whole)
            broken[offset] ^= 1 << int(generator.integers(8))
            (saved / name).write_bytes(broken)
            with pytest.raises(IELError):
                load_model(saved)
        (saved / name).write_bytes(whole)
    load_model(saved)


# ---------------------------------------------------------------- what earlier versions wrote


def test_there_are_golden_files():
    assert len(GOLDEN) >= 7


@pytest.mark.parametrize("directory", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_golden_files_of_earlier_versions_still_give_the_same_numbers(directory, tmp_path):
    expected = load_arrays(directory / "expected.safetensors")
    # A directory without the extra file is exactly what that version wrote.
    shutil.copytree(directory, tmp_path / "model", ignore=shutil.ignore_patterns("expected.safetensors"))
    model = load_model(tmp_path / "model")
    states, goals = expected["observations"], expected["goals"]
    np.testing.assert_allclose(model.embed(states), expected["embed"], atol=1e-5)
    np.testing.assert_allclose(model.act(states, expected["commands"]), expected["act"], atol=1e-5)
    assert (model.metric is not None) == ("cost" in expected)
    if model.metric is not None:
        ours = np.maximum(expected["cost"], 1e-3)
        np.testing.assert_allclose(model.cost(states, goals, goals), ours, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(model.steps(states, goals), expected["steps"], rtol=1e-4, atol=1.1e-3)
    if isinstance(model.conditioning, Waypoint):
        assert model.conditioning == Waypoint((0, 1), (1.5, 2.0))
