"""A trained run as a directory to copy to a robot.

    DIR/
      config.json, model.safetensors               the frozen model, as in RUN/model
      model.onnx, act.onnx, embed.onnx, omega.onnx the same as ONNX graphs (`iel.export.graphs`)
      planner.safetensors                          states to plan over: observations, embeddings (with --nodes)
      card.json, README.txt                        where it comes from and how to use it, for programs and for people
      manifest.json                                sha256 and size of every file above

It is written beside its final name, verified, and only then renamed: a directory of that name is whole.
"""

from __future__ import annotations

import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

import iel
from iel.agent import Agent
from iel.errors import ConfigError, RunError
from iel.export.graphs import IR_VERSION, OPSET, build_graphs, require_onnx, signatures
from iel.files import new_directory, seal, write_json
from iel.model import Model
from iel.model.atlas import Atlas, Source
from iel.model.files import MANIFEST_FORMAT, read_model
from iel.planning import Direct
from iel.training import Run

CARD_FORMAT = 1
LIMIT = 1e-4
"""An export whose ONNX graphs disagree by more than this is refused: ten times what tests allow on random models."""
ROWS = 256
"""Inputs that are compared."""


def export_run(
    run: Run,
    out: Path,
    *,
    data: Source | None = None,
    nodes: int | None = None,
    coreset: str = "farthest",
    witnesses: float | None = None,
    onnx: bool = True,
) -> dict[str, Any]:
    """Write the run's model to `out` and return its card; with `nodes`, states of `data` are taken along, and who was
    seen to pass between them (`witnesses` as of `AsymGraph`) and what throws one elsewhere.
    """
    if onnx:
        require_onnx()  # said before anything is written
    model = run.model
    if nodes is not None and model.metric is None:
        raise ConfigError(f"{run.config['algo']} has no distances to plan with; export it without --nodes.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} already exists; choose another --out, or remove it.")
    if witnesses is not None and nodes is None:
        raise ConfigError("Witnesses belong to the states of a graph; say how many, --nodes 2048.")
    if data is None or nodes is None:
        agent = Agent(model, planner="direct")
    else:
        agent = Agent(model, data, nodes=nodes, coreset=coreset, witnesses=witnesses)
    try:
        with new_directory(out) as partial:
            agent.write(partial)
            written = read_model(partial)
            graphs = build_graphs(written) if onnx else {}
            for name, graph in graphs.items():
                (partial / name).write_bytes(graph.SerializeToString(deterministic=True))
            card = _card(run, written, coreset, graphs)
            card["agreement"] = agreement(written, partial)
            write_json(partial / "card.json", card)
            (partial / "README.txt").write_text(readme(card))
            seal(partial, MANIFEST_FORMAT, versions())
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise RunError(
            f"{out} could not be written ({reason or error}); free some space, or choose another --out."
        ) from error
    return card


def agreement(model: Model, directory: Path) -> dict[str, Any]:
    """Largest differences of ONNX from numpy: {"rows", "onnx": {"action", "cost"} or None where there is no ONNX}.

    Actions are compared as they are (they lie in [-1, 1]), costs relative to max(1, cost).
    """
    result: dict[str, Any] = {"rows": ROWS, "onnx": None}
    # writing ONNX does not need the runtime, only measuring does
    if not (directory / "model.onnx").exists() or importlib.util.find_spec("onnxruntime") is None:
        return result
    import onnxruntime

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


def versions() -> dict[str, str]:
    """Of everything that had a hand in the files."""
    found = {"iel": iel.__version__, "python": platform.python_version()}
    for package in ("jax", "numpy", "onnx", "onnxruntime"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _card(run: Run, model: Model, coreset: str, graphs: dict[str, Any]) -> dict[str, Any]:
    facts, metric = run.config, model.metric
    return {
        "format": CARD_FORMAT,
        "env": run.env,
        "algo": facts["algo"],
        "seed": run.seed,
        "status": run.status,
        "step": facts.get("step"),
        "settings": facts["settings"],
        "data": facts.get("data"),
        "versions": versions(),
        "interface": {
            "observation": {"size": model.observation_size, "type": "float32"},
            "action": {"size": model.action_size, "type": "float32", "low": -1.0, "high": 1.0},
            "command": {"size": model.command_size, "steering": model.steering.kind},
            "embedding": {"size": model.dimension},
            "metric": metric and {name: getattr(metric, name, None) for name in ("beta", "discount")},
        },
        "onnx": {"opset": OPSET, "ir_version": IR_VERSION, "files": signatures(graphs)} if graphs else None,
        "planner": model.atlas and {"nodes": len(model.atlas), "coreset": coreset, "witnesses": model.atlas.penalty},
    }


def readme(card: dict[str, Any]) -> str:
    """README.txt of an export."""
    interface, data, agreement = card["interface"], card["data"] or {}, card["agreement"]
    size, actions = interface["observation"]["size"], interface["action"]["size"]
    lines = [
        f"A goal-reaching policy: {card['algo']} trained on {card['env']}, seed {card['seed']}, step {card['step']}.",
        *([] if card["status"] == "finished" else [f"Its training is not finished ({card['status']})."]),
        f"Data: {data.get('name', 'unknown')}, {data.get('transitions', '?')} transitions, "
        f"fingerprint {data.get('fingerprint', 'unknown')}.",
        "Written with " + ", ".join(f"{name} {number}" for name, number in card["versions"].items()) + ".",
        "",
        f"Observations and goals are {size} float32 numbers in the order and units of that data; goals are full",
        f"observations. Actions are {actions} float32 numbers within [-1, 1].",
        "",
        "Python without JAX (needs numpy, scipy, safetensors and msgspec):",
        "    from iel import load_model",
        "    model = load_model('.')",
    ]
    if card["planner"]:
        lines.append(
            f"    planner = model.planner('asym-graph')    # over {card['planner']['nodes']} states of the data"
        )
    else:
        lines.append("    planner = model.planner('direct')    # straight for the goal")
    lines += ["    planner.prepare(goal)", "    action = planner.act(observation)"]
    if card["onnx"]:
        lines += ["", f"ONNX (opset {card['onnx']['opset']}, float32, first axis is the batch):"]
        lines += [f"    {name:<12} {signature}" for name, signature in card["onnx"]["files"].items()]
    if agreement["onnx"]:
        found = "; ".join(f"{name} {value:.1e}" for name, value in agreement["onnx"].items())
        lines += ["", f"Largest differences of ONNX from numpy on {agreement['rows']} inputs (cost relative): {found}."]
    lines += ["", "manifest.json holds sha256 sums of all files."]
    return "\n".join(lines) + "\n"
