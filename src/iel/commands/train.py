"""`iel train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iel.commands.pictures import draw_training
from iel.commands.runs import run_data, training_data
from iel.data import Trajectories
from iel.envs import make_env
from iel.errors import ConfigError
from iel.options import Train
from iel.training import open_runs, train
from iel.training.run import next_free


def train_command(options: Train) -> dict[str, Any]:
    """`iel train`."""
    algo = options.settings
    data, file = _data_to_continue(options) if options.resume is not None else _data_to_begin(options)
    out = options.resume or options.out or next_free(Path("runs"), f"{data.name}-{algo.name}")
    trained = train(
        data,
        algo,
        options.seeds,
        out=out,
        resume=options.resume is not None,
        checkpoint_every=options.checkpoint_every,
        tensorboard=options.tensorboard,
        data_file=file,
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


def _data_to_begin(options: Train) -> tuple[Trajectories, Path | None]:
    if options.env is None and options.data is None:
        raise ConfigError("Say what to train on: --env pointmaze-large-navigate-v0, or --data FILE.")
    if options.env is not None:
        make_env(options.env)  # an unknown name is refused before anything long starts
    return training_data(options.env, options.data, options.episodes), options.data


def _data_to_continue(options: Train) -> tuple[Trajectories, Path | None]:
    """The data of the run; `--env`, `--data` and `--algo` may be given again, and are then held against the run."""
    assert options.resume is not None
    run = open_runs(options.resume)[0]
    if options.out is not None and options.out != options.resume:
        raise ConfigError(f"--resume continues {options.resume} where it is; leave out --out.")
    for name, given, recorded in (("env", options.env, run.env), ("algo", options.algo, run.config["algo"])):
        if given is not None and given != recorded:
            raise ConfigError(f"{options.resume} cannot be resumed: {name} is {recorded} in the run and {given} now.")
    file = options.data or (Path(recorded) if (recorded := run.config["data"].get("file")) else None)
    return run_data(run, file), file
