"""Downloads: a server that hangs up, refuses or lies never leaves a file under the final name."""

import functools
import http.server
import sys
import threading

import numpy as np
import pytest

from iel.data import Trajectories, load
from iel.data.download import download, has_source
from iel.errors import DataError

NAME = "humanoidmaze-medium-stitch-v0"


@pytest.fixture
def original(tmp_path) -> dict[str, bytes]:
    """The bytes of the two files that the server has."""
    rng = np.random.default_rng(0)
    content = {}
    for split, seed in (("", 0), ("-val", 1)):
        episodes = [(rng.normal(size=(40, 5)) + seed, rng.uniform(-1, 1, (39, 2))) for _ in range(20)]
        Trajectories.from_episodes(episodes).save(tmp_path / "original.npz")
        content[f"{NAME}{split}.npz"] = (tmp_path / "original.npz").read_bytes()
    return content


class Server(http.server.BaseHTTPRequestHandler):
    """Announces the whole length, and sends what `mode` says."""

    def __init__(self, *arguments, content, mode):
        self.content, self.mode = content, mode
        super().__init__(*arguments)

    def do_GET(self):
        body = self.content[self.path.rsplit("/", 1)[-1]]
        if self.mode == "missing":
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = {"cut": len(body) // 2, "cut at the end": len(body) - 1, "cut validation": len(body)}.get(
            self.mode, len(body)
        )
        if self.mode == "cut validation" and "-val" in self.path:
            cut = len(body) // 3
        self.wfile.write(b"<html>sorry</html>" if self.mode == "page" else self.flipped(body)[:cut])

    def flipped(self, body: bytes) -> bytes:
        changed = bytearray(body)
        if self.mode == "flipped":
            changed[len(body) // 2] ^= 1
        return bytes(changed)

    def log_message(self, *_):
        pass


@pytest.fixture
def serve(original, monkeypatch):
    """Start OGBench's real downloader against a server on this machine."""
    import ogbench.utils

    servers = []

    def start(mode: str) -> None:
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Server, content=original, mode=mode)
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        monkeypatch.setattr(ogbench.utils, "DATASET_URL", f"http://127.0.0.1:{server.server_port}")

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("mode", ["cut", "cut at the end", "cut validation", "flipped", "page", "missing"])
def test_a_bad_server_leaves_nothing(tmp_path, serve, mode, monkeypatch):
    """OGBench's own downloader takes an early end for the end; we do not."""
    serve(mode)
    monkeypatch.setenv("IEL_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match=rf"{NAME}' (is not whole and was removed|could not be downloaded)") as caught:
        load(NAME)
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_good_server(tmp_path, serve, original, monkeypatch):
    serve("whole")
    monkeypatch.setenv("IEL_DATA", str(tmp_path / "data"))
    data = load(NAME)
    assert (len(data), data.name) == (20, NAME)
    assert {path.name: path.read_bytes() for path in (tmp_path / "data").iterdir()} == original
    assert load(NAME, split="val", make=False).fingerprint != data.fingerprint  # found now, not fetched again


def test_no_connection_is_one_sentence(tmp_path, monkeypatch):
    def fetch(name, directory):
        (directory / f"{name}.npz.tmp").write_bytes(b"half")
        raise OSError("Temporary failure in name resolution\nsecond line")

    monkeypatch.setattr("iel.data.download.fetch_ogbench", fetch)
    with pytest.raises(DataError, match=rf"could not be downloaded \(Temporary .*\); .* copy its file to {tmp_path}"):
        download(NAME, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_minari_succeeds_whole_or_not_at_all(tmp_path, monkeypatch):
    import h5py

    def fetch(name, directory, cut=0):
        location = directory / "D4RL/door/human-v2/data"
        location.mkdir(parents=True)
        with h5py.File(location / "main_data.hdf5", "w") as file:
            file["episode_0/observations"], file["episode_0/actions"] = (
                np.random.default_rng(0).normal(size=(30, 4)),
                np.zeros((29, 2)),
            )
        content = (location / "main_data.hdf5").read_bytes()
        (location / "main_data.hdf5").write_bytes(content[: len(content) - cut])

    monkeypatch.setattr("iel.data.download.fetch_minari", functools.partial(fetch, cut=100))
    with pytest.raises(DataError, match="is not whole"):
        download("D4RL/door/human-v2", tmp_path)
    assert not (tmp_path / "minari").exists()
    monkeypatch.setattr("iel.data.download.fetch_minari", fetch)
    files = download("D4RL/door/human-v2", tmp_path)
    assert files["train"] == tmp_path / "minari/D4RL/door/human-v2" and len(load(files["train"])) == 1
    monkeypatch.setattr("iel.data.download.fetch_minari", lambda name, directory: None)
    with pytest.raises(DataError, match=r"brought no main_data\.hdf5"):
        download("D4RL/door/expert-v2", tmp_path)


def test_the_package_that_is_missing_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(DataError, match=r"pip install '\.\[minari\]'"):
        download("D4RL/door/human-v2", tmp_path)


def test_which_names_a_source_offers():
    for name in ("antmaze-giant-navigate-v0", "puzzle-4x4-play-v0", "scene-noisy-v0", "D4RL/antmaze/umaze-v1"):
        assert has_source(name), name
    for name in ("antmaze", "kitchen-partial-v0", "../secret-v0", "D4RL/../../x-v1", "antmaze-large-diverse-v2"):
        assert not has_source(name), name
