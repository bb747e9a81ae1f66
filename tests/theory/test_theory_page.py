"""`iel theory` runs every statement of the paper, and docs/theory.md must not drift from what it prints."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest

import iel.theory
from iel.cli import main
from iel.theory.bounds import maze_walk, slow_subspace
from iel.theory.evidence import Evidence, statement
from iel.theory.statements import STATEMENTS, check_all

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text()


@pytest.fixture(scope="module")
def rows():
    return check_all(seed=1)


def test_every_check_bears_out_its_verdict_with_another_seed_than_the_command(rows):
    assert [(row["statement"], item["on"]) for row in rows for item in row["evidence"] if not item["holds"]] == []
    assert len(rows) >= 24 and sum(len(row["evidence"]) for row in rows) >= 50


def test_the_page_lists_every_statement_with_the_verdict_the_command_prints(rows):
    table = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", PAGE, flags=re.MULTILINE))
    for row in rows:
        assert table[row["statement"]].split(",")[0] == row["verdict"], row["statement"]


def test_the_page_quotes_numbers_that_the_checks_find(rows):
    found = {name: value for row in rows for item in row["evidence"] for name, value in item["numbers"].items()}
    for name, quoted in (
        ("||omega|| epsilon / (1 - rho)", "2.25"),
        ("predicted V(5, 0)", "80.7"),
        ("n = 32, slip 0.5", "10.2"),
        ("H_max = 30", "0.46"),
        ("H_max = 10", "0.06"),
        ("n = 256", "0.99"),
        ("K_a phi", "0.757"),
    ):
        digits = len(quoted.split(".")[1])
        assert f"{found[name]:.{digits}f}" == quoted and quoted in PAGE


def test_a_check_that_does_not_hold_is_an_error_of_the_command(capsys, monkeypatch):
    claim = statement("A claim", "one is two", "holds")
    wrong = claim(lambda generator: iter([Evidence("numbers", {"one": 1.0}, False)]))
    monkeypatch.setattr("iel.theory.statements.STATEMENTS", [wrong])
    with pytest.raises(SystemExit) as stop:
        main(["theory"])
    printed = capsys.readouterr()
    assert stop.value.code == 2 and "NOT numbers: one 1" in printed.out and "A claim" in printed.err


def test_the_command_prints_people_and_json(capsys, monkeypatch):
    monkeypatch.setattr("iel.theory.statements.STATEMENTS", STATEMENTS[:2])
    for arguments in (["theory"], ["theory", "--json"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
        printed = capsys.readouterr().out
        if "--json" in arguments:
            found = json.loads(printed.splitlines()[-1])
            assert found["statements"][0]["evidence"][0]["numbers"]["optimal time"] == "inf"
        else:
            assert printed.startswith("Problem statement") and "relative error" in printed


def test_tests_and_functions_named_on_the_page_exist():
    names = {
        node.name
        for folder in ("tests/theory", "src/iel/theory")
        for path in (ROOT / folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    mentioned = set(re.findall(r"`([a-z_0-9]+)`", PAGE))
    missing = {name for name in mentioned if "_" in name} - names
    arguments = {"upper_only", "one_way", "subcells"}
    assert missing <= arguments, missing


def test_the_public_names_are_real():
    for name in iel.theory.__all__:
        assert hasattr(iel.theory, name)


def test_the_theory_needs_no_jax_and_no_plotting_at_import():
    for path in (ROOT / "src" / "iel" / "theory").glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in {"jax", "equinox", "optax", "matplotlib"} for name in names), path


def test_the_slow_subspace_holds_the_goal_and_the_unit_cost():
    chain, goal = maze_walk()
    assert chain.shape == (104, 104)
    projection = slow_subspace(chain, goal, 16) @ slow_subspace(chain, goal, 16).T
    at_goal = np.eye(104)[goal]
    assert np.allclose(projection @ at_goal, at_goal) and np.allclose(projection @ (1 - at_goal), 1 - at_goal)
