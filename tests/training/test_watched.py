"""Training that is watched: callbacks, the evaluator, trackers, run.toml, and stored programs."""

import json
import sys
import types

import jax
import numpy as np
import pytest

import iel.training.loop as loop
from iel.cli import main
from iel.data import Trajectories
from iel.errors import ConfigError, RunError
from iel.methods import get_method
from iel.policies import Waypoints
from iel.training import Evaluator, Tracker, TrainingProgress, open_run, resume, train
from iel.training.callbacks import Callback
from iel.training.compiled import keep_programs
from iel.training.run import options_of, read_options
from iel.training.trackers import read_metrics
from run_files import latest_checkpoint, sha256

TINY = get_method("gcbc").preset("smoke", steps=40, hidden=(8,), batch_size=8)


@pytest.fixture(scope="module")
def walks() -> Trajectories:
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (5, 40, 2))
    return Trajectories.from_episodes([(np.concatenate([np.ones((1, 2)), a.cumsum(0)]), a) for a in actions], "walks")


@pytest.fixture(autouse=True)
def _short_chunks(monkeypatch):
    monkeypatch.setattr(loop, "CHUNK", 8)


def bits(run) -> tuple[str, str]:
    return sha256(latest_checkpoint(run / "checkpoints") / "state.safetensors"), sha256(run / "model/model.safetensors")


def at(step: int) -> Callback:
    """Ends training at a step."""
    return lambda progress: progress.step >= step


# ---------------------------------------------------------------- callbacks


def test_callbacks_see_every_chunk_and_change_no_bit(walks, tmp_path):
    seen: list[TrainingProgress] = []
    train(walks, TINY, out=tmp_path / "plain", progress=False)
    train(walks, TINY, out=tmp_path / "watched", progress=False, callbacks=[seen.append])
    assert bits(tmp_path / "watched") == bits(tmp_path / "plain")
    assert (tmp_path / "watched/metrics.csv").read_bytes() == (tmp_path / "plain/metrics.csv").read_bytes()
    assert [(each.event, each.since, each.step) for each in seen] == [
        ("start", 0, 0), *(("step", step - 8, step) for step in (8, 16, 24, 32, 40)), ("end", 40, 40)
    ]  # fmt: skip
    curve = read_metrics(tmp_path / "plain/metrics.csv")["train/loss"]
    assert [each.step for each in seen[1:-1]] == curve[0] and seen[0].metrics == seen[-1].metrics == {}
    np.testing.assert_allclose([each.metrics[0]["train/loss"] for each in seen[1:-1]], curve[1], rtol=1e-6)
    assert {each.total for each in seen} == {40} and {each.phase for each in seen} == {"train"}


def test_a_callback_ends_training_at_the_bits_of_that_step(walks, tmp_path):
    stopped = train(walks, TINY, out=tmp_path / "stopped", progress=False, callbacks=[at(16)])
    shorter = train(walks, get_method("gcbc").preset("smoke", steps=16, hidden=(8,), batch_size=8), progress=False)
    states = walks.observations[:20]
    assert np.array_equal(stopped.model.act(states, states[::-1]), shorter.model.act(states, states[::-1]))
    run = open_run(tmp_path / "stopped")
    assert run.status == "finished" and run.config["step"] == 16
    before = bits(tmp_path / "stopped")
    resume(tmp_path / "stopped", walks, progress=False)
    assert bits(tmp_path / "stopped") == before


