"""Write this release's golden models: tests/golden/VERSION, which every later release must still load and agree with.

    python -m scripts.make_golden

One tiny model of every kind, inputs, and the outputs JAX gives for them. What an earlier release wrote stays.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import iel
from benchmarks.runtime import trained_like
from iel.algos.contract import Spec
from iel.algos.model import ModelConfig, goal_model_config
from iel.serial import save_arrays

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
SPEC = Spec(3, 2)
CONFIGS = {
    "directed": ModelConfig("iel", 3, 2, 4, (8, 8), 0.3, 0.99),
    "euclidean": ModelConfig("hilp", 3, 2, 4, (8, 8), 0.0, 0.99, directed=False),
    "goal": goal_model_config("gcbc", SPEC, (8, 8), 0.99),
    "goal-value": goal_model_config("gcivl", SPEC, (8, 8), 0.99, value="state"),
    "goal-critic": goal_model_config("gccql", SPEC, (8, 8), 0.99, value="action", squashed=True),
}


def main() -> None:
    target = GOLDEN / iel.__version__
    if target.exists():
        sys.exit(f"{target} exists; golden files are never rewritten, raise the version first")
    for number, (name, config) in enumerate(CONFIGS.items()):
        model, generator = trained_like(config, number), np.random.default_rng(number)
        states, goals = (2.0 * generator.standard_normal((2, 16, 3))).astype(np.float32)
        directions = model.task(goals)
        arrays = {"observations": states, "goals": goals, "directions": directions, "embed": model.embed(states)}
        arrays["act"] = model.act(states, directions)
        if model.has_distance:
            arrays["distance"] = model.distance(states, goals, goals)
            arrays["hitting_time"] = model.hitting_time(states, goals)
        model.save(target / name)
        save_arrays(target / name / "expected.safetensors", arrays)
    print(f"written to {target}; add it to the repository")


if __name__ == "__main__":
    main()
