"""Third-party directories and failing systems: nothing outside is changed, and every refusal is one sentence."""

import copy
import hashlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_damage import make_run, state

from iel.compare.execute import summary_of
from iel.compare.grid import check_grid
from iel.compare.results import collect_runs
from iel.data import Trajectories, load
from iel.data.store import convert
from iel.errors import ConfigError, DataError, IELError, RunError
from iel.evaluation.result import Episodes, Result
from iel.files import MANIFEST, locked, notice, open_in_place, seal, verify_seal, write_text, writing
from iel.methods import IEL
from iel.model import load_model
from iel.training import open_run
from iel.training.checkpoint import find_checkpoint, prune, saved_steps
from iel.training.loop import check_seeds
from iel.training.run import nothing_left
from iel.training.trackers import CSVTracker, MetricsFacts
from iel.typed import check_settings
from tests.test_cli import call

VICTIM = "what the user would miss\n"


@pytest.fixture
def victim(tmp_path) -> Path:
    path = tmp_path / "victim.txt"
    path.write_text(VICTIM)
    return path


@pytest.fixture
def run(tmp_path) -> Path:
    return make_run(tmp_path / "run")


def iel_command(*arguments: object, **options) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "iel.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


# ------------------------------------------------------------------------------------------------- links that lead out


@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_a_lock_that_is_a_link_is_refused_and_its_target_stored(run, victim, link):
    """A third party's RUN/.lock could truncate any file of the user who resumed it."""
    getattr(run / ".lock", link)(victim)
    with pytest.raises(RunError, match=r"\.lock is .*remove it"), locked(run):
        pass
    assert victim.read_text() == VICTIM


def test_metrics_that_are_a_link_are_not_written_through(run, victim):
    (run / "metrics.csv").symlink_to(victim)
    with pytest.raises(RunError, match=r"metrics\.csv is a symbolic link"):
        CSVTracker(run / "metrics.csv")
    CSVTracker(run / "metrics.csv", 0, MetricsFacts(0, "")).close()  # replaced, not followed
    assert victim.read_text() == VICTIM and not (run / "metrics.csv").is_symlink()


def test_pictures_replace_a_link_instead_of_following_it(run, victim):
    from iel.viz.style import figure

    (run / "plots").mkdir()
    (run / "plots" / "curves.png").symlink_to(victim)
    with figure(run / "plots" / "curves.png") as axes:
        axes[0, 0].plot([0, 1])
    assert victim.read_text() == VICTIM and not (run / "plots" / "curves.png").is_symlink()
    assert (run / "plots" / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["plots", "evaluations", "checkpoints"])
def test_folders_that_are_links_are_refused(tmp_path, run, name):
    shutil.rmtree(run / name, ignore_errors=True)
    (tmp_path / "elsewhere").mkdir()
    (run / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=f"{name} is a symbolic link"):
        open_run(run).folder(name)


def test_a_checkpoint_that_is_a_link_is_skipped_and_can_be_removed(tmp_path, run):
    """It was removed through its link, or not at all ('could not be removed (None)')."""
    root = run / "checkpoints"
    (root / "step_000000040").rename(tmp_path / "elsewhere")
    (root / "step_000000040").symlink_to(tmp_path / "elsewhere")
    resumed = find_checkpoint({0: open_run(run)}, state(0))
    assert resumed is not None and resumed.step == 20
    (root / "step_000000010").symlink_to(tmp_path / "elsewhere")
    prune(root, 1)
    assert list(saved_steps(root)) == [20] and (tmp_path / "elsewhere" / MANIFEST).exists()


def test_files_are_whole_readable_and_keep_their_mode(tmp_path):
    """Weights had mode 0600: another user could not load an export."""
    from iel.serial import save_arrays

    umask = os.umask(0o022)
    try:
        save_arrays(tmp_path / "a.safetensors", {"x": np.ones(3)})
        assert stat.S_IMODE((tmp_path / "a.safetensors").stat().st_mode) == 0o644
        (tmp_path / "secret.txt").touch(0o600)
        write_text(tmp_path / "secret.txt", "new")
        assert stat.S_IMODE((tmp_path / "secret.txt").stat().st_mode) == 0o600
    finally:
        os.umask(umask)
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "secret.txt") as file:
        file.write(b"half")
        _ = 1 / 0
    assert (tmp_path / "secret.txt").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.safetensors", "secret.txt"]


