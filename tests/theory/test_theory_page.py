"""docs/theory.md must not drift from the code, and its figure must show what it claims."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from iel.theory.figure import bound_curve, draw_bound_curve, maze_curve, slow_subspace

import iel.theory
from iel.theory import policy_chain, uniform_policy
from iel.theory.builders import directed_ring

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "theory.md").read_text()


def test_every_function_and_test_named_in_the_table_exists():
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and "test_" in line]
    assert len(rows) >= 20
    tests = set()
    for path in (ROOT / "tests" / "theory").glob("test_*.py"):
        tree = ast.parse(path.read_text())
        tests |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for row in rows:
        _, _, functions, named, _, _ = [cell.strip() for cell in row.split("|")]
        for name in re.findall(r"`(\w+)`", functions):
            assert hasattr(iel.theory, name), f"{name} is not public in iel.theory"
        for name in re.findall(r"`(test_\w+)`", named):
            assert name in tests, f"{name} is not a test"


def test_the_public_names_are_listed_and_real():
    for name in iel.theory.__all__:
        assert hasattr(iel.theory, name)


def test_the_theory_needs_no_jax_and_no_plotting_at_import():
    for path in (ROOT / "src" / "iel" / "theory").glob("*.py"):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] in {"jax", "equinox", "optax", "matplotlib"} for name in names), path


def test_the_figure_shows_bounds_above_errors_that_vanish_at_full_dimension(tmp_path):
    curve = maze_curve()
    assert np.all(curve.true_error <= curve.bound + 1e-6)
    assert np.all(curve.true_error <= curve.sharp_bound + 1e-6)
    assert np.all(curve.relative_error <= curve.relative_bound + 1e-6)
    assert curve.true_error[-1] < 1e-6 < 1.0 < curve.true_error[0]
    # The page says that the theorem's bound is vacuous here while the corrected one is below the longest time.
    middle = len(curve.dimensions) // 2
    assert curve.bound[middle] > 100 * curve.longest
    assert curve.relative_bound[middle] < 0.2 * curve.longest
    assert draw_bound_curve(curve, tmp_path / "bound.png").stat().st_size > 10_000


def test_the_slow_subspace_holds_the_goal_and_the_unit_cost():
    process = directed_ring(6, slip=0.3)
    chain = policy_chain(process, uniform_policy(process)).toarray()
    basis = slow_subspace(chain, 2, 4)
    projection = basis @ basis.T
    goal = np.eye(6)[2]
    assert np.allclose(projection @ goal, goal) and np.allclose(projection @ (1 - goal), 1 - goal)
    curve = bound_curve(process, 2, np.array([2, 4, 6]))
    assert curve.longest == pytest.approx(5 / 0.7)
