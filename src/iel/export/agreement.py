"""Do JAX, numpy and ONNX say the same? Measured on every export before it gets its name.

Actions are compared as they are (they lie in [-1, 1]), distances relative to max(1, d).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from iel.errors import RunError
from iel.planning import Direct
from iel.runtime import Pack, Runtime

LIMIT = 1e-4
"""An export that disagrees by more than this is refused: ten times what tests allow on random models."""
ROWS = 256


def measure(model: Any, runtime: Runtime, directory: Path, observations: np.ndarray | None) -> dict[str, Any]:
    """Largest differences from `model` (JAX): {"numpy": {"action", "distance"}, "onnx": the same or None}."""
    generator = np.random.default_rng(0)
    if observations is None:
        observations = generator.standard_normal((ROWS, runtime.config.observation_size))
    states, goals = (np.asarray(generator.choice(observations, ROWS), np.float32) for _ in range(2))
    straight = Direct(model, Pack(states, states)).plan(goals).directions(model.embed(states)).astype(np.float32)
    actions = model.act(states, straight)
    distances = model.distance(states, goals, goals) if runtime.has_distance else None
    own = runtime.distance(states, goals, goals) if runtime.has_distance else None
    result: dict[str, Any] = {"rows": ROWS, "onnx": None}
    result["numpy"] = _differences((runtime.act(states, straight), actions), (own, distances), "numpy")
    if (directory / "model.onnx").exists() and (onnxruntime := _onnxruntime()) is not None:
        session = onnxruntime.InferenceSession(str(directory / "model.onnx"), providers=["CPUExecutionProvider"])
        action, *rest = session.run(None, {"observation": states, "goal": goals})
        result["onnx"] = _differences((action, actions), (rest[0] if rest else None, distances), "ONNX")
    return result


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:  # writing ONNX does not need it, only measuring does
        return None
    return onnxruntime


def _differences(actions: tuple[Any, Any], distances: tuple[Any, Any], what: str) -> dict[str, float]:
    result = {"action": float(np.abs(actions[0] - actions[1]).max())}
    if distances[1] is not None:
        result["distance"] = float((np.abs(distances[0] - distances[1]) / np.maximum(1.0, distances[1])).max())
    for name, value in result.items():
        if not value <= LIMIT:
            raise RunError(f"The {what} export's {name} differs from the model's by {value:.1e}; it was not written.")
    return result
