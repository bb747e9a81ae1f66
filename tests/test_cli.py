"""The command line as a user meets it: help, one-sentence errors with exit code 2, JSON as the last line."""

import json

import numpy as np
import pytest

from iel.cli import COMMANDS, main
from iel.data import Trajectories

MAZE = "pointmaze-medium-navigate-v0"


def call(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    output = capsys.readouterr()
    return exit_.value.code or 0, output.out, output.err


def test_overview_names_every_command(capsys):
    code, out, _ = call(capsys)
    assert code == 0 and all(f"iel {name}" in out for name in COMMANDS)
    assert call(capsys, "--version")[1].startswith("iel ")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(capsys, name):
    code, out, _ = call(capsys, *name.split(), "--help")
    assert code == 0 and "--json" in out


def test_train_help_shows_the_methods_settings_at_the_presets_values(capsys):
    _, out, _ = call(capsys, "train", "--help")
    assert "--beta" in out and "(default: 42000)" in out
    _, out, _ = call(capsys, "train", "--preset", "paper", "--help")
    assert "(default: 1000000)" in out


WRONG = {
    "unknown command": (["trian"], "did you mean train"),
    "half a command": (["data"], "`iel data make`"),
    "unknown environment": (
        ["train", "--env", "pointmaze-large-navigat-v0"],
        "did you mean pointmaze-large-navigate-v0",
    ),
    "unknown algorithm": (["train", "--env", MAZE, "--algo", "ielle"], "did you mean iel"),
    "unknown preset": (["train", "--env", MAZE, "--preset", "lapto"], "did you mean laptop"),
    "nothing to train on": (["train"], "--env"),
    "missing run": (["evaluate", "no/such/run"], "does not exist"),
    "missing run to plan in": (["plan", "no/such/run"], "does not exist"),
    "unknown data": (["data", "make", "pointmaze-huge-navigate-v0"], "did you mean"),
    "absent data": (["data", "info", "pointmaze-giant-explore-v0"], "iel data make"),
    "missing file": (["data", "info", "none.npz"], "does not exist"),
    "impossible setting": (["train", "--env", MAZE, "--discount", "2"], "strictly between"),
    "unpaired sizes": (["bench", "training", "--widths", "8"], "equally many"),
}


@pytest.mark.parametrize("case", WRONG)
def test_errors_are_one_sentence_and_exit_code_two(capsys, case):
    words, message = WRONG[case]
    code, out, err = call(capsys, *words)
    assert code == 2 and out == ""
    assert message in err and err.startswith("iel: ") and err.count("\n") == 1


def test_misspelt_options_exit_with_two(capsys):
    assert call(capsys, "train", "--evn", MAZE)[0] == 2


@pytest.fixture(scope="module")
def run(tmp_path_factory, maze_data):
    """A run made by the command itself: too short to be good, long enough to be whole."""
    from iel.cli import run as execute

    out = tmp_path_factory.mktemp("cli") / "run"
    small = ["--preset", "smoke", "--steps", "40", "--hidden", "16", "16", "--batch-size", "16"]
    execute(["train", "--env", MAZE, "--episodes", str(len(maze_data)), *small, "--seeds", "0", "1", "--out", str(out)])
    return out


@pytest.mark.slow
def test_train_writes_a_run_a_seed(run):
    for seed in (0, 1):
        assert json.loads((run / f"seed_{seed}" / "config.json").read_text())["settings"]["hidden"] == [16, 16]
        assert (run / f"seed_{seed}" / "plots" / "curves.png").stat().st_size > 5000


@pytest.mark.slow
def test_evaluate_prints_json_last_and_draws(capsys, run):
    code, out, _ = call(capsys, "evaluate", run, "--episodes", 1, "--tasks", 1, 2, "--nodes", 64, "--json")
    result = json.loads(out.strip().splitlines()[-1])
    assert code == 0 and result["env"] == MAZE and result["protocol"]["training_seeds"] == 2
    assert set(result["planners"]) == {"direct", "rec-mid", "sym-graph", "asym-graph"}
    for numbers in result["planners"].values():
        assert {"success_rate", "interval", "per_task"} <= numbers.keys()
    for picture in ("field", "rollouts", "curves"):
        assert (run / "seed_0" / "plots" / f"{picture}.png").stat().st_size > 5000
    assert len(list((run / "seed_1" / "evaluations").glob("*.json"))) == 1


@pytest.mark.slow
def test_evaluate_refuses_unknown_planners_before_running(capsys, run):
    code, _, err = call(capsys, "evaluate", run, "--planners", "asym-grap")
    assert code == 2 and "did you mean asym-graph" in err


@pytest.mark.slow
def test_plan_prints_waypoints_and_draws(capsys, run):
    code, out, _ = call(capsys, "plan", run / "seed_0", "--nodes", 64, "--start", 0, 0, "--goal", 20, 20, "--json")
    result = json.loads(out)
    assert code == 0 and len(result["costs"]) == len(result["waypoints"]) + 1
    assert result["predicted_steps"] == pytest.approx(sum(result["costs"]))
    code, out, _ = call(capsys, "plan", run / "seed_0", "--nodes", 64)
    assert code == 0 and "steps to go" in out and (run / "seed_0" / "plots" / "plan.png").stat().st_size > 5000
    assert call(capsys, "plan", run / "seed_0", "--nodes", 64, "--goal", 1, 2, 3)[0] == 2


@pytest.mark.slow
def test_audit_compares_with_the_maze_on_held_out_episodes(capsys, run, maze_data):
    code, out, _ = call(capsys, "audit", run / "seed_0", "--json")
    result = json.loads(out)
    assert code == 0 and -1 <= result["spearman_exact"] <= 1
    assert result["episodes"] == len(maze_data) // 10  # the validation set, not the training set
    code, out, _ = call(capsys, "audit", run / "seed_0")
    assert code == 0 and "rank correlation" in out
    assert (run / "seed_0" / "plots" / "audit.png").stat().st_size > 5000


@pytest.mark.slow
def test_a_run_whose_data_is_gone_says_how_to_get_it(capsys, run, monkeypatch, tmp_path):
    monkeypatch.setenv("IEL_DATA", str(tmp_path))
    code, _, err = call(capsys, "evaluate", run)
    assert code == 2 and "iel data make" in err


@pytest.mark.slow
def test_training_on_ones_own_file_needs_no_environment(capsys, tmp_path):
    states = np.random.default_rng(0).standard_normal((4, 31, 3))
    data = Trajectories.from_episodes([(s, np.zeros((30, 2))) for s in states])
    data.save(tmp_path / "log.npz")
    small = ["--preset", "smoke", "--steps", "20", "--hidden", "8", "--batch-size", "8"]
    code, out, _ = call(capsys, "train", "--data", tmp_path / "log.npz", *small, "--out", tmp_path / "run", "--json")
    assert code == 0 and json.loads(out)["env"] == "log"
    code, _, err = call(capsys, "evaluate", tmp_path / "run")
    assert code == 2 and "no environment" in err


@pytest.mark.slow
def test_bad_files_are_refused_before_training(capsys, tmp_path):
    np.savez(tmp_path / "bad.npz", observations=np.full((3, 2), np.nan), actions=np.zeros((3, 1)), terminals=[0, 0, 1])
    code, _, err = call(capsys, "train", "--data", tmp_path / "bad.npz", "--out", tmp_path / "run")
    assert code == 2 and "episode 0, step 0, observation column 0" in err
    assert not (tmp_path / "run").exists()


def test_doctor_says_what_it_found(capsys):
    code, out, _ = call(capsys, "doctor", "--json")
    findings = json.loads(out)
    assert code == 0 and findings["healthy"] and findings["versions"]["iel"]
