"""The attack of `fuzz.py`: nothing foreign, nothing silently different, within time and memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import fuzz
import pytest

FUZZ = Path(__file__).with_name("fuzz.py")


def attack(first: int, count: int, directory: Path) -> dict:
    """Outcomes of `count` cases; a process that crashes (inside of a library) is reported with its case."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "IEL_MEMORY_BUDGET": "500MB"}
    command = [sys.executable, str(FUZZ), str(first), str(count), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, env=environment)
    cases = [line for line in done.stderr.splitlines() if line.startswith("case ")]
    assert done.returncode == 0, (cases[-1:], done.stderr[-2000:])
    *faults, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert not faults, faults[:10]
    return summary


def check(summary: dict, count: int) -> None:
    outcomes = [kind for kinds in summary["counts"].values() for kind in kinds for _ in range(kinds[kind])]
    assert len(outcomes) == count and set(outcomes) <= {"same", "refused"}
    assert min(outcomes.count("same"), outcomes.count("refused")) > count // 20  # it neither takes nor refuses all
    assert set(summary["counts"]) == set(fuzz.ATTACKS)
    assert summary["slowest"] < 5.0 and summary["peak_megabytes"] < 1000


def test_three_hundred_damaged_files_and_directories(tmp_path):
    check(attack(0, 300, tmp_path / "fuzz"), 300)


def test_the_attack_would_notice_a_reader_that_believes_everything(tmp_path, monkeypatch):
    """Without digests and with flags that are not believed, the same cases are faults."""
    import numpy as np

    import iel.data.d4rl as d4rl

    lab = fuzz.Lab(tmp_path)
    monkeypatch.setattr(fuzz, "verify_seal", lambda *_: None)
    monkeypatch.setattr(d4rl, "misspelt", lambda *_: None)
    monkeypatch.setattr(d4rl, "marked", lambda arrays, fields, rows, _: np.zeros(rows, bool))
    for name in ("sealed_directory", "bytes_of_data"):
        kinds = [fuzz.outcome(getattr(lab, name), np.random.default_rng([1, case]))[0] for case in range(150)]
        assert {"different", "foreign"} & set(kinds), name


@pytest.mark.faults
def test_ten_thousand_damaged_files_and_directories(tmp_path, capsys):
    summaries = [attack(first, 2000, tmp_path / f"fuzz{first}") for first in range(300, 10_300, 2000)]
    for summary in summaries:
        check(summary, 2000)
    with capsys.disabled():
        print(json.dumps(summaries))
