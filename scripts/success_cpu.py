"""Success against processor time: one curve per geometry, under one shared policy and one planner.

    python scripts/success_cpu.py OUT [--seeds 0 1 2] [--methods HTP QRL HILP IEL] [--moments 3 10 30 60 120]
    python scripts/success_cpu.py OUT --draw docs/images/success-cpu.png     # the picture, and the table

Data: `antmaze-large-navigate`, 380 episodes, or `--env`, `--data-episodes`. For each training seed one waypoint policy
is trained, and every geometry is trained alone (preset `laptop-robot-even`, of points `laptop`: raw columns; a share of
goals just behind where a method has it) and saved after the given processor seconds of gradient steps.
Compilation is counted apart. Step t of a geometry draws what it draws in `iel train` with the same seed. Each
snapshot then leads the policy of its seed: 10 episodes per task, evaluation seed 5000, the same starts and goals for
all. Run it on one core (`taskset -c 1`). What is finished is not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

import iel
from iel.data import Trajectories, load
from iel.evaluation import Arena, Protocol
from iel.evaluation.agreement import KnownMaze, agreements
from iel.files import new_directory, write_text
from iel.learner import Method, Settings
from iel.methods import get_method
from iel.model import load_model, save_model
from iel.planning import make_planner
from iel.policies import Waypoints
from iel.training.checkpoint import versions
from iel.training.loop import CHUNK, Trainer
from iel.viz.style import EDGE, LINES, panels, plain_log

NODES = 2048
"""Nodes of every planning graph."""
STATES = 60
"""States whose ordered pairs are compared with the exact steps of a point."""


Row = dict[str, Any]
Curves = dict[str, dict[int, list[Row]]]
"""By method and seed: facts and result of every snapshot."""


class Entry(NamedTuple):
    """A curve of the picture."""

    algo: str
    settings: Settings
    planner: str = "asym-graph"

    def method(self, env: str) -> Method:
        if env.startswith("pointmaze"):
            policy = Waypoints(steps=6_000, learning_rate=1e-3)
            return get_method(self.algo).preset("laptop", policy=policy, policy_hidden=(128,) * 3, **self.settings)
        policy = Waypoints(steps=24_000, learning_rate=1e-3)
        return get_method(self.algo).preset("laptop-robot-even", policy=policy, **self.settings)


BEHIND: Settings = {"p_behind": 0.2}
ENTRIES = {
    "HTP": Entry("htp", {}),
    # The latent model serves only a policy of QRL's own, which is not trained here.
    "QRL": Entry("qrl", {**BEHIND, "extraction": "awr"}),
    "QRL-128": Entry("qrl", {**BEHIND, "extraction": "awr", "hidden": (128, 128)}),
    "HILP": Entry("hilp", BEHIND, planner="sym-graph"),  # its distance is symmetric
    "IEL": Entry("iel", BEHIND),
}


def train_policy(data: Trajectories, seed: int, out: Path) -> None:
    """The waypoint policy of a seed; next to nothing is trained of the geometry beside it."""
    if not out.exists():
        mark = time.process_time()
        method = replace(ENTRIES["HTP"].method(data.name), steps=CHUNK)
        model = iel.train(data, method, seeds=[seed], progress=False).model
        print(f"policy of seed {seed}: {time.process_time() - mark:.0f} CPU s", flush=True)
        with new_directory(out) as partial:
            save_model(model, partial, versions())


def train_geometry(data: Trajectories, entry: Entry, seed: int, moments: Sequence[float], out: Path) -> None:
    """Train until the last moment, and save the model at each of them, with what it took."""
    wanted = [moment for moment in moments if not (out / f"{moment:g}").exists()]
    if not wanted:
        return
    trainer = Trainer(data, entry.method(data.name), [seed], {})
    used, start_up, end, before = 0.0, 0.0, 0, 0
    for number, phase in enumerate(trainer.phases):
        end += phase.steps
        if phase.slot == "policy":  # comes first and needs nothing of the geometry, nor the geometry of it
            trainer.step = before = end
            continue
        mark = time.process_time()
        advance = trainer.stepper(phase)
        advance(1)  # compiles
        start_up += time.process_time() - mark
        last = number == len(trainer.phases) - 1
        while wanted if last else trainer.step < end:
            mark = time.process_time()
            advance(CHUNK - trainer.step % CHUNK)
            used += time.process_time() - mark
            while wanted and used >= wanted[0]:
                facts = {"cpu": round(used, 2), "start_up": round(start_up, 2), "steps": trainer.step - before}
                with new_directory(out / f"{wanted.pop(0):g}") as partial:
                    save_model(trainer.models()[seed], partial / "model", versions())
                    write_text(partial / "facts.json", json.dumps(facts))
    print(f"{out.name}: {used:.0f} CPU s of steps, {start_up:.0f} of compilation", flush=True)


def evaluate(data: Trajectories, entry: Entry, policy: Path, snapshot: Path, arena: Arena) -> None:
    """Success of one snapshot, and the rank correlation of its distances with exact steps."""
    if (snapshot / "result.json").exists():
        return
    model = load_model(snapshot / "model").driven_by(load_model(policy))
    planner = make_planner(entry.planner, model, data, nodes=NODES)
    rollouts = arena.rollout(model, planner, entry.planner, progress=False)
    known = KnownMaze.of(data.name)
    assert known is not None
    some = data.observations[np.random.default_rng(0).choice(len(data.observations), STATES, replace=False)]
    order = agreements(model, {"metric": make_planner("direct", model, data)}, some, known)["metric"].order.value
    tasks = [float(rollouts.success[rollouts.tasks == task].mean()) for task in arena.tasks]
    result = {"success": float(rollouts.success.mean()), "tasks": tasks, "order": round(float(order), 4)}
    write_text(snapshot / "result.json", json.dumps(result))
    print(f"{snapshot.parent.name} at {snapshot.name} s: {json.dumps(result)}", flush=True)


def results(out: Path, methods: Sequence[str], seeds: Sequence[int]) -> Curves:
    """Every snapshot that was evaluated, in order of time."""
    found: Curves = {}
    for name in methods:
        for seed in seeds:
            done = [path.parent for path in (out / f"{name}-seed{seed}").glob("*/result.json")]
            rows = [
                {
                    "moment": float(path.name),
                    **json.loads((path / "facts.json").read_text()),
                    **json.loads((path / "result.json").read_text()),
                }
                for path in sorted(done, key=lambda path: float(path.name))
            ]
            if rows:
                found.setdefault(name, {})[seed] = rows
    return found


def draw(path: Path, panels_of: dict[str, Curves]) -> None:
    """A panel per title. Means as lines, thinner ones on top so that equal curves are all seen; dots are seeds."""
    names = dict.fromkeys(name for found in panels_of.values() for name in found)
    looks = {name: (colour, width) for name, colour, width in zip(names, LINES, (5.0, 3.6, 2.6, 1.8), strict=False)}
    with panels(path, len(panels_of), 2, (6.2, 3.7) if len(panels_of) == 1 else (4.1, 3.7)) as axes:
        for panel, (title, found) in zip(axes, panels_of.items(), strict=True):
            for order, (name, (colour, width)) in enumerate(looks.items()):
                if name in found:
                    _curve(panel, found[name], name, colour, width, 3 + order)
            panel.set(xscale="log", ylim=(0, 102), title=title)
            plain_log(panel.xaxis)
            panel.set_xlabel("CPU seconds of training the geometry")
            panel.grid(color=EDGE, alpha=0.25, linewidth=0.6)
        axes[0].set_ylabel("success, per cent")
        axes[0].legend(loc="lower right", fontsize=10)


def _curve(panel: Axes, seeds: dict[int, list[Row]], name: str, colour: str, width: float, order: int) -> None:
    moments = sorted(set.intersection(*({row["moment"] for row in rows} for rows in seeds.values())))
    common = [[row for row in rows if row["moment"] in moments] for rows in seeds.values()]
    cpu = np.array([[row["cpu"] for row in rows] for rows in common])
    success = 100 * np.array([[row["success"] for row in rows] for rows in common])
    look = {"color": colour, "zorder": order, "clip_on": False}
    panel.plot(cpu.mean(0), success.mean(0), lw=width, marker="o", ms=4.5 + 0.8 * width, label=name, **look)
    if len(seeds) > 1:
        panel.scatter(cpu, success, s=16, edgecolor="white", linewidth=0.5, **look)


def table(found: Curves) -> str:
    """The same as Markdown."""
    lines = [
        "| method | CPU s of steps | gradient steps | success by seed | mean | rank correlation by seed |",
        "|---|---|---|---|---|---|",
    ]
    for name, seeds in found.items():
        for moment in sorted({row["moment"] for rows in seeds.values() for row in rows}):
            rows = [row for own in seeds.values() for row in own if row["moment"] == moment]
            steps = ", ".join(f"{row['steps']:,}" for row in rows)
            success, order = (", ".join(text) for text in zip(*map(_cells, rows), strict=True))
            mean = 100 * np.mean([row["success"] for row in rows])
            lines.append(f"| {name} | {moment:g} | {steps} | {success} | {mean:.0f} | {order} |")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, str]:
    return f"{100 * row['success']:.0f}", f"{row['order']:.3f}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("out", type=Path, nargs="+", help="with --draw: a directory per panel")
    options.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options.add_argument("--methods", nargs="+", choices=ENTRIES, default=["HTP", "QRL", "HILP", "IEL"])
    options.add_argument("--moments", type=float, nargs="+", default=[3.0, 10.0, 30.0, 60.0, 120.0])
    options.add_argument("--seed", type=int, default=5000, help="evaluation seed")
    options.add_argument("--episodes", type=int, default=10, help="per task")
    options.add_argument("--env", default="antmaze-large-navigate-v0")
    options.add_argument("--data-episodes", type=int, default=380)
    options.add_argument("--draw", type=Path)
    options.add_argument("--titles", nargs="+", default=["antmaze-large-navigate"], help="of the panels")
    given = options.parse_args()
    if given.draw:
        chosen = given.methods, given.seeds
        found = {title: results(out, *chosen) for title, out in zip(given.titles, given.out, strict=True)}
        draw(given.draw, found)
        for title, curves in found.items():
            print(f"{title}\n\n{table(curves)}\n")
        return
    (out,) = given.out
    data = load(given.env, episodes=given.data_episodes)
    arena = Arena(given.env, Protocol(given.episodes, seed=given.seed), reference=data.observations[0])
    for seed in given.seeds:
        policy = out / f"policy-seed{seed}"
        train_policy(data, seed, policy)
        for name in given.methods:
            train_geometry(data, ENTRIES[name], seed, given.moments, out / f"{name}-seed{seed}")
        for name in given.methods:
            for moment in reversed(given.moments):  # episodes that succeed are short
                snapshot = out / f"{name}-seed{seed}" / f"{moment:g}"
                evaluate(data, ENTRIES[name], policy, snapshot, arena)


if __name__ == "__main__":
    main()