def test_what_was_never_finished_is_not_opened(tmp_path, run):
    """A killed process leaves `.tmp-` names; whole or not, none is a run, a model or data."""
    left = run.rename(run.with_name(".tmp-123-abc"))
    for opened in (open_run, load_model):
        with pytest.raises(RunError, match="never finished"):
            opened(left)
    data = Trajectories.from_episodes([(np.cumsum(np.ones((9, 2)), 0), np.zeros((8, 1)))], trust=True)
    file = data.save(tmp_path / "a.npz")
    convert(file, tmp_path / "store", trust=True)
    for number, made in enumerate((file, tmp_path / "store")):
        with pytest.raises(DataError, match="never finished"):
            load(made.rename(tmp_path / f".tmp-{number}-abc"), trust=True)


# ----------------------------------------------------------------------------------------------------- typed readers


STRANGE = [None, True, -1, 1.5, 1e300, 10**30, "text", "", [], [1], ["a"], {}, {"a": 1}]
FULL = {
    "data": {"name": "maze", "fingerprint": "f" * 64, "episodes": 3, "transitions": 30, "file": None},
    "settings": {"preset": "smoke", "beta": 0.1}, "snapshots": 1, "step": 40,
}  # fmt: skip


def locations(table: dict, prefix: tuple = ()) -> list[tuple]:
    found = []
    for key, value in table.items():
        found += [(*prefix, key), *(locations(value, (*prefix, key)) if isinstance(value, dict) else [])]
    return found


def mutations(table: dict):
    """Every value replaced by each strange one, and every key left out."""
    for location in locations(table):
        for strange in [*STRANGE, ...]:
            changed = copy.deepcopy(table)
            inner = changed
            for key in location[:-1]:
                inner = inner[key]
            if strange is ...:
                del inner[location[-1]]
            else:
                inner[location[-1]] = strange
            yield location, strange, changed


def test_run_configs_of_any_content_are_read_or_refused(tmp_path, capsys):
    """`"beta": "0.1"` or a missing `data` gave a TypeError or KeyError somewhere later."""
    run = make_run(tmp_path / "run", **FULL)
    whole = json.loads((run / "config.json").read_text())
    refused, accepted = 0, []
    for location, strange, changed in mutations(whole):
        (run / "config.json").write_text(json.dumps(changed))
        try:
            opened = open_run(run)
            _ = opened.env, opened.seed, opened.status, opened.algo
            assert isinstance(opened.config.get("data", {}), dict)
        except IELError as error:
            refused += 1
            assert "\n" not in str(error)
        else:
            accepted.append((location, strange))
    assert refused > 120
    assert not [entry for entry in accepted if entry[0] in (("seed",), ("data", "fingerprint")) and entry[1] == -1]
    (run / "config.json").write_text(json.dumps(whole).replace('"beta": 0.1', '"beta": 1e999'))
    with pytest.raises(RunError, match="1e999 is too large"):
        open_run(run)


def test_checkpoints_of_any_content_are_read_or_refused(run, capsys):
    """Sealed again after every change, so that only the content is wrong."""
    directory, stored = run / "checkpoints" / "step_000000040", run / "copy"
    shutil.copytree(directory, stored)
    for name in ("state.json", "config.json", MANIFEST):
        for _, _, changed in list(mutations(json.loads((stored / name).read_text())))[::3]:
            for left in run.glob("checkpoints/*step_000000040"):
                shutil.rmtree(left)
            shutil.copytree(stored, directory)
            (directory / name).write_text(json.dumps(changed, indent=2) + "\n")
            if name != MANIFEST:
                (directory / MANIFEST).unlink()
                seal(directory, 2, {"iel": "0.1.0"})
            else:
                content = {key: value for key, value in changed.items() if key != "sha256"}
                digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
                (directory / MANIFEST).write_text(json.dumps({**content, "sha256": digest}, indent=2) + "\n")
            try:
                found = find_checkpoint({0: open_run(run)}, state(0))
            except IELError as error:
                assert "\n" not in str(error)
            else:
                assert found is not None and found.step in (20, 40)
    capsys.readouterr()


def test_versions_of_a_later_release_are_tolerated(run, capsys):
    """A name in `versions` that this release does not know was a KeyError."""
    directory = run / "checkpoints" / "step_000000040"
    versions = json.loads((directory / MANIFEST).read_text())["versions"]
    (directory / MANIFEST).unlink()
    seal(directory, 2, {**versions, "another package": "9.9"}, novelty={"of": "a later release"})
    resumed = find_checkpoint({0: open_run(run)}, state(0))
    assert resumed is not None and resumed.step == 40 and capsys.readouterr().err == ""


