"""The command line as a user meets it: help, one-sentence errors with exit code 2, JSON as the last line."""

import importlib.metadata
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import iel
from iel import cli
from iel.cli import COMMANDS, benchmarks, main
from iel.data import Trajectories
from iel.training import open_run

MAZE = "pointmaze-medium-navigate-v0"


def call(capsys, *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    output = capsys.readouterr()
    return exit_.value.code or 0, output.out, output.err


def test_options_and_presets_of_the_last_version_work_with_a_notice(capsys):
    assert cli._current("--witnesses=20") == "--unobserved-cost=20" and cli._current("--nodes") == "--nodes"
    assert cli._current("laptop-body-even", "--preset") == "laptop-robot-even"
    assert cli._current("--preset=laptop-body") == "--preset=laptop-robot"
    assert cli._current("runs/laptop-body-1") == "runs/laptop-body-1"  # a path is not a preset
    assert capsys.readouterr().err.count("old name") == 3


def test_overview_names_every_command(capsys):
    code, out, _ = call(capsys)
    assert code == 0 and all(f"iel {name}" in out for name in COMMANDS)
    assert call(capsys, "--version")[1].startswith("iel ")


@pytest.mark.parametrize("name", [*COMMANDS, *(f"bench {name}" for name in benchmarks())])
def test_the_help_of_every_command_says_what_it_does_and_explains_each_option(capsys, name):
    """A field without a docstring would stand there with its default alone, or with nothing."""
    code, out, _ = call(capsys, *name.split(), "--help")
    rows = [line.strip("│| ") for line in out.splitlines()]
    starts = [position for position, row in enumerate(rows) if re.match("--[a-z]", row)] + [len(rows)]
    for start, end in itertools.pairwise(starts):
        explained = re.sub(r"\{.*?\}|--\S+|\(default.*", "", " ".join(rows[start:end]))
        assert re.search("[a-z]{2,}", explained), rows[start]
    assert code == 0 and len(starts) > 1


def test_lists_of_commands_are_quick():
    """Nothing that takes a second to import is imported for them."""
    code = """
import sys
from iel.cli import run
for words in ([], ["data", "--help"], ["bench", "--help"]):
    run(words)
sys.exit(bool({"jax", "mujoco", "gymnasium", "matplotlib", "scipy"} & sys.modules.keys()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "iel data check" in done.stdout and "iel bench stepping " in done.stdout


def test_flags_say_what_they_do(capsys):
    help_ = {
        name: " ".join(call(capsys, name, "--help")[1].replace("│", " ").split()) for name in ("evaluate", "export")
    }
    assert "--no-pictures Draw nothing" in help_["evaluate"] and "--no-onnx Leave the ONNX files out" in help_["export"]
    out = call(capsys, "train", "--algo", "gccql", "--help-all")[1]
    assert "--algo {htp,iel," in out and "--preset {paper,laptop," in out and "--lagrange, --no-lagrange" in out
    assert out.index("--resume") < out.index("settings options") < out.index("--discount")


def test_benchmarks_need_a_checkout(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("iel.__file__", str(tmp_path / "site-packages" / "iel" / "__init__.py"))
    for words in (["bench", "training"], ["bench", "--help"]):
        code, _, err = call(capsys, *words)
        assert code == 2 and "in a checkout of iel" in err and err.count("\n") == 1


@pytest.mark.parametrize("words", [["data", "make", MAZE], ["demo"], ["demo", "--ant"]])
def test_without_a_simulator_the_extra_is_named(capsys, monkeypatch, words, tmp_path):
    monkeypatch.setenv("IEL_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "mujoco", None)
    code, _, err = call(capsys, *words)
    assert code == 2 and "needs mujoco; in a clone of iel, run: pip install '.[sim]'" in err and err.count("\n") == 1


def test_train_help_shows_the_methods_settings_at_the_presets_values(capsys):
    _, out, _ = call(capsys, "train", "--help-all")
    assert "--beta" in out and "21000)" in out
    _, out, _ = call(capsys, "train", "--preset", "paper", "--help-all")
    assert "500000)" in out


def test_help_is_short_and_reads_like_sentences(capsys):
    """No `{None}|...`, no default after a sentence that says it, and the settings of a method only with --help-all."""
    for name in COMMANDS:
        out = call(capsys, *name.split(), "--help")[1]
        assert "{None" not in out and "(default: None)" not in out and "(default: False)" not in out, name
        assert "(default: )" not in out, name
    out = call(capsys, "train", "--algo", "hilp", "--help")[1]
    assert "--discount" not in out and "--algo hilp --help-all` lists them" in " ".join(out.split())
    assert "--seed INT" in call(capsys, "plan", "--help")[1]


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
    "foreign data": (["data", "make", "Ant-v4"], "iel data make --help"),
    "absent data": (["data", "info", "pointmaze-giant-explore-v0"], "iel data make"),
    "missing file": (["data", "info", "none.npz"], "does not exist"),
    "impossible setting": (["train", "--env", MAZE, "--discount", "2"], "expected `float` < 1.0"),
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
        assert (run / f"seed_{seed}" / "plots" / "curves.png").exists()


@pytest.mark.slow
def test_evaluate_prints_json_last_and_draws(capsys, run, drawn):
    few = ("--episodes", 1, "--tasks", 1, 2, "--max-steps", 40)  # so untrained, no goal is reached
    code, out, _ = call(capsys, "evaluate", run, *few, "--nodes", 64, "--json")
    result = json.loads(out.strip().splitlines()[-1])
    assert code == 0 and result["env"] == MAZE and result["protocol"]["training_seeds"] == 2
    assert result["protocol"]["max_steps"] == 40
    assert set(result["planners"]) == {"direct", "rec-mid", "sym-graph", "asym-graph"}
    for numbers in result["planners"].values():
        assert {"success_rate", "interval", "per_task"} <= numbers.keys()
    for seed in (0, 1):
        pictures = {path.stem for path in (run / f"seed_{seed}" / "plots").glob("*.png")}
        assert pictures >= {"field", "rollouts", "curves"}
    assert len(drawn) == 6 and all(min(axes) > 0 for axes in drawn)
    assert len(list((run / "seed_1" / "evaluations").glob("*.json"))) == len(result["planners"])


@pytest.mark.slow
def test_evaluate_refuses_unknown_planners_before_running(capsys, run):
    code, _, err = call(capsys, "evaluate", run, "--planners", "asym-grap")
    assert code == 2 and "did you mean asym-graph" in err


@pytest.mark.slow
def test_plan_prints_waypoints_and_draws(capsys, run, drawn):
    code, out, _ = call(capsys, "plan", run / "seed_0", "--nodes", 64, "--start", 0, 0, "--goal", 20, 20, "--json")
    result = json.loads(out)
    assert code == 0 and len(result["costs"]) == len(result["waypoints"]) + 1
    assert result["predicted_steps"] == pytest.approx(sum(result["steps"]))
    assert sum(result["steps"]) > sum(result["costs"])  # costs are discounted
    code, out, _ = call(capsys, "plan", run / "seed_0", "--nodes", 64)
    assert code == 0 and "steps to go" in out and (run / "seed_0" / "plots" / "plan.png").exists()
    assert len(drawn) == 2 and all(min(axes) > 2 for axes in drawn)  # a maze, its graph, the route
    assert call(capsys, "plan", run / "seed_0", "--nodes", 64, "--goal", 1, 2, 3)[0] == 2


@pytest.mark.slow
def test_audit_compares_with_the_maze_on_held_out_episodes(capsys, run, maze_data, drawn):
    code, out, _ = call(capsys, "audit", run / "seed_0", "--json")
    result = json.loads(out)
    assert code == 0 and -1 <= result["order"]["low"] <= result["order"]["high"] <= 1
    assert "training never saw" in result["data"] and result["against_exact"]
    assert result["episodes"] == len(maze_data) // 10  # the validation set, not the training set
    found = result["agreement"]
    assert found["states"] == 60 and found["direct"]["pairs"] == 3540 and found["asym-graph"]["one_way"] == 0
    assert found["direct"]["order"]["value"] != found["asym-graph"]["order"]["value"]
    words = ("--states", 20, "--along", "sym-graph", "--nodes", 64)
    code, out, _ = call(capsys, "audit", run / "seed_0", *words)
    assert code == 0 and "rank correlation" in out
    assert "All ordered pairs of 20 states, sym-graph: rank correlation" in out and "asym-graph" not in out
    assert (run / "seed_0" / "plots" / "audit.png").exists()
    assert drawn and all(min(axes) > 0 for axes in drawn)


@pytest.mark.slow
def test_an_audit_without_a_validation_set_says_that_it_saw_training_data(capsys, run, monkeypatch):
    from iel.data import catalogue

    real = catalogue.stored

    def without_validation(name, episodes=None, seed=0, split="train"):
        return iter(()) if split == "val" else real(name, episodes, seed, split)

    monkeypatch.setattr(catalogue, "stored", without_validation)
    code, out, _ = call(capsys, "audit", run / "seed_0", "--states", 20, "--nodes", 64)
    assert code == 0 and "the training data itself" in out and "never saw" not in out


@pytest.mark.slow
def test_a_run_whose_data_is_gone_says_how_to_get_it(capsys, run, monkeypatch, tmp_path):
    monkeypatch.setenv("IEL_DATA", str(tmp_path))
    moved = shutil.copytree(run, tmp_path / "moved")
    for path in moved.glob("**/metrics.csv"):
        config = json.loads(path.with_name("config.json").read_text())
        config["data"]["file"] = str(tmp_path / "gone.npz")  # where it was, on another machine
        path.with_name("config.json").write_text(json.dumps(config))
    code, _, err = call(capsys, "evaluate", moved)
    assert code == 2 and "iel data make" in err


@pytest.mark.slow
def test_training_on_ones_own_file_needs_no_environment(capsys, monkeypatch, tmp_path):
    for simulator in ("gymnasium", "mujoco", "ogbench"):
        monkeypatch.setitem(sys.modules, simulator, None)
    states = np.random.default_rng(0).standard_normal((4, 31, 3))
    data = Trajectories.from_episodes([(s, np.zeros((30, 2))) for s in states])
    data.save(tmp_path / "log.npz")
    small = ["--algo", "iel", "--preset", "smoke", "--steps", "20", "--hidden", "8", "--batch-size", "8"]
    code, out, _ = call(capsys, "train", "--data", tmp_path / "log.npz", *small, "--out", tmp_path / "run", "--json")
    assert code == 0 and json.loads(out)["env"] == "log"
    assert open_run(tmp_path / "run").data().fingerprint == data.fingerprint  # found where it was
    code, _, err = call(capsys, "evaluate", tmp_path / "run")
    assert code == 2 and "no environment" in err


@pytest.mark.slow
def test_bad_files_are_refused_before_training(capsys, tmp_path):
    np.savez(tmp_path / "bad.npz", observations=np.full((3, 2), np.nan), actions=np.zeros((3, 1)), terminals=[0, 0, 1])
    code, _, err = call(capsys, "train", "--data", tmp_path / "bad.npz", "--out", tmp_path / "run")
    assert code == 2 and "episode 0, step 0, observation column 0" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "problem", [MemoryError(), ImportError("jaxlib.so: failed to map segment from shared object", name="jaxlib")]
)
def test_too_little_memory_is_a_sentence(problem, capsys, monkeypatch):
    """As under `ulimit -v 400000`, where which package fails depends on the machine."""

    def fails(argv):
        raise problem

    monkeypatch.setattr("iel.cli.run", fails)
    code, out, err = call(capsys, "methods")
    assert code == 2 and "ulimit -v" in err and err.count("\n") == 1 and out == ""


def test_doctor_names_extras_and_advises_no_demo_that_cannot_run(capsys, monkeypatch):
    """rich reads [sim] as markup; without a simulator the demo could not begin."""
    from iel.commands import doctor

    def version(name):
        if name in ("mujoco", "ogbench"):
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor.importlib.metadata, "version", version)
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name == "mujoco" else object())
    code, out, _ = call(capsys, "doctor")
    assert code == 0 and "pip install '.[sim]'" in out and "EGL" not in out
    assert "iel demo" not in out and "iel train --data FILE" in out


def test_the_demo_looks_for_the_simulator_first(capsys, monkeypatch):
    from iel.envs import registry

    find = registry.importlib.util.find_spec
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None if name == "mujoco" else find(name))
    code, out, err = call(capsys, "demo")
    assert code == 2 and "The demo needs mujoco" in err and out == ""


def test_a_virtual_environment_of_another_checkout_is_refused(tmp_path):
    program = [sys.executable, "-P", str(Path(__file__).parent.parent / "scripts" / "check_venv.py")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    refused = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1 and "set VENV to another directory" in refused.stderr
    home = refused.stderr.split("belongs to the checkout ")[1].split(";")[0]
    assert subprocess.run(program, cwd=home, env=environment).returncode == 0


def test_doctor_says_what_it_found(capsys):
    code, out, _ = call(capsys, "doctor", "--json")
    findings = json.loads(out)
    assert code == 0 and findings["healthy"] and findings["versions"]["iel"]


def test_data_info_shows_slow_columns_and_jumps(capsys, tmp_path):
    rng = np.random.default_rng(0)
    position = np.cumsum(np.repeat(rng.uniform(-1, 1, (60, 2)), 50, axis=0), axis=0)
    position[1700:] += 100.0
    table = np.concatenate([rng.standard_normal((3000, 9)), position], 1)
    Trajectories(table, np.zeros((3000, 1)), [0, 1500, 3000]).save(tmp_path / "log.npz")
    code, out, _ = call(capsys, "data", "info", tmp_path / "log.npz", "--json")
    facts = json.loads(out.splitlines()[-1])
    assert code == 0 and facts["position_columns"] == [9, 10] and facts["jumps"] == 1
    assert all(len(str(value)) < 10 for value in facts["observation_low"])
    _, out, _ = call(capsys, "data", "info", tmp_path / "log.npz")
    assert out.count("  position\n") == 2 and "3 more columns, with a slowness of 0.9" in out
    assert max(map(len, out.splitlines())) < 90


def test_python_m_iel_is_the_command():
    done = subprocess.run([sys.executable, "-m", "iel", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == f"iel {iel.__version__}\n"


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash found")
def test_a_shell_completes_commands_and_options(capsys, tmp_path):
    assert call(capsys, "completion", "zsh")[1].startswith("#compdef iel")
    (tmp_path / "iel.bash").write_text(call(capsys, "completion", "bash")[1])
    lines = {
        "iel da": "data",
        "iel data con": "convert",
        "iel train --pre": "--preset",
        "iel export x --no-": "--no-onnx",
    }
    for line, wanted in lines.items():
        words = line.split()
        script = f"source iel.bash; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _tyro_iel; echo ${{COMPREPLY[@]}}"
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.split() == [wanted], (line, done)
