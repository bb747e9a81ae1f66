"""Do the numpy model and its ONNX graphs say the same? Measured on every export before it gets its name.

Actions are compared as they are (they lie in [-1, 1]), costs relative to max(1, cost).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from iel.errors import RunError
from iel.model import Model
from iel.planning import Atlas, Direct

LIMIT = 1e-4
"""An export that disagrees by more than this is refused: ten times what tests allow on random models."""
ROWS = 256


def measure(model: Model, directory: Path) -> dict[str, Any]:
    """Largest differences of ONNX from numpy: {"rows", "onnx": {"action", "cost"} or None where there is no ONNX}."""
    result: dict[str, Any] = {"rows": ROWS, "onnx": None}
    if not (directory / "model.onnx").exists() or (onnxruntime := _onnxruntime()) is None:
        return result
    generator = np.random.default_rng(0)
    known = None if model.atlas is None else model.atlas.observations
    observations = generator.standard_normal((ROWS, model.observation_size)) if known is None else known
    states, goals = (np.asarray(generator.choice(observations, ROWS), np.float32) for _ in range(2))
    target = Direct(model, Atlas(states)).plan(goals).target(model.embed(states))
    expected = [model.act(states, model.command(states, target))]
    if model.metric is not None:
        expected.append(model.cost(states, goals, goals))
    session = onnxruntime.InferenceSession(str(directory / "model.onnx"), providers=["CPUExecutionProvider"])
    answers = session.run(None, {"observation": states, "goal": goals})
    result["onnx"] = {"action": float(np.abs(answers[0] - expected[0]).max())}
    if len(expected) > 1:
        relative = np.abs(answers[1] - expected[1]) / np.maximum(1.0, expected[1])
        result["onnx"]["cost"] = float(relative.max())
    for name, value in result["onnx"].items():
        if not value <= LIMIT:
            raise RunError(f"The ONNX export's {name} differs from the model's by {value:.1e}; it was not written.")
    return result


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:  # writing ONNX does not need it, only measuring does
        return None
    return onnxruntime