def test_a_run_killed_while_it_was_ended_by_a_callback_stays_ended(walks, tmp_path, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(loop.Trainer, "_save_models", lambda *_: (_ for _ in ()).throw(OSError))
        train(walks, TINY, out=tmp_path / "run", progress=False, callbacks=[at(24)])
    resume(tmp_path / "run", walks, progress=False)
    assert open_run(tmp_path / "run").config["step"] == 24 and open_run(tmp_path / "run").status == "finished"


def test_what_a_callback_raises_ends_training_and_the_run_can_be_resumed(walks, tmp_path):
    def fail(progress):
        if progress.step == 16:
            raise ValueError("no space on the camera")

    with pytest.raises(ValueError, match="camera"):
        train(walks, TINY, out=tmp_path / "run", progress=False, callbacks=[fail], checkpoint_every=8)
    assert latest_checkpoint(tmp_path / "run/checkpoints").name == "step_000000008"
    train(walks, TINY, out=tmp_path / "whole", progress=False, checkpoint_every=8)
    resume(tmp_path / "run", walks, progress=False)
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")


# ---------------------------------------------------------------- success during training


def evaluated(monkeypatch, *rates: float) -> None:
    """The evaluator finds these success rates, one after the other, instead of acting."""
    found = iter(rates)
    monkeypatch.setattr(Evaluator, "success_rate", lambda *_: next(found))


def test_an_evaluator_logs_success_of_the_last_phase_and_stops(walks, tmp_path, monkeypatch):
    evaluated(monkeypatch, 0.25, 0.5, 1.0)
    train(walks, TINY, out=tmp_path / "run", progress=False, callbacks=[Evaluator(every=12, stop_at=0.9)])
    # The ends of the chunks after 12, 24 and 36.
    assert read_metrics(tmp_path / "run/metrics.csv")["success"] == ([16, 24, 40], [0.25, 0.5, 1.0])
    two = get_method("qrl").preset("smoke", steps=16, hidden=(8,), batch_size=8, policy=Waypoints(columns=(0, 1)))
    evaluated(monkeypatch, 0.0, 0.0)
    train(walks, two, out=tmp_path / "two", progress=False, callbacks=[Evaluator(every=8)])
    # Not before the last phase.
    assert read_metrics(tmp_path / "two/metrics.csv")["success"] == ([24, 32], [0.0, 0.0])


def test_a_resumed_run_is_evaluated_as_one_that_was_never_stopped(walks, tmp_path, monkeypatch):
    evaluated(monkeypatch, 0.1, 0.2, 0.3, 0.4)
    evaluator = Evaluator(every=8, stop_at=0.4)
    train(walks, TINY, out=tmp_path / "whole", progress=False, callbacks=[evaluator], checkpoint_every=16)
    assert open_run(tmp_path / "whole").config["step"] == 32

    def fail(progress):
        if progress.step == 24:
            raise ValueError

    evaluated(monkeypatch, 0.1, 0.2, 0.3, 0.3, 0.4)
    with pytest.raises(ValueError):
        train(walks, TINY, out=tmp_path / "run", progress=False, callbacks=[evaluator, fail], checkpoint_every=16)
    resume(tmp_path / "run", walks, progress=False)
    assert bits(tmp_path / "run") == bits(tmp_path / "whole")
    assert (tmp_path / "run/metrics.csv").read_bytes() == (tmp_path / "whole/metrics.csv").read_bytes()
    with pytest.raises(RunError, match="evaluate_every is 8 in the run and None now"):
        train(walks, TINY, out=tmp_path / "run", resume=True, progress=False, checkpoint_every=16)


@pytest.mark.slow
def test_success_is_that_of_the_environment(maze_data, tmp_path):
    short = get_method("gcbc").preset("smoke", steps=8, hidden=(8,), batch_size=8)
    trained = train(maze_data, short, out=tmp_path / "run", progress=False, callbacks=[Evaluator(every=8, episodes=1)])
    from iel.agent import Agent

    expected = Agent(trained.model, maze_data, "direct").evaluate(maze_data.name, 1, progress=False)["direct"].success
    assert read_metrics(tmp_path / "run/metrics.csv")["success"] == ([8], [expected.mean()])


# ---------------------------------------------------------------- trackers


class Notebook(Tracker):
    """A tracker of one's own: two functions."""

    def __init__(self):
        self.rows, self.config = [], {}
        BOOKS.append(self)

    def start(self, config):
        self.config = config

    def log(self, step, metrics):
        self.rows.append((step, dict(metrics)))


BOOKS: list[Notebook] = []


def test_a_tracker_of_ones_own_gets_what_metrics_csv_gets(walks, tmp_path):
    BOOKS.clear()
    train(walks, TINY, [4, 2], out=tmp_path / "run", trackers=[Notebook], progress=False)
    assert [book.config["seed"] for book in BOOKS] == [4, 2] and BOOKS[0].config["resumed_at"] is None
    for book in BOOKS:
        steps, values = read_metrics(tmp_path / f"run/seed_{book.config['seed']}/metrics.csv")["train/loss"]
        assert [step for step, _ in book.rows] == steps
        np.testing.assert_allclose([metrics["train/loss"] for _, metrics in book.rows], values, rtol=1e-6)


@pytest.fixture
def calls(monkeypatch) -> list[tuple]:
    """Stand-ins of wandb and mlflow that note the calls that are used."""
    found: list[tuple] = []

    class Run:
        def log(self, metrics, step):
            found.append(("log", step, metrics))

        def finish(self):
            found.append(("finish",))

    class Client:
        def create_run(self, experiment_id, tags, run_name):
            found.append(("create_run", experiment_id, tags, run_name))
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))

        def log_metric(self, run_id, key, value, step):
            found.append(("log_metric", run_id, key, value, step))

        def set_terminated(self, run_id):
            found.append(("set_terminated", run_id))

    def init(**options):
        found.append(("init", options))
        return Run()

    for name, content in (("wandb", {"init": init}), ("mlflow", {"MlflowClient": Client})):
        module = types.ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return found


def test_weights_and_biases_gets_the_settings_and_every_chunk(walks, tmp_path, calls):
    train(walks, TINY, out=tmp_path / "run", trackers=["wandb"], progress=False, callbacks=[at(16)])
    (_, options), *logged, last = calls
    assert options["config"]["settings"]["batch_size"] == 8 and options["name"] == "walks-gcbc-seed0"
    assert options["resume"] == "allow" and [step for _, step, _ in logged] == [8, 16] and last == ("finish",)
    assert logged[0][2].keys() == {"train/loss", "train/squared_error"}


