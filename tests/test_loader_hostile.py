"""Files that lie: refused within a second and 50 MB, in one sentence, and no other file is ever read."""

import json
import os
import re
import struct
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

from arrays import read_hdf5
from iel.data.npz import read_npz
from iel.errors import ConfigError, DataError, IELError, RunError
from iel.loader import kind_of, read_json, read_safetensors, read_toml
from iel.model.tensors import Tensors


def table(rows: int = 50) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 5)).astype(np.float32)


# ------------------------------------------------------------------------------------------------- things that lie


def safetensors_bytes(header: object, data: bytes = b"\0" * 24) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(2, 3), offsets=(0, 24)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


SAFETENSORS = {
    "empty": (b"", "not a whole safetensors file"),
    "header of 2^63": (struct.pack("<Q", 2**63) + b"{}", "header too large"),
    "not json": (safetensors_bytes(b"{{{{"), "invalid JSON"),
    "two of a name": (
        safetensors_bytes(f'{{"a": {json.dumps(entry())}, "a": {json.dumps(entry())}}}'.encode()), "'a' is given twice"
    ),
    "a type without numpy's": (safetensors_bytes({"a": entry(dtype="BF16", shape=(4, 3))}), "type 'BF16'"),
    "absurd shape": (safetensors_bytes({"a": entry(shape=(2**40, 2**40))}), "overflow"),
    "empty, and absurd": (safetensors_bytes({"a": entry(shape=(0, 2**62, 9), offsets=(0, 0))}, b""), "too big"),
    "outside": (safetensors_bytes({"a": entry(shape=(20, 3), offsets=(0, 240))}), "not fully covered"),
    "wrong length": (safetensors_bytes({"a": entry(shape=(2, 2))}), "invalid shape"),
    "overlap": (safetensors_bytes({"a": entry(), "b": entry(shape=(1,), offsets=(20, 24))}), "invalid offset"),
}  # fmt: skip


@pytest.mark.parametrize("case", SAFETENSORS)
def test_safetensors_that_lie(tmp_path, case):
    content, message = SAFETENSORS[case]
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(RunError, match=message) as caught:
        read_safetensors(tmp_path / "bad.safetensors")
    assert "bad.safetensors" in str(caught.value)


@pytest.mark.parametrize("number, unbounded", [(np.nan, ("a",)), (np.nan, ()), (np.inf, ())])
def test_numbers_that_are_not_finite_are_refused_in_models(tmp_path, number, unbounded):
    save_file({"a": np.array([1.0, number])}, tmp_path / "a.safetensors")
    assert not np.isfinite(read_safetensors(tmp_path / "a.safetensors")["a"][1])
    with pytest.raises(RunError, match=r"a\.safetensors: a holds a number that is not finite"):
        Tensors(tmp_path / "a.safetensors", unbounded)


