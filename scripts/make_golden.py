"""Write this release's golden models: tests/golden/VERSION, which every later release must still load and agree with.

    python scripts/make_golden.py

One tiny model of every kind, inputs, and its outputs for them. What an earlier release wrote stays.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import iel  # noqa: E402
from benchmarks.runtime import KINDS, random_model  # noqa: E402
from iel.model import save_model  # noqa: E402
from iel.planning import Atlas, make_planner  # noqa: E402
from iel.serial import save_arrays  # noqa: E402


def main() -> None:
    target = ROOT / "tests" / "golden" / iel.__version__
    if target.exists():
        sys.exit(f"{target} exists; golden files are never rewritten, raise the version first")
    for number, kind in enumerate(KINDS):
        model, generator = random_model(kind, (8, 8), 3, 2, 4, number), np.random.default_rng(number)
        states, goals = (2.0 * generator.standard_normal((2, 16, 3))).astype(np.float32)
        aim = make_planner("direct", model, Atlas(states)).plan(goals).target(model.embed(states))
        commands = model.command(states, aim)
        arrays = {"observations": states, "goals": goals, "commands": commands, "embed": model.embed(states)}
        arrays["act"] = model.act(states, commands)
        if model.metric is not None:
            arrays["cost"], arrays["steps"] = model.cost(states, goals, goals), model.steps(states, goals)
        save_model(model, target / kind)
        save_arrays(target / kind / "expected.safetensors", arrays)
    print(f"written to {target}; add it to the repository")


if __name__ == "__main__":
    main()
