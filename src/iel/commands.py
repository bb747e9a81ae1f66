"""What the commands do between parsing and printing: each is a short story over the other rooms."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from iel.data import Trajectories, load
from iel.data.catalogue import find
from iel.envs import make_env
from iel.errors import ConfigError, DataError, unknown_name
from iel.evaluation import Arena, Protocol, Rollouts
from iel.evaluation.report import summarise, table
from iel.options import AuditCommand, DataInfo, Evaluate, PlanCommand, PlannerSettings, Train
from iel.planning import PLANNERS, make_planner
from iel.theory import Teleports, audit_embedding, draw_audit, maze_from_map, steps_between
from iel.training import Run, open_run, open_runs, train
from iel.training.checkpoint import write_json
from iel.training.run import next_free
from iel.training.trackers import read_metrics


def train_command(options: Train) -> dict[str, Any]:
    """`iel train`."""
    if options.env is None and options.data is None:
        raise ConfigError("Say what to train on: --env pointmaze-large-navigate-v0, or --data FILE.npz.")
    if options.env is not None:
        make_env(options.env)  # an unknown name is refused before anything long starts
    data = training_data(options.env, options.data, options.episodes)
    algo = options.settings
    out = options.out or next_free(Path("runs"), f"{data.name}-{algo.name}")
    trained = train(
        data,
        algo,
        options.seeds,
        out=out,
        checkpoint_every=options.checkpoint_every,
        tensorboard=options.tensorboard,
    )
    for run in trained.runs.values():
        draw_training(run)
    if not options.json:
        print(f"trained in {trained.seconds:.0f} s; next: iel evaluate {out}")
    return {
        "run": str(out),
        "runs": [str(run.path) for run in trained.runs.values()],
        "env": data.name,
        "algo": algo.name,
        "steps": algo.steps,
        "seeds": list(options.seeds),
        "seconds": round(trained.seconds, 2),
    }


def evaluate_command(options: Evaluate) -> dict[str, Any]:
    """`iel evaluate`."""
    for name in options.planners:
        if name not in PLANNERS:
            raise unknown_name("planner", name, PLANNERS)
    runs = open_runs(options.run)
    protocol = Protocol(options.episodes, options.tasks, options.seed)
    summary = evaluate_runs(runs, options.planners, protocol, options.planning, options.pictures)
    if not options.json:
        Console().print(table(summary))
        print(f"written to {runs[0].path / 'evaluations'}")
    return summary


def evaluate_runs(
    runs: Sequence[Run], planners: Sequence[str], protocol: Protocol, planning: PlannerSettings, pictures: bool = True
) -> dict[str, Any]:
    """Evaluate every run with every planner on the same episodes; writes JSON (and pictures) into each run."""
    env = environment_of(runs[0])
    arena = Arena(env, protocol)
    results: dict[str, list[Rollouts]] = {name: [] for name in planners}
    for run in runs:
        data = run_data(run, planning.data)
        own: dict[str, Rollouts] = {}
        for name in planners:
            planner = make_planner(name, run.model, data, **planner_settings(name, planning))
            own[name] = arena.rollout(run.model, planner, name)
            results[name].append(own[name])
        summary = summarise(env, arena, {name: [rollouts] for name, rollouts in own.items()})
        stamp = time.strftime("%Y%m%d-%H%M%S")
        write_json(run.folder("evaluations") / f"{stamp}-seed{protocol.seed}.json", summary)
        if pictures:
            draw_evaluation(run, arena, own, planner)
    return summarise(env, arena, results)


def plan_command(options: PlanCommand) -> dict[str, Any]:
    """`iel plan`."""
    graphs = [name for name in PLANNERS if name.endswith("graph")]
    if options.planner not in graphs:
        raise unknown_name("graph planner", options.planner, graphs)
    run = open_run(options.run)
    data = run_data(run, options.planning.data)
    env = make_env(environment_of(run))
    observation, info = env.reset(seed=options.seed, options={"task_id": options.task})
    start = np.asarray(observation if options.start is None else options.start, np.float32)
    goal = np.asarray(info["goal"] if options.goal is None else options.goal, np.float32)
    planner = make_planner(options.planner, run.model, data, **planner_settings(options.planner, options.planning))
    planner.prepare(goal)
    way = planner.path(start)
    picture = options.picture or run.folder("plots") / "plan.png"
    draw_plan(picture, env.map, planner, start, goal, way)
    waypoints = np.asarray(way.observations)
    if not options.json:
        print(f"{len(waypoints)} waypoints, {way.total:.1f} predicted steps from start to goal")
        for number, (waypoint, remaining) in enumerate(zip(waypoints, way.steps_to_go[1:], strict=True)):
            print(f"  {number:3d}  {np.array2string(waypoint, precision=2)}  {remaining:.1f} steps to go")
        print(f"drawn in {picture}")
    return {
        "planner": options.planner,
        "start": start.tolist(),
        "goal": goal.tolist(),
        "waypoints": waypoints.tolist(),
        "costs": np.asarray(way.costs).tolist(),
        "predicted_steps": way.total,
        "picture": str(picture),
    }


def audit_command(options: AuditCommand) -> dict[str, Any]:
    """`iel audit`."""
    run = open_run(options.run)
    data = audit_data(run, options.data)
    observations, model = data.observations, run.model
    audit = audit_embedding(
        model.embed(observations),
        data.actions,
        data.offsets,
        predicted=lambda i, j: model.hitting_time(observations[i], observations[j]),
        task=lambda goals: model.task(observations[goals]),
        exact=exact_steps(run, observations),
        generator=np.random.default_rng(options.seed),
    )
    picture = options.picture or run.folder("plots") / "audit.png"
    draw_audit(audit, picture)
    if not options.json:
        print("\n".join(audit.sentences()))
        print(f"drawn in {picture}")
    return {"run": str(run.path), "data": data.name, "picture": str(picture), **audit.to_dict()}


def audit_data(run: Run, file: Path | None) -> Trajectories:
    """Trajectories training never saw: the validation set that was made with the training set, or a file."""
    facts = run.config["data"]
    for episodes in (None, facts["episodes"]):
        if file is None and (path := find(facts["name"], episodes, split="val")):
            return load(path)
    return run_data(run, file)


def exact_steps(run: Run, observations: np.ndarray) -> Any:
    """(i, j) -> the fewest steps the maze allows between stored states, where the environment has a map."""
    if not run.env.startswith("pointmaze"):
        return None
    simulator: Any = make_env(run.env).unwrapped
    info = simulator._teleport_info
    radius = 1.5  # OGBench's teleports swallow whatever comes within one and a half radii
    teleports = info and Teleports(info["teleport_in_ijs"], info["teleport_out_ijs"], radius * info["teleport_radius"])
    maze = maze_from_map(simulator.maze_map, subcells=8, margin=0.7, teleports=teleports)
    return lambda i, j: steps_between(maze, observations[i, :2], observations[j, :2], step=0.2)


def data_info_command(options: DataInfo) -> dict[str, Any]:
    """`iel data info`."""
    data = load(options.name, episodes=options.episodes, make=False)
    lengths = np.diff(data.offsets) - 1
    facts = {
        "name": data.name,
        "episodes": len(data),
        "transitions": data.num_transitions,
        "observation_size": data.observation_size,
        "action_size": data.action_size,
        "shortest_episode": int(lengths.min()),
        "longest_episode": int(lengths.max()),
        "observation_low": data.observations.min(0).tolist(),
        "observation_high": data.observations.max(0).tolist(),
        "fingerprint": data.fingerprint,
    }
    if not options.json:
        for name, value in facts.items():
            print(f"{name:18} {value}")
    return facts


# ---------------------------------------------------------------- data, environment and planners of a run


def training_data(env: str | None, file: Path | None, episodes: int | None) -> Trajectories:
    """The environment's data set, or a file that stands in for it (and takes its name)."""
    if file is None:
        assert env is not None
        return load(env, episodes=episodes)
    data = load(file) if str(file).endswith(".npz") else None
    if data is None:
        raise DataError(f"{file} is not an npz file; convert the log to OGBench's layout (docs/formats.md).")
    return data if env is None else Trajectories(data.observations, data.actions, data.offsets, env)


