"""What may import what: the numpy rooms never pay for JAX, and dependencies point one way."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import iel

SOURCE = Path(iel.__file__).parent
# A room may import rooms of its own rank or below.
RANKS = {
    "errors": 0, "progress": 0, "cores": 0, "typed": 0, "loader": 0, "files": 0,
    "data": 1, "envs": 1, "nn": 1, "losses": 1, "distances": 1, "serial": 1, "theory": 1,
    "planning": 2, "runtime": 2, "algos": 2, "training": 3, "evaluation": 3, "options": 0,
    "viz": 4, "bench": 4, "compare": 4, "export": 4,
    "commands": 5, "cli": 6,
}  # fmt: skip


@pytest.mark.parametrize(
    "room",
    ["iel", "iel.data", "iel.envs", "iel.planning", "iel.runtime", "iel.theory", "iel.evaluation.stats"],
)
def test_numpy_rooms_do_not_import_jax(room):
    code = f"import sys, {room}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_dependencies_point_one_way():
    wrong = []
    for path in SOURCE.rglob("*.py"):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        for node in ast.parse(path.read_text()).body:
            names = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", [])]
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            for name in names:
                parts = (name or "").split(".")
                if parts[0] == "iel" and len(parts) > 1 and RANKS[parts[1]] > RANKS[room]:
                    wrong.append(f"{room} imports {parts[1]}")
    assert not wrong


def test_planning_never_imports_algos():
    for path in (SOURCE / "planning").rglob("*.py"):
        assert "iel.algos" not in path.read_text() and "import jax" not in path.read_text()


def test_public_names_exist_and_are_few():
    assert len(iel.__all__) <= 16
    for name in iel.__all__:
        assert getattr(iel, name) is not None
    assert callable(iel.train) and callable(iel.evaluate)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = iel.nothing


def test_no_pickle_and_no_long_files():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert "pickle." not in text and "allow_pickle=True" not in text
        assert text.count("\n") <= 500, path
