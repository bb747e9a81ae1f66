"""SIGKILL at any moment loses at most one save interval, and the restarted run ends with the same bits."""

import json
import signal
import time

import numpy as np
import pytest
from processes import ended, logged_step, results, wait_for_step
from trainee import EVERY, STEPS

PARTS = ["half a file", "no manifest", "before the rename", "after the rename", "before the old one goes"]


def unfinished(out) -> bool:
    """Whether a save was under way."""
    return any((out / "checkpoints").glob(".tmp-*"))


def kill_at_random(lab, out, rng) -> dict:
    """Start or continue the run in `out`, kill it somewhere, and say where. None of its own handlers runs."""
    begin = max(logged_step(out), 0)
    process = lab.start(out)
    if rng.random() < 0.1:
        time.sleep(rng.uniform(0, 3))  # while it imports, compiles or restores
    else:
        wait_for_step(process, out, int(rng.integers(begin, max(begin + 1, STEPS - EVERY))))
        time.sleep(rng.uniform(0, 0.1))
    process.kill()
    ended(process)
    return {
        "killed": process.returncode == -signal.SIGKILL,
        "logged": max(logged_step(out), 0),
        "saving": unfinished(out),
    }


def killed_and_finished(lab, out, rng, kills: int) -> list[dict]:
    """Kill the run `kills` times, then let it finish; every restart must begin within one save interval."""
    history = [kill_at_random(lab, out, rng) for _ in range(kills)]
    begun, _ = lab.finish(out)
    history[-1] |= {"resumed": begun, "lost": history[-1]["logged"] - begun}
    assert history[-1]["lost"] <= EVERY, history
    return history


@pytest.mark.slow
def test_a_run_killed_at_random_ends_with_the_same_bits(lab, uninterrupted, tmp_path):
    rng, killed = np.random.default_rng(7), 0
    for attempt in range(5):  # on a busy machine a run may finish before its kill comes
        out = tmp_path / f"run{attempt}"
        killed += sum(kill["killed"] for kill in killed_and_finished(lab, out, rng, kills=2))
        assert results(out) == results(uninterrupted)
        assert not unfinished(out)
        if killed:
            break
    assert killed


@pytest.mark.slow
def test_a_kill_inside_a_save_leaves_the_checkpoint_before_it(lab, uninterrupted, tmp_path):
    out = tmp_path / "run"
    process = lab.start(out, "--die", 4, "half a file")
    ended(process)
    assert process.returncode == -signal.SIGKILL and unfinished(out)
    begun, _ = lab.finish(out)
    assert begun == 2 * EVERY  # the saves of steps 0, 20 and 40 were whole, that of step 60 was not
    assert results(out) == results(uninterrupted) and not unfinished(out)


@pytest.mark.faults
def test_fifty_runs_killed_at_random_end_with_the_same_bits(lab, uninterrupted, tmp_path, record_property):
    rng = np.random.default_rng(20)
    histories, wanted = [], results(uninterrupted)
    while len(histories) < 50:
        out = tmp_path / f"run{len(histories)}"
        history = killed_and_finished(lab, out, rng, kills=1 + (len(histories) % 5 == 0))
        assert results(out) == wanted, history
        if any(kill["killed"] for kill in history):  # one that finished before its kill came does not count
            histories.append(history)
    kills = [kill for history in histories for kill in history if kill["killed"]]
    figures = {
        "runs": len(histories),
        "kills": len(kills),
        "inside a save": sum(kill["saving"] for kill in kills),
        "most steps lost": max(history[-1]["lost"] for history in histories),
        "save interval": EVERY,
    }
    print(json.dumps(figures))
    record_property("figures", figures)
    assert figures["inside a save"] >= 5


@pytest.mark.faults
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("save", [1, 5, 21])
def test_every_moment_of_a_save(lab, uninterrupted, tmp_path, part, save):
    """The first save, the one where two phases meet (step 80), and the last."""
    out = tmp_path / "run"
    process = lab.start(out, "--die", save, part)
    ended(process)
    assert process.returncode == -signal.SIGKILL
    begun, _ = lab.finish(out)
    whole = save if part in ("after the rename", "before the old one goes") else save - 1
    assert begun == max(whole - 1, 0) * EVERY
    assert results(out) == results(uninterrupted) and not unfinished(out)


@pytest.mark.faults
def test_several_seeds_killed_between_their_saves(lab, tmp_path):
    """One of two seeds has step 60, the other does not yet: both continue from step 40."""
    seeds = ["--seeds", 1, 0]
    lab.finish(tmp_path / "whole", *seeds)
    for number in (7, 8):  # the saves of step 60: the seventh is the first seed's, the eighth the second's
        out = tmp_path / f"run{number}"
        process = lab.start(out, *seeds, "--die", number, "no manifest")
        ended(process)
        assert process.returncode == -signal.SIGKILL
        begun, _ = lab.finish(out, *seeds)
        assert begun == 2 * EVERY
        for seed in (0, 1):
            assert results(out / f"seed_{seed}") == results(tmp_path / "whole" / f"seed_{seed}")


@pytest.mark.faults
def test_the_surroundings_of_a_process_do_not_matter(lab, uninterrupted, tmp_path):
    """Nor does it matter whether a program was compiled just now or by another process."""
    surroundings = {"PYTHONHASHSEED": "7", "LC_ALL": "C", "TZ": "Pacific/Auckland", "HOME": str(tmp_path)}
    lab.finish(tmp_path / "run", cache=False, **surroundings)
    assert results(tmp_path / "run") == results(uninterrupted)
