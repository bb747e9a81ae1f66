"""An edited table is read as it says, or refused with the location (`meaning.py`)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import meaning
import numpy as np
import pytest


def attack(first: int, count: int, directory: Path) -> dict:
    """Outcomes of `count` cases, in a process of its own."""
    command = [sys.executable, str(Path(meaning.__file__)), str(first), str(count), str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr[-2000:]
    *faults, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert not faults, faults[:5]
    counts = summary["counts"]
    assert sum(counts.values()) == count
    for outcome in ("same", "refused"):  # it neither takes nor refuses all
        assert sum(number for name, number in counts.items() if name.endswith(outcome)) > count // 10
    return summary


def test_a_table_in_good_order_means_what_it_says(tmp_path):
    lab = meaning.Lab(tmp_path)
    path = lab.fresh("a.csv")
    path.write_text("\n".join(",".join(row) for row in lab.table))
    expected = meaning.table_of_text(path.read_text())
    assert len(expected) == 4 and meaning.outcome(lambda rng: (path, lambda: expected), None)[0] == "same"


def test_edited_tables_are_never_misread(tmp_path):
    attack(0, 150, tmp_path / "edited")


def test_the_attack_would_notice_a_reader_that_rounds(tmp_path, monkeypatch):
    import iel.data.text as text

    exact = text._Cells._numbers
    monkeypatch.setattr(
        text._Cells, "_numbers", lambda *cells: type(found := exact(*cells))("d", [round(x, 2) for x in found])
    )
    lab = meaning.Lab(tmp_path)
    outcomes = [meaning.outcome(lab.csv, np.random.default_rng([2, case]))[0] for case in range(20)]
    assert "different" in outcomes and "foreign" not in outcomes


@pytest.mark.faults
def test_five_thousand_edited_tables_are_never_misread(tmp_path):
    attack(0, 5000, tmp_path / "edited")