JSON = {
    "empty": (b"", "not JSON"),
    "list": (b"[1]", "JSON object"),
    "nan": (b'{"a": NaN}', "NaN is not a JSON number"),
    "infinity": (b'{"a": -Infinity}', "Infinity"),
    "twice": (b'{"a": {"b": 1, "b": 2}}', "'b' is given twice"),
    "deep": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "bytes": (b"\xff\xfe{}", "not JSON"),
    "huge number": (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
    "many": (b'{"a": [' + b"0," * 600_000 + b"0]}", "more than 500,000"),
    "long": (b" " * (17 << 20), "bytes long"),
    "cut": (b'{"a": [1, 2', "not JSON"),
}


@pytest.mark.parametrize("case", JSON)
def test_json_that_lies(tmp_path, case):
    content, message = JSON[case]
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(RunError, match=message) as caught:
        read_json(tmp_path / "bad.json")
    assert "bad.json" in str(caught.value)


def test_toml_that_is_none(tmp_path):
    for content in (b"a = ", b"a = 1\na = 2", b"\xff", b"a = " + b"[" * 100_000, b"#" * 300_000):
        (tmp_path / "bad.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"bad\.toml"):
            read_toml(tmp_path / "bad.toml")


@pytest.mark.parametrize("read", [read_json, read_toml, read_safetensors, read_npz, read_hdf5, kind_of])
def test_pipes_links_devices_and_directories_are_not_opened(tmp_path, read):
    """Opening a pipe would wait for ever, so what a name stands for is looked at first."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "secret").write_text("secret")
    began = time.monotonic()
    for name, message in (("pipe", "not a regular file"), ("link", "symbolic link"), ("none", "does not exist")):
        with pytest.raises(IELError, match=message) as caught:
            read(tmp_path / name)
        assert name in str(caught.value) and "secret" not in str(caught.value)
    with pytest.raises(IELError, match="not a regular file"):
        read(Path("/dev/zero"))
    with pytest.raises(IELError, match="a part of the path is a file"):
        read(tmp_path / "secret" / "inside")
    if read is not kind_of:
        with pytest.raises(IELError, match="is a directory"):
            read(tmp_path)
    assert time.monotonic() - began < 5


# ------------------------------------------------------------------------------------ bombs, in processes of their own


def npy(shape: str, descr: str = "'<f4'", data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", len(text)) + text + data


def zip_of(path: Path, members: dict[str, bytes], compression=zipfile.ZIP_DEFLATED) -> bytes:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path.read_bytes()


def npz_claims_terabytes(path: Path) -> None:
    zip_of(path, {"x.npy": npy("(1000000000000,)", data=b"\0" * 400)})


def npz_lies_in_its_directory(path: Path) -> None:
    content = bytearray(zip_of(path, {"x.npy": npy("(1000000000,)", data=b"\0" * 400)}))
    offset = content.rindex(b"PK\x01\x02")
    content[offset + 24 : offset + 28] = struct.pack("<I", 4_000_000_080)
    path.write_bytes(content)


def npz_of_zeros(path: Path) -> None:
    """An honest archive of 300 MB of zeros in 1.3 MB."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w") as file,
    ):
        file.write(npy("(75000000,)"))
        for _ in range(300):
            file.write(bytes(1_000_000))


def npz_with_a_long_header(path: Path) -> None:
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w") as file,
    ):
        file.write(b"\x93NUMPY\x02\x00" + struct.pack("<I", 100_000_000))
        for _ in range(100):
            file.write(b" " * 1_000_000)