def test_a_seal_notices_what_changed(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    seal(tmp_path, 7, {"iel": "0.1.0"}, data="f")
    assert verify_seal(tmp_path, 7)["data"] == "f"
    with pytest.raises(RunError, match="reads format 8"):
        verify_seal(tmp_path, 8)
    (tmp_path / "b.txt").write_text("c")
    verify_seal(tmp_path, 7, ["a.txt"])
    with pytest.raises(RunError, match=r"b\.txt is damaged"):
        verify_seal(tmp_path, 7)
    with pytest.raises(RunError, match=r"c\.txt is not listed"):
        verify_seal(tmp_path, 7, ["c.txt"])
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    (tmp_path / MANIFEST).write_text(json.dumps({**manifest, "data": "g"}, indent=2) + "\n")
    with pytest.raises(RunError, match="own sha256"):
        verify_seal(tmp_path, 7, [])


@pytest.mark.parametrize(
    "setting",
    [{"beta": float("nan")}, {"beta": float("inf")}, {"learning_rate": float("nan")}, {"batch_size": 10**12},
     {"steps": 1e308}, {"steps": (1,)}, {"hidden": (1.5,)}, {"hidden": 7}, {"seed": 0}],
)  # fmt: skip
def test_settings_no_training_can_have_are_refused(setting):
    with pytest.raises(ConfigError) as caught:
        check_settings(IEL.preset("smoke", **setting))
    assert next(iter(setting)) in str(caught.value)


def test_all_presets_pass():
    for preset in IEL.presets:
        check_settings(IEL.preset(preset))


def test_seeds_no_generator_takes_are_refused():
    """10^20 was an OverflowError inside of numpy."""
    for seeds in ([10**20], [-1], [1.5], [True], [], [1, 1], ["1"]):
        with pytest.raises(ConfigError, match="Seeds must be different whole numbers"):
            check_seeds(seeds)


GRID = {
    "environments": ["pointmaze-medium-navigate-v0"],
    "planners": {"wide": {"planner": "asym-graph", "nodes": 100}},
    "methods": [{"algo": "iel", "planners": ["wide"], "settings": {"preset": "smoke"}}],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"settings": {"beta": float("nan")}}, {"settings": {"beta": float("inf")}}, {"settings": {"steps": 1e308}},
     {"settings": {"steps": [1]}}, {"planners": {"wide": {"planner": "asym-graph", "nodes": -1}}},
     {"planners": {"wide": {"planner": "asym-graph", "nodes": float("nan")}}}, {"seeds": [10**20]},
     {"protocol": {"episodes": 10**20}}, {"data": {"seed": -3}}, {"seeds": [[1]]}],
)  # fmt: skip
def test_grids_with_impossible_numbers_are_refused(change):
    assert check_grid(GRID, "good").cells
    with pytest.raises(ConfigError, match=r"(must be|expected)"):
        check_grid({**GRID, **change}, "bad")


# ---------------------------------------------------------------------------------------------- pipes and the system


