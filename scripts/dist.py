"""Build the wheel and the source archive, and try them in clean environments: `make dist`. For maintainers.

    python scripts/dist.py                                # every Python of PYTHONS that this machine has
    python scripts/dist.py --pythons 3.11 --dependencies lowest

The matrix is Python times dependencies: `highest` takes the newest versions that pyproject.toml allows, `lowest` the
oldest that it names and that have wheels for that Python. Every environment runs SMOKE in an empty directory: train on
arrays, act, save, load without JAX, step a simulator, start the server, run commands. Where the extra `sim` has no
wheels, the rest is tried without it and the line says so. A Python that is not on this machine is printed as missing.
`uv` makes the environments.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
DEPENDENCIES = ("highest", "lowest")
EXTRAS = "serve,onnx,parquet"

SMOKE = """
import importlib.util, json, socket, subprocess, sys, time, urllib.request
from pathlib import Path

import numpy as np
import iel, iel.export, iel.serving, iel.viz

assert Path(iel.__file__).is_relative_to(sys.prefix), f"{iel.__file__} is not the installed package"
rng = np.random.default_rng(0)
episodes = []
for _ in range(20):
    moves = rng.uniform(-1, 1, (50, 2))
    episodes.append((np.vstack([np.zeros((1, 2)), np.cumsum(0.3 * moves, axis=0)]), moves))
data = iel.Trajectories.from_episodes(episodes, name="walks")
method = iel.HTP.preset("smoke", steps=40, policy=iel.Waypoints(steps=40))
agent = iel.fit(data, method, out="run", progress=False)
action = agent.act([0.0, 0.0], [1.0, 1.0])
agent.save("agent")
same = "import iel, sys; print(iel.load_agent('agent').act([0.0, 0.0], [1.0, 1.0]).tolist(), 'jax' in sys.modules)"
printed = subprocess.run([sys.executable, "-c", same], check=True, capture_output=True, text=True).stdout.strip()
assert printed == f"{action.tolist()} False", (printed, action.tolist())

if importlib.util.find_spec("mujoco"):
    env = iel.make_env("pointmaze-medium-navigate-v0")
    observation, info = env.reset(seed=0, options={"task_id": 1})
    assert np.isfinite(env.step(np.zeros(2))[0]).all()

iel_command = str(Path(sys.executable).with_name("iel"))
data.save("walks.npz")
export = "export run --out exported --nodes 50"
for words in ("--help", "methods", "doctor", "data check walks.npz", "audit run", export):
    done = subprocess.run([iel_command, *words.split()], capture_output=True, text=True)
    assert done.returncode == 0, f"iel {words}: {done.stdout}{done.stderr}"

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
server = subprocess.Popen([iel_command, "serve", "exported", "--port", str(port)])
try:
    for attempt in range(300):
        try:
            content = json.dumps({"observation": [0.0, 0.0], "goal": [1.0, 1.0]}).encode()
            address = f"http://127.0.0.1:{port}/v1/act"
            request = urllib.request.Request(address, content, {"content-type": "application/json"})
            answer = json.load(urllib.request.urlopen(request))
            break
        except ConnectionError:
            time.sleep(0.1)
        except urllib.error.URLError:
            time.sleep(0.1)
    assert np.shape(answer["action"]) == (2,), answer
finally:
    server.terminate()
    server.wait()
"""


def run(words: list[str | Path], folder: Path | None = None, **environment: str) -> None:
    """A command; one that fails raises CalledProcessError with what it printed."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    subprocess.run(words, cwd=folder, env={**outside, **environment}, check=True, capture_output=True, text=True)


def find_python(version: str) -> Path | None:
    """An interpreter of this version: on PATH, or one that pyenv has."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in (*sorted(pyenv.glob(f"{version}.*/bin/python{version}")), shutil.which(f"python{version}")):
        if candidate and subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return Path(candidate)
    return None


def build(uv: str, folder: Path) -> list[Path]:
    """The wheel and the source archive, alone in `dist`."""
    shutil.rmtree(folder, ignore_errors=True)
    run([uv, "build", "--out-dir", folder, ROOT])
    return [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]


def smoke(uv: str, python: Path, dependencies: str, package: Path) -> str:
    """Install one archive into a new environment and run SMOKE there; what could be tried, for people."""
    with tempfile.TemporaryDirectory(prefix="iel-dist-") as name:
        folder = Path(name)
        run([uv, "venv", "--python", python, folder / "venv"])
        interpreter = folder / "venv" / "bin" / "python"
        words: list[str | Path] = [uv, "pip", "install", "--python", interpreter]
        words += ["--resolution", "lowest-direct"] if dependencies == "lowest" else []
        words += ["--only-binary", ":all:", *(["--no-binary", "iel"] if package.suffix == ".gz" else [])]
        try:
            run([*words, f"iel[sim,{EXTRAS}] @ {package.as_uri()}"])
            tried = "works"
        except subprocess.CalledProcessError as error:
            missing = re.search(r"all versions of (\S+) have no usable wheels", " ".join(error.stderr.split()))
            if missing is None:
                raise
            run([*words, f"iel[{EXTRAS}] @ {package.as_uri()}"])
            tried = f"works without simulators ({missing[1]} has no wheel)"
        (folder / "empty").mkdir()
        run([interpreter, "-c", SMOKE], folder / "empty", JAX_PLATFORMS="cpu", MPLBACKEND="agg")
        return tried


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--dependencies", nargs="+", default=DEPENDENCIES, choices=DEPENDENCIES)
    options = parser.parse_args()
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        sys.exit("dist: uv makes the clean environments; install it with `pip install uv`.")
    wheel, source = build(uv, ROOT / "dist")
    print(f"built {wheel.name} and {source.name}")
    failed = False
    for version in options.pythons:
        python = find_python(version)
        for dependencies in options.dependencies:
            for package in (wheel, source) if (version, dependencies) == (options.pythons[0], "highest") else (wheel,):
                row = f"Python {version:5} {dependencies:8} {package.suffix.lstrip('.'):4}"
                if python is None:
                    print(row, "not tried: no such Python here")
                    continue
                try:
                    print(row, smoke(uv, python, dependencies, package), flush=True)
                except subprocess.CalledProcessError as error:
                    failed = True
                    print(row, "FAILED:", (error.stdout + error.stderr)[-3000:], flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
