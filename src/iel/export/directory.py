"""A trained run as a directory to copy to a robot.

    DIR/
      config.json, model.safetensors               the frozen model, as in RUN/model
      model.onnx, act.onnx, embed.onnx, omega.onnx the same as ONNX graphs (`iel.export.graphs`)
      planner.safetensors                          states to plan over: observations, embeddings (with --nodes)
      card.json, README.md                         where it comes from and how to use it (`iel.card`)
      manifest.json                                sha256 and size of every file above

It is written beside its final name, verified, and only then renamed: a directory of that name is whole.
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError

from iel.agent import Agent
from iel.card import card_of, write_card
from iel.errors import ConfigError, RunError
from iel.evaluation.result import results_of, summary_of
from iel.export.graphs import IR_VERSION, OPSET, build_graphs, require_onnx, signatures
from iel.files import new_directory, seal
from iel.model import Model, load_model
from iel.model.atlas import Atlas, Source
from iel.model.files import MANIFEST_FORMAT, read_model
from iel.planning import Direct
from iel.training import Run

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
    unobserved_cost: float | None = None,
    onnx: bool = True,
    licence: str | None = None,
) -> dict[str, Any]:
    """Write the run's model to `out` and return its card; with `nodes`, states of `data` are exported too, with their
    observed edges (`unobserved_cost` as of `AsymGraph`) and teleports.

    The card holds the run's evaluations so far, and the `licence` under which others may use the agent.
    """
    if onnx:
        require_onnx()  # said before anything is written
    model = run.model
    if nodes is not None and model.metric is None:
        raise ConfigError(f"{run.config['algo']} has no distances to plan with; export it without --nodes.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(f"{out} already exists; choose another --out, or remove it.")
    if unobserved_cost is not None and nodes is None:
        raise ConfigError("Observed edges belong to the states of a graph; say how many, --nodes 2048.")
    if data is None or nodes is None:
        agent = Agent(model, planner="direct")
    else:
        agent = Agent(model, data, "asym-graph", nodes=nodes, coreset=coreset, unobserved_cost=unobserved_cost)
    try:
        with new_directory(out) as partial:
            agent.write(partial)
            seal(partial, MANIFEST_FORMAT, {})
            written = read_model(partial)
            graphs = build_graphs(written) if onnx else {}
            for name, graph in graphs.items():
                (partial / name).write_bytes(graph.SerializeToString(deterministic=True))
            onnx_facts = {"opset": OPSET, "ir_version": IR_VERSION, "files": signatures(graphs)} if graphs else None
            origin = {**run.config, "licence": licence, "evaluations": evaluations(run)}
            card = card_of(written, written.atlas, origin, onnx=onnx_facts, agreement=agreement(written, partial))
            write_card(partial, card)
            seal(partial, MANIFEST_FORMAT, card["versions"])
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise RunError(
            f"{out} could not be written ({reason or error}); free some space, or choose another --out."
        ) from error
    return card


def evaluations(run: Run) -> list[dict[str, Any]]:
    """What was measured of the run's last step, as its card shows it."""
    return [
        {
            "env": result.env,
            "planner": result.planner,
            **{name: summary_of([result.episodes])[name] for name in ("success_rate", "interval")},
            **{name: result.protocol[name] for name in ("tasks", "episodes_per_task", "max_steps")},
        }
        for result in results_of(run)
        if result.step == run.config.get("step")
    ]


def check_export(directory: Path) -> dict[str, Any]:
    """Refuse an export that is not whole or whose ONNX graphs disagree with the model; its files and what was found."""
    model = load_model(directory)
    return {"files": file_sizes(directory), "agreement": agreement(model, directory)}


def file_sizes(directory: Path) -> dict[str, int]:
    """Bytes of every file of an export."""
    return {path.name: path.stat().st_size for path in sorted(directory.iterdir())}


def agreement(model: Model, directory: Path) -> dict[str, Any]:
    """The largest difference of ONNX from numpy: {"rows", "onnx": {"action": ...}}, None without ONNX."""
    # writing ONNX does not need the runtime, only measuring does
    if not (directory / "model.onnx").exists() or importlib.util.find_spec("onnxruntime") is None:
        return {"rows": ROWS, "onnx": None}
    import onnxruntime

    generator = np.random.default_rng(0)
    known = None if model.atlas is None else model.atlas.observations
    observations = generator.standard_normal((ROWS, model.observation_size)) if known is None else known
    states, goals = (np.asarray(generator.choice(observations, ROWS), np.float32) for _ in range(2))
    target = Direct(model, Atlas(states)).plan(goals).target(model.embed(states))
    expected = model.act(states, model.command(states, target))
    session = onnxruntime.InferenceSession(str(directory / "model.onnx"), providers=["CPUExecutionProvider"])
    (actions,) = session.run(None, {"observation": states, "goal": goals})
    difference = float(np.abs(actions - expected).max())
    if not difference <= LIMIT:
        raise RunError(f"The ONNX export's action differs from the model's by {difference:.1e}; export again.")
    return {"rows": ROWS, "onnx": {"action": difference}}