def environment_of(run: Run) -> str:
    """The run's environment, refused when it was trained on a file without one."""
    try:
        make_env(run.env)
    except ConfigError:
        raise ConfigError(f"{run.path} was trained on '{run.env}', which has no environment to act in.") from None
    return run.env


def run_data(run: Run, file: Path | None) -> Trajectories:
    """The data a run was trained on (planners take their nodes from it); other data must be asked for."""
    if file is not None:
        return training_data(run.env, file, None)
    facts = run.config["data"]
    for episodes in (None, facts["episodes"]):
        if path := find(facts["name"], episodes):
            data = load(path)
            if data.fingerprint == facts["fingerprint"]:
                return Trajectories(data.observations, data.actions, data.offsets, run.env)
    raise DataError(
        f"The data {run.path} was trained on ('{facts['name']}', {facts['episodes']} episodes) is not on this machine; "
        f"make it again with `iel data make {facts['name']} --episodes {facts['episodes']}`, or give --data FILE."
    )


def planner_settings(name: str, planning: PlannerSettings) -> dict[str, Any]:
    """Only graph planners have a graph to configure."""
    if not name.endswith("graph"):
        return {}
    settings: dict[str, Any] = {"nodes": planning.nodes, "neighbours": planning.neighbours}
    return settings if planning.coreset is None else {**settings, "coreset": planning.coreset}