def test_a_reader_that_has_seen_enough_is_no_error():
    """`iel --help | head -1` ended in a BrokenPipeError traceback."""
    for words in (["--help"], ["train", "--help"]):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-m", "iel.cli", *words]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=300)
        os.close(writer)
        assert done.stderr == "" and done.returncode == 128 + signal.SIGPIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_is_a_sentence():
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [sys.executable, "-m", "iel.cli", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300
        )
    assert done.returncode == 2 and done.stderr == "iel: The output could not be written (No space left on device).\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "stream", ["both", *(pytest.param(stream, marks=pytest.mark.faults) for stream in ("stderr", "closed"))]
)
def test_training_survives_the_end_of_its_reader(lab, tmp_path, stream):
    """All steps were done and nothing was saved, because a progress line had no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    steps = [sys.executable, "-m", "iel.cli", "train", "--data", str(lab.file), "--out", str(tmp_path / "run"),
             "--algo", "gcbc", "--preset", "smoke", "--steps", "40", "--hidden", "16",
             "--batch-size", "16"]  # fmt: skip
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *steps] if stream == "closed" else steps
    stdout = writer if stream == "both" else subprocess.DEVNULL
    done = subprocess.run(command, stdout=stdout, stderr=None if stream == "closed" else writer, timeout=600)
    os.close(writer)
    assert done.returncode == (128 + signal.SIGPIPE if stream == "both" else 0)
    trained = open_run(tmp_path / "run")
    assert trained.status == "finished" and (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert nothing_left({0: trained})


def test_notices_have_no_need_of_a_reader(monkeypatch):
    class Gone:
        def write(self, text):
            raise BrokenPipeError

        def flush(self):
            raise OSError(5, "Input/output error")

    for stream in (Gone(), None):
        monkeypatch.setattr(sys, "stderr", stream)
        notice("lost")


def test_what_the_system_refuses_is_a_sentence(tmp_path, capsys, monkeypatch):
    """Files where directories should be, unknown homes, names that are not text: each was a traceback."""
    (tmp_path / "file").write_text("")
    odd = os.fsdecode(b"/tmp/\xff\xfe.npz")
    monkeypatch.setenv("IEL_DATA", str(tmp_path / "file" / "data"))
    cases = {
        ("data", "make", "pointmaze-medium-navigate-v0", "--episodes", "2"): "file/data",
        ("data", "check", odd): "does not exist",
        ("data", "info", str(tmp_path / ("a" * 300 + ".npz"))): "too long",
        ("evaluate", str(tmp_path / "file")): "does not exist",
        ("data", "info", "~unknown-user/a.npz"): "needs a home directory",
    }
    for words, message in cases.items():
        code, out, err = call(capsys, *words)
        assert code in (1, 2) and message in out + err, (words, err)


@pytest.mark.slow
def test_data_that_does_not_fit_on_the_disk_is_a_sentence(tmp_path):
    """The largest file this process may write stands for a full disk."""
    words = ["-m", "iel.cli", "data", "make", "pointmaze-medium-navigate-v0", "--episodes", "1", "--out", str(tmp_path)]
    command = ["sh", "-c", 'ulimit -f 4; exec "$@"', "sh", sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "File too large" in done.stderr and not list(tmp_path.glob("*.npz"))


@pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")
def test_what_may_not_be_read_or_written_is_a_sentence(tmp_path):
    """As another user: an unreadable run, an unwritable directory, found before anything long begins."""
    (tmp_path / "closed").mkdir(0o700)
    script = f"""
import os
from pathlib import Path
from iel.errors import RunError
from iel.files import require_writable
from iel.training import open_run
os.setuid(65534)
closed = Path({str(tmp_path / "closed")!r})
for action in (open_run, require_writable, lambda path: require_writable(path / "deeper")):
    try:
        action(closed)
    except RunError as error:
        print(error)
"""
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents[:2]:
        parent.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("may not be") == 3, done.stdout


def test_a_log_is_a_file_of_its_own(tmp_path, victim):
    (tmp_path / "log.txt").symlink_to(victim)
    with pytest.raises(RunError, match="symbolic link"):
        open_in_place(tmp_path / "log.txt")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="not a file of its own"):
        open_in_place(tmp_path / "pipe")
    assert victim.read_text() == VICTIM


# --------------------------------------------------------------------------------------------------------- notices


def test_an_unfinished_run_says_so(tmp_path, capsys):
    run = make_run(tmp_path / "run", status="interrupted", step=40, settings={"preset": "smoke"})
    (run / "model").mkdir()
    with pytest.raises(RunError):  # there is nothing in the model of this test
        _ = open_run(run).model
    assert "is not finished (interrupted, step 40)" in capsys.readouterr().err
    protocol = {"episodes_per_task": 2, "tasks": 1, "seed": 0, "action": "policy mean"}
    episodes = Episodes(("task1", "task1"), (True, False), (9, 9))
    result = Result("log", "gcbc", "direct", 0, protocol, episodes, 1.0, 0.5)
    result.write(open_run(run).folder("evaluations") / "a.json")
    assert collect_runs([run]).unfinished == 1  # which a report shows


def test_a_comparison_with_failed_cells_fails():
    """It exited with 0, so scripts went on."""
    from types import SimpleNamespace

    def task(name: str, state: str) -> SimpleNamespace:
        return SimpleNamespace(cell=SimpleNamespace(name=name), state=state, error=f"{name} broke")

    assert summary_of([task("a", "done"), task("b", "waiting")])["exit_code"] == 0  # type: ignore[list-item]
    summary = summary_of([task("a", "done"), task("b", "failed")])  # type: ignore[list-item]
    assert summary["exit_code"] == 1 and summary["errors"] == {"b": "b broke"}


def test_a_lock_can_be_waited_for(tmp_path):
    """The worker of a comparison that was killed is still saving when the next one comes."""
    script = "import sys, time; from pathlib import Path; from iel.files import locked\n"
    script += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(1.5)"
    holder = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(RunError, match=f"process {holder.pid}"), locked(tmp_path):
        pass
    with locked(tmp_path, patience=30.0):
        assert holder.wait() == 0