def test_mlflow_gets_the_settings_and_every_chunk(walks, tmp_path, calls):
    train(walks, TINY, out=tmp_path / "run", trackers=["mlflow"], progress=False, callbacks=[at(16)])
    (_, _, tags, name), *logged, last = calls
    assert tags["iel.batch_size"] == "8" and tags["iel.algo"] == "gcbc" and name == "walks-gcbc-seed0"
    assert [(key, step) for _, _, key, _, step in logged] == [
        (key, step) for step in (8, 16) for key in ("train/loss", "train/squared_error")
    ]
    assert last == ("set_terminated", "abc")


def test_trackers_that_cannot_be_used_are_refused(walks, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="wandb"):
        train(walks, TINY, out=tmp_path / "run", trackers=["wndb"], progress=False)
    with pytest.raises(ConfigError, match="trackers needs `out`"):
        train(walks, TINY, trackers=["wandb"], progress=False)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[mlflow\]'"):
        train(walks, TINY, out=tmp_path / "run", trackers=["mlflow"], progress=False)
    assert not (tmp_path / "run").exists()


def test_tensorboard_files_of_a_resumed_run_leave_out_what_came_after_the_checkpoint(walks, tmp_path, monkeypatch):
    found: list[dict] = []
    writer = types.SimpleNamespace(add_scalar=lambda *_: None, flush=lambda: None, close=lambda: None)
    module = types.ModuleType("tensorboardX")
    module.SummaryWriter = lambda directory, **options: (found.append({"directory": directory, **options}), writer)[1]
    monkeypatch.setitem(sys.modules, "tensorboardX", module)

    def fail(progress):
        if progress.step == 24:
            raise ValueError

    with pytest.raises(ValueError):
        train(walks, TINY, out=tmp_path / "run", trackers=["tensorboard"], callbacks=[fail], checkpoint_every=16,
              progress=False)  # fmt: skip
    resume(tmp_path / "run", walks, progress=False)
    directory = str(tmp_path / "run/tensorboard")
    assert found == [{"directory": directory, "purge_step": step} for step in (None, 17)]


# ---------------------------------------------------------------- run.toml


def call(capsys, *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    output = capsys.readouterr()
    return exit_.value.code or 0, output.out, output.err


@pytest.mark.slow
def test_a_run_is_repeated_from_its_own_file_to_the_same_bits(walks, tmp_path, capsys):
    quasimetric = get_method("qrl").preset(
        "smoke", steps=16, hidden=(8,), batch_size=8, policy=None, learning_rate=1e-5
    )
    for name, algo, seeds in (("own", quasimetric, (0,)), ("two", TINY, (3, 1))):
        train(walks, algo, seeds, out=tmp_path / name, checkpoint_every=8, progress=False)
        first = tmp_path / name if len(seeds) == 1 else tmp_path / name / "seed_3"
        code, _, err = call(capsys, "train", "--config", first / "run.toml", "--out", tmp_path / f"{name}2")
        assert code == 0, err
        again = tmp_path / f"{name}2" if len(seeds) == 1 else tmp_path / f"{name}2" / "seed_3"
        assert bits(again) == bits(first)
        assert (again / "metrics.csv").read_bytes() == (first / "metrics.csv").read_bytes()
    code, _, err = call(
        capsys, "train", "--config", tmp_path / "own/run.toml", "--steps", 8, "--out", tmp_path / "short"
    )
    assert code == 0 and open_run(tmp_path / "short").config["settings"] == {
        **json.loads((tmp_path / "own/config.json").read_text())["settings"], "steps": 8
    }, err  # fmt: skip
    code, _, err = call(capsys, "train", "--config", tmp_path / "own/run.toml", "--algo", "iel")
    assert code == 2 and "leave out --algo" in err


def test_a_file_with_a_misspelt_option_is_refused(tmp_path):
    (tmp_path / "run.toml").write_text('env = "pointmaze-medium-navigate-v0"\nsteps = 4\n')
    with pytest.raises(ConfigError, match="steps"):
        read_options(tmp_path / "run.toml")


def test_options_of_any_text_are_read_back(tmp_path):
    settings = {"a": 'say "x" \\ \n ü 🙂', "b": [1, 2], "c": 1e-12, "d": True, "e": None, "policy": None}
    config = {"env": "x", "algo": "y", "seeds": [0], "data": {"file": "/logs/a b'.npz"}, "settings": settings}
    (tmp_path / "run.toml").write_text(options_of(config, "data.npz"))
    options = read_options(tmp_path / "run.toml")
    assert options.settings == {name: value for name, value in settings.items() if name not in ("e", "policy")}
    assert options.data == "/logs/a b'.npz" and options.policy == {"kind": "own"}


# ---------------------------------------------------------------- compiled programs


def test_programs_are_stored_below_the_users_cache_unless_jax_has_a_directory(tmp_path, monkeypatch):
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        keep_programs()
        assert jax.config.jax_compilation_cache_dir == before["jax_compilation_cache_dir"]  # that of the tests
        jax.config.update("jax_compilation_cache_dir", None)
        keep_programs()
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "iel" / "compiled")
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
