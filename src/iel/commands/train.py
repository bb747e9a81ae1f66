"""`iel train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from iel.commands.pictures import draw_training
from iel.commands.runs import training_data
from iel.envs import make_env
from iel.errors import ConfigError
from iel.options import Train
from iel.training import train
from iel.training.run import next_free


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
