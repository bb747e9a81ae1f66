"""`iel push` and `iel pull`: the result is the intended agent, or nothing is written."""

import json
import shutil
import socket
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

import iel
from benchmarks.runtime import random_model
from iel.cli import run as iel_command
from iel.errors import ConfigError, RunError
from iel.evaluation.result import Episodes, Result
from iel.export import export_run
from iel.files import seal
from iel.model import load_model
from iel.model.archive import MANIFEST_FORMAT, pack
from iel.serving.engine import open_served
from iel.sharing import pull, push

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content:DeprecationWarning")  # of the Hub's client
STATES = np.random.default_rng(0).standard_normal((40, 5)).astype(np.float32)


@pytest.fixture(scope="module")
def robot(tmp_path_factory) -> Path:
    """A small agent."""
    agent = iel.Agent(random_model("directed", (16, 16), 5, 3, 8), STATES, nodes=30)
    return agent.save(tmp_path_factory.mktemp("agents") / "robot")


@pytest.fixture(scope="module")
def packed(robot) -> Path:
    push(robot, str(robot.with_suffix(".zip")), progress=False)
    return robot.with_suffix(".zip")


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture
def location(tmp_path):
    """An empty directory, in which nothing is left by what is refused."""
    (tmp_path / "location").mkdir()
    return tmp_path / "location"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def web(tmp_path):
    """(a directory, the address at which a web server shows it)."""
    root = tmp_path / "web"
    root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield root, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


# ------------------------------------------------------------------------------------------------------------ one file


def test_an_archive_is_the_directory(robot, packed, tmp_path):
    here, there = iel.load_agent(robot), iel.load_agent(packed)
    assert np.array_equal(here.act(STATES, STATES[7]), there.act(STATES, STATES[7]))
    assert np.array_equal(load_model(packed).embed(STATES), here.model.embed(STATES))
    assert np.array_equal(open_served(packed)[0].model.embed(STATES), here.model.embed(STATES))
    pull(packed, tmp_path / "again", progress=False)
    assert content(tmp_path / "again") == content(robot)
    push(tmp_path / "again", str(tmp_path / "again.zip"), progress=False)
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes(), "the same agent, the same bytes"
    with zipfile.ZipFile(packed) as archive:
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}


def test_an_archive_of_another_program_is_read(robot, location):
    """A folder inside, compressed: what file managers make."""
    shutil.make_archive(str(location / "made"), "zip", robot.parent, robot.name)
    assert np.array_equal(
        iel.load_agent(location / "made.zip").model.embed(STATES), iel.load_agent(robot).model.embed(STATES)
    )


def lying(robot: Path, out: Path, change) -> None:
    """An archive of the agent whose entries were changed."""
    entries = content(robot)
    change(entries)
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)


