"""One door for files: nothing else opens them, and what comes in is checked before it is believed."""

import ast
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

import iel
from arrays import read_hdf5
from iel.data.hdf5 import opened_hdf5
from iel.data.npz import opened, read_npz
from iel.errors import ConfigError, DataError, IELError
from iel.loader import memory_budget, read_json, read_safetensors, read_toml

SOURCE = Path(iel.__file__).parent

# ------------------------------------------------------------------------------------------------- the lint rule

FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "torch"}
"""Formats that can hold code: not even the loader reads them."""
LOADER_ONLY = {"h5py", "zipfile", "tomllib", "pyarrow", "rosbags", "mcap"}
READS = {("np", "load"), ("numpy", "load"), ("np", "fromfile"), ("np", "memmap"), ("np", "loadtxt"), ("json", "load")}


def offences(tree: ast.AST) -> list[str]:
    """What a module does that only the loader may do."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            found += [name for name in names if name.split(".")[0] in FORBIDDEN | LOADER_ONLY]
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("safetensors"):
                found += [f"safetensors.{a.name}" for a in node.names if not a.name.startswith(("save", "Safetensor"))]
            found += [name for name in names if isinstance(node, ast.Import) and name.startswith("safetensors")]
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Attribute) and (getattr(function.value, "id", None), function.attr) in READS:
            found.append(ast.unparse(function))
        # json.loads of a string that came from elsewhere is fine; of a file's text it is not.
        if isinstance(function, ast.Attribute) and function.attr == "loads":
            inside = [ast.unparse(n.func) for n in ast.walk(node) if isinstance(n, ast.Call) and n is not node]
            files = [name for name in inside if name.endswith((".read_text", ".read_bytes", ".read"))]
            found += ["loads of a file"] if set(files) - {"sys.stdin.read"} else []
        if any(keyword.arg == "allow_pickle" and getattr(keyword.value, "value", 1) for keyword in node.keywords):
            found.append("allow_pickle")
    return found


def test_only_the_loader_opens_data():
    """Every module is parsed: np.load, h5py, zipfile, tomllib, safetensors and json of files have one module each."""
    wrong = {}
    for path in SOURCE.rglob("*.py"):
        found = offences(ast.parse(path.read_text()))
        if path in (
            SOURCE / "loader.py",
            SOURCE / "model" / "archive.py",
            *(SOURCE / "data" / f"{f}.py" for f in ("npz", "hdf5", "text", "parquet", "store", "bags", "writers")),
        ):
            found = [name for name in found if name.split(".")[0] in FORBIDDEN or name == "allow_pickle"]
        if found:
            wrong[str(path.relative_to(SOURCE))] = found
    assert not wrong


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from torch import load",
        "import yaml",
        "import numpy as np\nnp.load('a')",
        "import json\njson.load(file)",
        "import json\njson.loads(path.read_text())",
        "import h5py",
        "from safetensors.numpy import load_file",
        "import safetensors.numpy",
        "np.savez(f, a, allow_pickle=True)",
    ],
)
def test_the_rule_finds_what_it_should(code):
    assert offences(ast.parse(code))


def test_loading_the_loader_brings_in_no_jax_and_no_hdf5():
    code = "import sys, iel.loader, iel.data; sys.exit(any(m in sys.modules for m in ('jax', 'h5py')))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ----------------------------------------------------------------------------------------------------- good files


def table(rows: int = 50) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32)


def test_hdf5_is_read_as_h5py_reads_it(tmp_path):
    """Every storage we accept: contiguous, blocks that do not divide, gzip, shuffle, compact, bools."""
    x, path = table(1001), tmp_path / "all.hdf5"
    with h5py.File(path, "w") as file:
        file["plain"], file["big_endian"], file["group/deeper/x"] = x, x.astype(">f8"), x
        file.create_dataset("gzip", data=x, compression="gzip")
        file.create_dataset("all", data=x, compression="gzip", shuffle=True, chunks=(100, 3))
        file.create_dataset("odd", data=(x[:, 0] > 0).astype("u1"), chunks=(333,))
        file.create_dataset("bools", data=x[:, 0] > 0, compression="gzip")
        file["half"], file["whole"], file["none"] = x.astype("f2"), (x * 9).astype("i8"), np.zeros((0, 3))
        file.create_dataset("growing", data=x, maxshape=(None, 5), chunks=True)
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_layout(h5py.h5d.COMPACT)
        space = h5py.h5s.create_simple((10, 5))
        compact = h5py.h5d.create(file.id, b"compact", h5py.h5t.IEEE_F32LE, space, plan)
        compact.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(x[:10]))
        file["text"] = "not numbers"
    with h5py.File(path) as file:
        arrays = read_hdf5(path, [*file.keys() - {"text", "group"}, "group/deeper/x"])
        assert len(arrays) == 12
        for name, array in arrays.items():
            assert array.dtype == file[name].dtype and np.array_equal(array, file[name][()]), name
    with opened_hdf5(path) as opened_file:
        found = opened_file.arrays(["text", "gzip", "absent", "group"])
        assert found.keys() == {"text", "gzip"} and found["gzip"].field.shape == (1001, 5)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_is_read_as_numpy_reads_it(tmp_path, save):
    x, path = table(), tmp_path / "x.npz"
    arrays = {"x": x, "fortran": np.asfortranarray(x), "big": x.astype(">f8"), "flags": x[:, 0] > 0, "one": np.array(3)}
    save(path, none=np.zeros((0, 2)), **arrays)
    read = read_npz(path)
    with np.load(path) as archive:
        for name in archive.files:
            assert np.array_equal(read[name], archive[name]) and read[name].dtype == archive[name].dtype
    assert read_npz(path, ["x", "absent"]).keys() == {"x"}
    with opened(path) as archive:
        assert archive.header("fortran").field.shape == x.shape


def test_safetensors_is_read_as_the_library_writes_it(tmp_path):
    arrays = {"a": table(), "b": np.array(2.5), "c": np.arange(3, dtype=np.int8), "d": np.zeros((0, 4), np.float16),
              "e": np.array([True, False])}  # fmt: skip
    save_file(arrays, tmp_path / "a.safetensors", metadata={"made": "here"})
    read = read_safetensors(tmp_path / "a.safetensors")
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert np.array_equal(read[name], array) and read[name].shape == array.shape and read[name].flags.writeable


def test_text_files(tmp_path):
    (tmp_path / "a.json").write_text('{"a": [1, 2.5, null, true], "ä": {}}')
    (tmp_path / "a.toml").write_text("a = 1\n[b]\nc = 'd'\n")
    assert read_json(tmp_path / "a.json") == {"a": [1, 2.5, None, True], "ä": {}}
    assert read_toml(tmp_path / "a.toml") == {"a": 1, "b": {"c": "d"}}


def test_the_memory_budget(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", x=np.zeros(100_000))
    save_file({"x": np.zeros(100_000)}, tmp_path / "a.safetensors")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["x"] = np.zeros(100_000)
    for read, name in ((read_npz, "a.npz"), (read_hdf5, "a.hdf5"), (read_safetensors, "a.safetensors")):
        monkeypatch.setenv("IEL_MEMORY_BUDGET", "1700kB")
        assert len(read(tmp_path / name)) == 1
        monkeypatch.setenv("IEL_MEMORY_BUDGET", "700kB")
        with pytest.raises(IELError, match=r"budget is 0\.00 GB; .*IEL_MEMORY_BUDGET"):
            read(tmp_path / name)
        monkeypatch.setenv("IEL_MEMORY_BUDGET", "1100kB")
        if read is not read_safetensors:  # 0.8 MB as stored and 0.4 MB as the float32 they become
            with pytest.raises(IELError, match="IEL_MEMORY_BUDGET"):
                read(tmp_path / name)
    monkeypatch.setenv("IEL_MEMORY_BUDGET", "500kB")
    assert memory_budget() == 500_000
    with pytest.raises(DataError, match="IEL_MEMORY_BUDGET"):
        read_npz(tmp_path / "a.npz")
    monkeypatch.setenv("IEL_MEMORY_BUDGET", "much")
    with pytest.raises(ConfigError, match="such as 8GB"):
        memory_budget()
    monkeypatch.delenv("IEL_MEMORY_BUDGET")
    assert 100e6 < memory_budget() < 1e15