# ---------------------------------------------------------------- pictures


def draw_training(run: Run) -> None:
    """RUN/plots/curves.png."""
    from iel.viz import draw_curves

    draw_curves(run.folder("plots") / "curves.png", read_metrics(run.path / "metrics.csv"))


def draw_evaluation(run: Run, arena: Arena, results: dict[str, Rollouts], planner: Any) -> None:
    """Field of the first goal, rollouts and curves into RUN/plots."""
    from iel.viz import draw_rollouts

    plots = run.folder("plots")
    draw_fields(plots / "field.png", arena.envs[0].map, planner, next(iter(results.values())).goals[0])
    draw_rollouts(plots / "rollouts.png", arena.envs[0].map, results)
    draw_training(run)


def draw_fields(picture: Path, maze: Any, planner: Any, goal: np.ndarray) -> None:
    """Predicted steps to a goal: as the network says directly, and (for a graph planner) summed along the graph."""
    from iel.viz import draw_field

    def direct(observations: np.ndarray) -> np.ndarray:
        return planner.model.hitting_time(observations, np.tile(goal, (len(observations), 1)))

    def along_graph(observations: np.ndarray) -> np.ndarray:
        embeddings = planner.model.embed(observations)
        return planner.plan(goal[None]).costs(embeddings, rows=np.zeros(len(embeddings), np.int64))

    fields = {"learned hitting time": direct}
    if planner.name.endswith("graph"):
        fields["the same, added up along the planning graph"] = along_graph
    draw_field(picture, maze, goal, fields, planner.observations[0])


def draw_plan(picture: Path, maze: Any, planner: Any, start: np.ndarray, goal: np.ndarray, way: Any) -> None:
    """The planning graph at the positions of its nodes, and the way through it."""
    from iel.viz import draw_graph

    nodes = planner.observations[planner.states][:, :2]
    route = np.concatenate([start[None, :2], np.asarray(way.observations)[:, :2], goal[None, :2]])
    edges = planner.graph.edges(planner.model.task(goal[None])[0])
    pairs = np.stack([edges.source, edges.target], 1)
    title = f"{way.total:.0f} predicted steps over {len(way.nodes)} waypoints"
    draw_graph(picture, maze, nodes, pairs, route, start, goal, title)