LIES = {
    "a name that leads elsewhere": (lambda e: e.update({"../evil": b"x"}), "does not list"),
    "an extra file": (lambda e: e.update({"extra.py": b"x"}), "does not list"),
    "a file that is missing": (lambda e: e.pop("model.safetensors"), "lacks model.safetensors"),
    "no manifest": (lambda e: e.pop("manifest.json"), "lacks manifest.json"),
    "a file that grew": (lambda e: e.update({"config.json": e["config.json"] + b" "}), "longer than"),
    "a bomb": (lambda e: e.update({"config.json": bytes(50 << 20)}), "longer than"),
    "another content": (lambda e: e.update({"config.json": e["config.json"].replace(b"5", b"6")}), "damaged"),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_archive_that_lies_is_refused(robot, location, lie):
    change, said = LIES[lie]
    lying(robot, location / "a.zip", change)
    for use in (iel.load_agent, load_model, partial(pull, out=location / "out", progress=False)):
        with pytest.raises(RunError, match=said):
            use(location / "a.zip")
    assert names(location) == ["a.zip"] and not (location.parent / "evil").exists()


def test_a_manifest_cannot_name_what_is_outside(robot, location):
    """A manifest whose own sha256 is right, which lists a path."""
    shutil.copytree(robot, location / "bad")
    seal(location / "bad", MANIFEST_FORMAT, {})
    manifest = json.loads((location / "bad" / "manifest.json").read_text())
    manifest["files"]["../../evil"] = {"sha256": "0" * 64, "size": 1}
    from iel.files import _digest, _json_text

    stated = {name: value for name, value in manifest.items() if name != "sha256"}
    (location / "bad" / "manifest.json").write_text(_json_text({**stated, "sha256": _digest(stated)}))
    lying(location / "bad", location / "a.zip", lambda e: e.update({"../../evil": b"x"}))
    for source in (location / "bad", location / "a.zip"):
        with pytest.raises(RunError, match="not the name of a file"):
            pull(source, location / "out", progress=False)
    assert not (location / "out").exists()


def test_every_flipped_bit_of_an_archive_is_refused(packed, location):
    """One bit of each hundredth byte, and of every byte of the directory at its end: refused, or the same agent."""
    good, generator = packed.read_bytes(), np.random.default_rng(0)
    expected, same = iel.load_agent(packed).model.embed(STATES), 0
    positions = [*range(0, len(good), max(1, len(good) // 100)), *range(len(good) - 60, len(good))]
    for number in positions:
        bad = bytearray(good)
        bad[number] ^= 1 << int(generator.integers(8))
        (location / "bad.zip").write_bytes(bad)
        try:
            pull(location / "bad.zip", location / "out", progress=False)
        except RunError:
            assert not (location / "out").exists()
            continue
        # Times, permissions and the like of entries are nothing that is read.
        assert np.array_equal(iel.load_agent(location / "out").model.embed(STATES), expected)
        same += 1
        shutil.rmtree(location / "out")
    assert names(location) == ["bad.zip"] and same < len(positions) / 4


# ------------------------------------------------------------------------------------------- directories, web servers


def test_directories_are_copied_whole_and_never_overwritten(robot, location):
    facts = push(robot, str(location / "copy"), progress=False)
    assert content(location / "copy") == content(robot) and facts["files"].keys() == content(robot).keys()
    with pytest.raises(RunError, match="already exists"):
        pull(robot, location / "copy", progress=False)
    with pytest.raises(RunError, match="another agent"):
        pull(robot, location / "other", sha256="0" * 64, progress=False)
    pull(robot, location / "meant", sha256=facts["sha256"], progress=False)
    assert names(location) == ["copy", "meant"]


def test_a_flipped_bit_is_refused_and_leaves_nothing(robot, web, location):
    root, url = web
    shutil.copytree(robot, root / "robot")
    for name in sorted(content(robot)):
        file = root / "robot" / name
        good = file.read_bytes()
        file.write_bytes(good[:-3] + bytes([good[-3] ^ 1]) + good[-2:])
        for source in (root / "robot", f"{url}/robot"):
            for out in ("out", "out.zip"):
                with pytest.raises(RunError, match=r"damaged|not JSON"):
                    pull(source, location / out, progress=False)
        file.write_bytes(good)
    assert not names(location)


def test_web_servers(robot, packed, web, location):
    root, url = web
    shutil.copytree(robot, root / "robot")
    shutil.copy(packed, root / "robot.zip")
    for number, source in enumerate((f"{url}/robot", f"{url}/robot/", f"{url}/robot.zip")):
        pull(source, location / str(number), progress=False)
        assert content(location / str(number)) == content(robot)
    pull(f"{url}/robot.zip", location / "again.zip", progress=False)
    assert (location / "again.zip").read_bytes() == packed.read_bytes()
    with pytest.raises(ConfigError, match="cannot be pushed to"):
        push(robot, f"{url}/robot")
    with pytest.raises(RunError, match=r"answers 404"):
        pull(f"{url}/none", location / "none", progress=False)


def test_a_server_that_hangs_up_goes_elsewhere_or_sends_for_ever(robot, packed, location, tmp_path):
    """It promises more than it sends; redirects to a file of this machine; sends more than the manifest says."""
    served = content(robot)

    class Bad(Quiet):
        def do_GET(self):
            name = self.path.split("/")[-1]
            if self.path.startswith("/elsewhere"):
                self.send_response(302)
                self.send_header("Location", f"file://{robot}/{name}")
                self.end_headers()
            elif self.path.startswith("/short"):
                self.send_response(200)
                self.send_header("Content-Length", str(len(served[name])))
                self.end_headers()
                self.wfile.write(served[name] if name == "manifest.json" else served[name][:-9])
            else:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(served[name])
                if name != "manifest.json":
                    for _ in range(2000):  # 2 GB, if all are read
                        self.wfile.write(bytes(1 << 20))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bad)
    server.handle_error = lambda *_: None
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    for path, said in {"elsewhere": "not allowed", "short": "damaged", "endless": "longer than"}.items():
        with pytest.raises(RunError, match=said):
            pull(f"{url}/{path}", location / "out", progress=False)
    server.shutdown()
    server.server_close()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(RunError, match="check the address and the connection"):
            pull(f"http://127.0.0.1:{free.getsockname()[1]}/robot", location / "out", progress=False)
    assert not names(location)


def test_what_is_not_an_agent_says_so(location, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"algo": "iel"}')
    for use in (partial(push, destination=str(location / "out")), partial(pull, out=location / "out")):
        with pytest.raises(RunError, match="is not an agent; give what `iel export RUN`"):
            use(tmp_path / "run")
        with pytest.raises(RunError, match="does not exist"):
            use(tmp_path / "none")
    assert not names(location)


# ------------------------------------------------------------------------------------------------------------- the Hub


@pytest.fixture
def hub(monkeypatch):
    """A stand-in of the Hub on loopback, and the real client; large files by HTTP instead of its storage protocol."""
    constants = pytest.importorskip("huggingface_hub.constants")
    from hub_stand_in import TOKEN, Hub

    with Hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield running


def test_the_hub_gives_back_what_it_got(robot, hub, location, capsys):
    assert iel_command(["push", str(robot), "hf:me/robot", "--private", "--json"]) == 0
    pushed = json.loads(capsys.readouterr().out)
    assert {**hub.files("me/robot")} == {".gitattributes": b"", **content(robot)} and hub.private == {"me/robot"}
    assert hub.large, "weights travel as large files"
    words = ["pull", "hf:me/robot", str(location / "robot"), "--sha256", pushed["sha256"], "--json"]
    assert iel_command(words) == 0
    assert json.loads(capsys.readouterr().out)["files"] == pushed["files"]
    assert content(location / "robot") == content(robot), "and nothing else, such as the client's notes"


def test_revisions_of_the_hub(robot, hub, location):
    other = iel.Agent(random_model("directed", (16, 16), 5, 3, 8, 1), planner="direct").save(location / "other")
    first = push(robot, "hf:me/robot", progress=False)
    push(other, "hf:me/robot", progress=False)
    assert "planner.safetensors" not in hub.files("me/robot"), "what the agent before had is gone"
    push(robot, "hf:me/robot@v2", progress=False)
    for revision, expected in {first["revision"]: robot, "main": other, "v2": robot}.items():
        pull(f"hf:me/robot@{revision}", location / revision, progress=False)
        assert content(location / revision) == content(expected)


def test_what_the_hub_refuses(robot, hub, location, monkeypatch):
    push(robot, "hf:me/robot", private=True, progress=False)
    files = hub.files("me/robot")
    files["model.safetensors"] = files["model.safetensors"][:-1] + b"\1"
    with pytest.raises(RunError, match="damaged"):
        pull("hf:me/robot", location / "out", progress=False)
    files["model.safetensors"] += bytes(1000)
    with pytest.raises(RunError, match=r"bytes instead of"):
        pull("hf:me/robot", location / "out", progress=False)
    assert not any("GET" in line and "model.safetensors" in line for line in hub.requested[-3:]), (
        "it was not even fetched"
    )
    del files["manifest.json"]
    with pytest.raises(RunError, match="not an agent of iel"):
        pull("hf:me/robot", location / "out", progress=False)
    with pytest.raises(RunError, match="404"):
        pull("hf:me/robot@none", location / "out", progress=False)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "y" * 34)
    for use in (partial(push, robot), partial(pull, out=location / "out")):
        with pytest.raises(RunError, match=r"401.*hf auth login"):
            use("hf:me/robot", progress=False)
    with pytest.raises(ConfigError, match="hf:owner/name"):
        pull("hf:robot", location / "out")
    assert not names(location)


def test_without_the_client_the_extra_is_named(robot, monkeypatch, location):

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"\[hub\]"):
        pull("hf:me/robot", location / "out")


def test_a_full_disk_leaves_nothing(robot, location, monkeypatch):
    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("iel.sharing._checked", full_disk)
    with pytest.raises(RunError, match="No space left"):
        pull(robot, location / "out", progress=False)
    assert not names(location)


def test_packing_takes_what_the_manifest_lists(robot, location):
    shutil.copytree(robot, location / "robot")
    (location / "robot" / "notes.txt").write_text("mine")
    pack(location / "robot", location / "robot.zip")
    with zipfile.ZipFile(location / "robot.zip") as archive:
        assert set(archive.namelist()) == content(robot).keys()


# ------------------------------------------------------------------------------------------------------------ the card


SIGNALS = {
    "observations": ("x", "y", "heading"),
    "actions": ("v", "w"),
    "units": {"x": "m", "y": "m", "v": "m/s"},
    "action_low": (0.0, -1.5),
    "action_high": (0.6, 1.5),
    "rate": 10.0,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on logs whose columns have names, evaluated once."""
    generator = np.random.default_rng(0)
    moves = generator.uniform(-1, 1, (5, 40, 2))
    states = [np.concatenate([np.zeros((1, 3)), np.pad(each.cumsum(0), ((0, 0), (0, 1)))]) for each in moves]
    data = iel.Trajectories.from_episodes(zip(states, moves, strict=True), "office").described(**SIGNALS)
    out = tmp_path_factory.mktemp("run") / "a"
    iel.train(data, iel.GCBC.preset("smoke", steps=20, hidden=(8,), batch_size=8), out=out, progress=False)
    run = iel.open_run(out)
    protocol = {"tasks": 1, "episodes_per_task": 4, "max_steps": 100, "seed": 0}
    for step, name in ((run.config["step"], "direct"), (3, "earlier")):
        episodes = Episodes(("office",) * 4, (True, True, True, False), (10, 20, 30, 100))
        result = Result("office", "gcbc", name, 0, protocol, episodes, 1.0, 0.1, step)
        result.write(run.folder("evaluations") / f"{name}.json")
    return run


def test_the_card_is_one_that_the_hub_reads_and_people_too(trained, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    card = export_run(trained, tmp_path / "out", onnx=False, licence="MIT")
    text = (tmp_path / "out" / "README.md").read_text()
    facts = hub.ModelCard(text).data
    assert (facts.license, facts.library_name, facts.pipeline_tag) == ("mit", "iel", "reinforcement-learning")
    (result,) = facts.eval_results  # what was measured of an earlier step is not of this agent
    assert (result.dataset_name, result.metric_type, result.metric_value) == ("office", "success_rate", 0.75)
    for row in (
        "| 0 | x | m |",
        "| 2 | heading |  |",
        "| 0 | v | m/s | 0.0 | 0.6 |",
        "at 10 Hz",
        "| office | direct | 75.0% |",
        "1 x 4 | 100 |",
        'act(observation, units="robot")',
        "200 transitions",
        '"hidden": [',
        "heads straight for it",
        "\nMIT.\n",
    ):
        assert row in text, row
    assert str(trained.path) not in text + json.dumps(card), "nothing says where it was made"


def test_a_saved_agent_has_a_card_that_saving_again_keeps(trained, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    agent = iel.Agent(trained.model, planner="direct")
    text = (agent.save(tmp_path / "bare") / "README.md").read_text()
    assert "Data: not recorded." in text and "Not stated" in text and "It has not been evaluated." in text
    assert hub.ModelCard(text).data.license == "other"
    export_run(trained, tmp_path / "out", onnx=False, licence="a licence: of 'our' own # really")
    again = iel.load_agent(tmp_path / "out").save(tmp_path / "again")
    for directory in (tmp_path / "out", again):
        facts = hub.ModelCard((directory / "README.md").read_text()).data
        assert facts.license_name == "a licence: of 'our' own # really" and facts.eval_results[0].metric_value == 0.75


def test_what_is_fitted_says_what_it_was_fitted_to(tmp_path):
    moves = np.random.default_rng(0).uniform(-1, 1, (5, 40, 2))
    data = iel.Trajectories.from_episodes([(np.concatenate([np.ones((1, 2)), a.cumsum(0)]), a) for a in moves], "walks")
    method = iel.GCBC.preset("smoke", steps=20, hidden=(8,), batch_size=8)
    text = (iel.fit(data, method, progress=False).save(tmp_path / "a") / "README.md").read_text()
    assert f"Data: walks, 5 episodes, 200 transitions, fingerprint `{data.fingerprint}`" in text and "`gcbc`" in text
