"""What may import what: light packages need numpy, scipy, safetensors and msgspec; dependencies point one way."""

import ast
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import iel

SOURCE = Path(iel.__file__).parent
# A package may import packages of its own rank or below.
RANKS = {
    "errors": 0, "progress": 0, "cores": 0, "typed": 0, "signals": 0, "loader": 0, "files": 0, "cluster": 0,
    "readout": 0,
    "data": 1, "envs": 1, "nn": 1, "losses": 1, "quasimetrics": 1, "distances": 1,
    "model": 1, "serial": 1, "theory": 1,
    "planning": 2, "learner": 2, "policies": 2, "methods": 2, "card": 3, "training": 3, "evaluation": 3, "agent": 3,
    "viz": 4, "compare": 4, "export": 4, "serving": 4, "sharing": 4,
    "commands": 5, "cli": 6, "__main__": 7,
}  # fmt: skip


# What robots, other frameworks and people with logs of their own use: numpy, scipy, safetensors and msgspec are enough.
LIGHT_PACKAGES = (
    "iel", "iel.loader", "iel.data", "iel.data.make", "iel.envs", "iel.planning", "iel.model", "iel.theory",
    "iel.agent", "iel.evaluation.stats",
)  # fmt: skip
REFUSED = (
    "jax", "equinox", "optax", "mujoco", "ogbench", "gymnasium", "matplotlib", "rich", "tyro", "h5py", "threadpoolctl",
)  # fmt: skip
REFUSE = f"""
import importlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {REFUSED}:
            raise ModuleNotFoundError(f"{{name}} is refused", name=name)
sys.meta_path.insert(0, Refuse())
"""


def _python(code: str, *, program: str = sys.executable, **settings) -> None:
    done = subprocess.run([program, "-c", code], capture_output=True, text=True, **settings)
    assert done.returncode == 0, done.stderr


def test_light_packages_import_nothing_heavy():
    with pytest.raises(AssertionError, match="jax is refused"):
        _python(REFUSE + "import iel.losses")  # the refusal itself works
    _python(REFUSE + f"for package in {LIGHT_PACKAGES}: importlib.import_module(package)")


def test_training_and_its_command_need_no_simulator():
    """Importing them, that is; `iel train --data FILE` is run without one in test_cli.py."""
    refuse = REFUSE.replace(str(REFUSED), str(("mujoco", "ogbench", "gymnasium")))
    _python(refuse + "import iel.training, iel.evaluation, iel.export, iel.commands.train, iel.commands.pictures")


@pytest.mark.long
def test_light_packages_work_where_only_numpy_scipy_and_safetensors_are_installed(tmp_path):
    project = SOURCE.parents[1]
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(project / name, tmp_path)
    shutil.copytree(SOURCE, tmp_path / "src" / "iel", ignore=shutil.ignore_patterns("__pycache__"))
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for packages in (["numpy", "scipy", "safetensors", "msgspec"], ["--no-deps", str(tmp_path)]):
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True, env=plain)
    absent = "import importlib.util as u; assert not any(map(u.find_spec, ('jax', 'mujoco', 'rich', 'tyro')))"
    _python(absent, program=python, env=plain, cwd=tmp_path)
    packages = f"import importlib\nfor package in {LIGHT_PACKAGES}: importlib.import_module(package)"
    _python(f"{packages}\nimport iel; assert 'site-packages' in iel.__file__", program=python, env=plain, cwd=tmp_path)


def test_dependencies_point_one_way():
    wrong = []
    for path in SOURCE.rglob("*.py"):
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if package == "__init__":
            continue
        for node in ast.parse(path.read_text()).body:
            names = [node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in getattr(node, "names", [])]
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            for name in names:
                parts = (name or "").split(".")
                if parts[0] == "iel" and len(parts) > 1 and RANKS[parts[1]] > RANKS[package]:
                    wrong.append(f"{package} imports {parts[1]}")
    assert not wrong


def test_planning_never_imports_methods():
    for path in (SOURCE / "planning").rglob("*.py"):
        assert "iel.methods" not in path.read_text() and "import jax" not in path.read_text()


def test_training_never_imports_planning():
    for package in ("training", "methods", "policies", "model"):
        for path in (SOURCE / package).rglob("*.py"):
            imported = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ImportFrom)]
            assert not any((node.module or "").startswith("iel.planning") for node in imported), path


def test_no_pickle():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert "pickle." not in text and "allow_pickle=True" not in text
