"""`iel train --resume RUN`: one flag, and whatever else is given must agree with the run."""

import json

import numpy as np
import pytest

from iel.cli import main
from iel.data import Trajectories
from iel.training import open_runs
from run_files import latest_checkpoint, sha256

SMALL = ["--preset", "smoke", "--steps", "20", "--hidden", "16", "--batch-size", "16", "--checkpoint-every", "15"]


def call(capsys, *words: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_:
        main([str(word) for word in words])
    output = capsys.readouterr()
    return exit_.value.code or 0, output.out, output.err


@pytest.mark.long
def test_resume_needs_one_flag_and_names_what_differs(capsys, tmp_path):
    states = np.random.default_rng(0).standard_normal((4, 31, 3))
    data = Trajectories.from_episodes([(s, np.ones((30, 2))) for s in states], "my robot's log")
    data.save(tmp_path / "log.npz")
    out = tmp_path / "run"
    data = ["--data", tmp_path / "log.npz"]
    assert call(capsys, "train", *data, *SMALL, "--seeds", 4, 2, "--out", out)[0] == 0
    before = {
        run.seed: sha256(latest_checkpoint(run.path / "checkpoints") / "state.safetensors") for run in open_runs(out)
    }

    for run in open_runs(out):  # as SIGKILL would have left it after the save of step 30
        newest = latest_checkpoint(run.path / "checkpoints")
        assert newest.name == "step_000000040"
        for file in newest.iterdir():
            file.unlink()
        newest.rmdir()
        run.update(status="running")
    code, out_text, err = call(capsys, "train", "--resume", out, "--json")
    result = json.loads(out_text.splitlines()[-1])
    assert code == 0 and result["steps"] == 20 and result["seeds"] == [4, 2], err
    for run in open_runs(out):
        assert run.status == "finished"
        assert sha256(latest_checkpoint(run.path / "checkpoints") / "state.safetensors") == before[run.seed]

    for words, message in (
        (["--beta", 0.7], "settings.beta is 0.1 in the run and 0.7 now"),
        (["--policy.discount", 0.5], "settings.policy.discount is 0.99 in the run and 0.5 now"),
        (["--seeds", 4, 3], "seeds"),
        (["--env", "pointmaze-medium-navigate-v0"], "env is"),
        (["--out", tmp_path / "elsewhere"], "leave out --out"),
    ):
        code, _, err = call(capsys, "train", "--resume", out, *words)
        assert code == 2 and message in err and err.count("\n") == 1
    assert call(capsys, "train", *data, *SMALL, "--out", out)[0] == 2