def hdf5_claims_terabytes(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", shape=(10**12,), dtype="f4", chunks=(1024,))


def hdf5_claims_terabytes_in_one_piece(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", shape=(10**12,), dtype="f4")


def hdf5_of_a_few_blocks(path: Path) -> None:
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", shape=(10**9,), dtype="f4", chunks=(1024,), compression="gzip")
        x[:4096] = 1.0


def hdf5_of_one_swelling_block(path: Path) -> None:
    """A block of 4 kB whose deflate stream goes on for 150 MB."""
    import zlib

    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", shape=(1024,), dtype="f4", chunks=(1024,), compression="gzip")
        machine = zlib.compressobj(1)
        stream = b"".join(machine.compress(bytes(1_000_000)) for _ in range(150)) + machine.flush()
        x.id.write_direct_chunk((0,), stream)


def hdf5_of_a_huge_block(path: Path) -> None:
    with h5py.File(path, "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((10**9,))
        plan.set_deflate(1)
        space = h5py.h5s.create_simple((1000,), (h5py.h5s.UNLIMITED,))
        h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F32LE, space, plan).write_direct_chunk((0,), b"abc" * 99)


def safetensors_of_a_long_header(path: Path) -> None:
    path.write_bytes(safetensors_bytes(b"[" * 30_000_000))


def json_of_brackets(path: Path) -> None:
    path.write_bytes(b"[" * (15 << 20))


BOMBS = {
    npz_claims_terabytes: ("read_npz", "does not fit|claims"),
    npz_lies_in_its_directory: ("read_npz", "does not fit its 4,000,000,080 bytes"),
    npz_of_zeros: ("read_npz", "decompression bomb"),
    npz_with_a_long_header: ("read_npz", "its header is damaged, EOF: reading array header"),
    hdf5_claims_terabytes: ("read_hdf5", "claims 4,000,000,000,000 bytes, but none"),
    hdf5_claims_terabytes_in_one_piece: ("read_hdf5", "claims 4,000,000,000,000 bytes"),
    hdf5_of_a_few_blocks: ("read_hdf5", "claims 4,000,000,000 bytes"),
    hdf5_of_one_swelling_block: ("read_hdf5", "damaged block"),
    hdf5_of_a_huge_block: ("read_hdf5", "blocks larger than the array"),
    safetensors_of_a_long_header: ("read_safetensors", "invalid JSON"),
    json_of_brackets: ("read_json", "more than 500,000"),
}

MEASURED = """
    import re, sys, time
    from pathlib import Path
    import arrays, h5py, iel.loader, iel.data.npz
    from iel.errors import IELError

    def memory(kind):
        return int(re.search(kind + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

    for reader, path in zip(sys.argv[1::2], sys.argv[2::2]):
        # The peak since here: getrusage would count what the parent process once had.
        Path("/proc/self/clear_refs").write_text("5")
        before, began = memory("VmRSS"), time.process_time()
        try:
            module = {"read_npz": iel.data.npz, "read_hdf5": arrays}.get(reader, iel.loader)
            getattr(module, reader)(path)
            print("accepted", 0, 0, path)
        except IELError as error:
            print("refused", time.process_time() - began, memory("VmHWM") - before, error)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of memory")
def test_bombs_are_refused_at_once_and_cheaply(tmp_path):
    """Each within a second (of the processor) and 50 MB, measured in another process; the smallest are under 3 kB."""
    arguments = []
    for make, (reader, _) in BOMBS.items():
        make(tmp_path / make.__name__)
        arguments += [reader, str(tmp_path / make.__name__)]
    assert (tmp_path / "hdf5_claims_terabytes").stat().st_size < 3000
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(MEASURED), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 3) for line in done.stdout.splitlines()]
    for (make, (_, message)), (verdict, seconds, megabytes, said) in zip(BOMBS.items(), lines, strict=True):
        assert verdict == "refused", make
        assert float(seconds) < 1.0 and float(megabytes) < 50.0, (make, seconds, megabytes)
        assert any(part in said for part in message.split("|")) and make.__name__ in said, said


# ------------------------------------------------------------------------------------------------ doors to elsewhere


def test_hdf5_never_goes_to_another_file(tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.full(100, 7.0).tobytes())
    with h5py.File(tmp_path / "other.hdf5", "w") as file:
        file["x"] = np.full(100, 7.0)
    with h5py.File(tmp_path / "doors.hdf5", "w") as file:
        file.create_dataset("external", (100,), "f8", external=[(str(secret), 0, 800)])
        layout = h5py.VirtualLayout((100,), "f8")
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.hdf5"), "x", (100,))
        file.create_virtual_dataset("virtual", layout)
        file["link"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "x")
        file["group"] = h5py.ExternalLink(str(tmp_path / "other.hdf5"), "/")
        file["soft"] = h5py.SoftLink("/good")
        file["round"] = h5py.SoftLink("/round")
        file["good"] = np.ones(3)
    for name in ("external", "virtual", "link", "group/x", "soft", "round"):
        with pytest.raises(DataError, match=r"copy the data into the file") as caught:
            read_hdf5(tmp_path / "doors.hdf5", [name])
        assert "doors.hdf5" in str(caught.value)
    assert read_hdf5(tmp_path / "doors.hdf5", ["good"])["good"].tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="copy the data"):
        read_hdf5(tmp_path / "doors.hdf5")


def test_hdf5_filters_and_types_that_are_not_read(tmp_path):
    with h5py.File(tmp_path / "odd.hdf5", "w") as file:
        file.create_dataset("scaled", data=np.arange(100), scaleoffset=4, chunks=(10,))
        file["text"], file["mixed"] = "hello", np.zeros(3, [("a", "f4"), ("b", "i4")])
        file.create_dataset("ragged", (3,), h5py.vlen_dtype(np.float32))
        file["reference"] = file["text"].ref
        file["complex"] = np.zeros(3, complex)
    with pytest.raises(DataError, match="filter that is not read; save it with gzip"):
        read_hdf5(tmp_path / "odd.hdf5", ["scaled"])
    for name in ("text", "mixed", "ragged", "reference", "complex"):
        with pytest.raises(DataError, match=f"'{name}' does not hold plain numbers"):
            read_hdf5(tmp_path / "odd.hdf5", [name])


def test_a_block_that_was_never_written_is_missed(tmp_path):
    """HDF5 itself would hand out zeros."""
    with h5py.File(tmp_path / "holes.hdf5", "w") as file:
        x = file.create_dataset("x", (1000, 5), "f4", chunks=(100, 5), compression="gzip")
        x[:500] = table(500)
    with pytest.raises(DataError, match="lacks blocks"):
        read_hdf5(tmp_path / "holes.hdf5")


class Canary:
    def __reduce__(self):
        return (os.system, ("touch canary",))


def test_no_code_runs(tmp_path, monkeypatch):
    """An object array that would create a file when unpickled."""
    monkeypatch.chdir(tmp_path)
    np.savez("evil.npz", observations=np.array([Canary()], dtype=object), fine=np.ones(3))
    assert read_npz("evil.npz", ["fine"])["fine"].tolist() == [1, 1, 1]
    with pytest.raises(DataError, match="'observations' does not hold plain numbers"):
        read_npz("evil.npz")
    assert not Path("canary").exists()


NPZ = {
    "duplicate": ({"x.npy": npy("(1,)", data=b"\0" * 4), "x": npy("(1,)", data=b"\0" * 4)}, "'x' occurs twice"),
    "negative": ({"x.npy": npy("(-1,)", data=b"\0" * 4)}, "impossible shape"),
    "code in the header": ({"x.npy": npy("(__import__('os').getpid(),)")}, "plain numbers"),
    "call in the header": ({"x.npy": npy("(int(5),)")}, "plain numbers"),
    "unknown type": ({"x.npy": npy("(1,)", descr="'<q99'")}, "plain numbers"),
    "text": ({"x.npy": npy("(1,)", descr="'<U4'", data=b"\0" * 16)}, "plain numbers"),
    "records": ({"x.npy": npy("(1,)", descr="[('a', '<f4')]", data=b"\0" * 4)}, "plain numbers"),
    "too short": ({"x.npy": npy("(9, 9)", data=b"\0" * 300)}, "does not fit its"),
    "too long": ({"x.npy": npy("(9, 9)", data=b"\0" * 400)}, "does not fit its"),
    "bool as a size": ({"x.npy": npy("(True,)", data=b"\0" * 4)}, "impossible shape"),
    "not an array": ({"x.npy": b"hello"}, "plain numbers"),
    "braces": ({"x.npy": npy("(" * 2000)}, "plain numbers"),
}


@pytest.mark.parametrize("case", NPZ)
def test_npz_that_lies(tmp_path, case):
    members, message = NPZ[case]
    zip_of(tmp_path / "bad.npz", members)
    with pytest.raises(DataError, match=message) as caught:
        read_npz(tmp_path / "bad.npz")
    assert "bad.npz" in str(caught.value)


def test_npz_members_that_overlap_or_hide(tmp_path):
    path = tmp_path / "bad.npz"
    body = npy("(4,)", data=b"\0" * 16)
    content = bytearray(zip_of(path, {"a.npy": body, "b.npy": body}, zipfile.ZIP_STORED))
    second = content.rindex(b"PK\x01\x02")
    content[second + 42 : second + 46] = struct.pack("<I", 0)  # b is where a is
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"overlap|whole zip"):
        read_npz(path)
    content = bytearray(zip_of(path, {"a.npy": body}))
    offset = content.rindex(b"PK\x01\x02")
    content[offset + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="encrypted"):
        read_npz(path)
    zip_of(path, {"a.npy": body}, zipfile.ZIP_LZMA)
    with pytest.raises(DataError, match="unusually"):
        read_npz(path)


# -------------------------------------------------------------------------------------------------------------- fuzz


def originals(directory: Path) -> dict[str, tuple[object, bytes]]:
    x = table(60)
    np.savez_compressed(directory / "a.npz", x=x, flags=x[:, 0] > 0)
    np.savez(directory / "b.npz", x=x)
    save_file({"x": x, "y": x[:3]}, directory / "a.safetensors")
    (directory / "a.json").write_text(json.dumps({"a": [1, 2, {"b": None}], "c": "ü" * 20}))
    (directory / "a.toml").write_text("a = 1\n[b]\nc = 'd'\ne = [1, 2]\n")
    with h5py.File(directory / "a.hdf5", "w") as file:
        file["x"], file["infos/goal"] = x, x
        file.create_dataset("gzip", data=x, compression="gzip")
        file.create_dataset("shuffled", data=x[:, 0] > 0, compression="gzip", shuffle=True)
    readers = {
        "npz": read_npz,
        "safetensors": read_safetensors,
        "json": read_json,
        "toml": read_toml,
        "hdf5": read_hdf5,
    }
    return {path.name: (readers[path.suffix[1:]], path.read_bytes()) for path in sorted(directory.iterdir())}


def damage(content: bytes, rng: np.random.Generator, kind: int) -> bytes:
    """Flipped bits, a cut, overwritten stretches, or noise from beginning to end."""
    if kind == 1:
        return content[: int(rng.integers(len(content)))]
    if kind == 3:
        return content[:8] + rng.bytes(len(content) - 8)
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        offset = int(rng.integers(len(changed)))
        if kind == 0:
            changed[offset] ^= 1 << int(rng.integers(8))
        else:
            length = int(rng.integers(1, 9))
            changed[offset : offset + length] = bytes([int(rng.choice([0, 1, 0x7F, 0x80, 0xFF]))] * length)
    return bytes(changed)


def peak_since(reset: bool = True) -> float:
    """Megabytes: what is in use now (and the peak begins anew), or the peak since then; 0 where it is not known."""
    status, switch = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not switch.exists():
        return 0.0
    if reset:
        switch.write_text("5")
    return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1024


def test_damaged_files_are_read_or_refused_and_nothing_else(tmp_path):
    """900 seeded damages in one process: no other exception, no growth, no cut file accepted."""
    (tmp_path / "good").mkdir()
    files = originals(tmp_path / "good")
    rng, before = np.random.default_rng(7), peak_since()
    refused = dict.fromkeys(files, 0)
    for name, (read, content) in files.items():
        for trial in range(150):
            path = tmp_path / f"bad-{name}"
            changed = damage(content, rng, trial % 4)
            path.write_bytes(changed)
            try:
                read(path)
            except IELError as error:
                refused[name] += 1
                assert "\n" not in str(error) and "bad-" in str(error)
            else:
                cut = trial % 4 == 1 and len(changed) < len(content) and not name.endswith("toml")
                assert not cut, (name, len(changed), len(content))
    assert min(refused.values()) > 37  # every cut file, and most noise
    assert peak_since(reset=False) - before < 100


def test_flipped_bits_in_compressed_arrays_are_noticed(tmp_path):
    """zip and gzip have checksums: no flipped bit in the data may pass."""
    (tmp_path / "good").mkdir()
    x = table(2000)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        stored = file.create_dataset("x", data=x, compression="gzip", chunks=(2000, 5))
        start, length = stored.id.get_chunk_info(0).byte_offset, stored.id.get_chunk_info(0).size
    np.savez(tmp_path / "a.npz", x=x)
    rng = np.random.default_rng(3)
    for name, read, low, high in (("a.hdf5", read_hdf5, start, start + length), ("a.npz", read_npz, 200, x.nbytes)):
        content = (tmp_path / name).read_bytes()
        for _ in range(60):
            changed = bytearray(content)
            changed[int(rng.integers(low, high))] ^= 1 << int(rng.integers(8))
            (tmp_path / name).write_bytes(changed)
            with pytest.raises(DataError, match=r"damaged block|CRC"):
                read(tmp_path / name)
