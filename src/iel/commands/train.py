"""`iel train`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from iel.commands.common import ADVANCED, Flag, Output
from iel.errors import ConfigError

if TYPE_CHECKING:
    from iel.data import Trajectories
    from iel.methods import Method
    from iel.policies import Policy


@dataclass(frozen=True, kw_only=True)
class Train(Output):
    """Train a method on a data set. Every setting of the method is an option; defaults are those of the preset."""

    env: str | None = None
    """Data set and environment, e.g. pointmaze-large-navigate-v0; collected first if it is not on this machine."""
    data: Path | None = None
    """Train on this file or folder (docs/formats.md) instead of the environment's own data set."""
    trust: Flag = False
    """Train on data that `iel data check` finds errors in."""
    episodes: int | None = None
    """Use a collected data set of this many episodes instead of the benchmark's own size."""
    algo: str = "iel"
    """Method (docs/comparing.md tells them apart)."""
    preset: str = "laptop"
    """Named set of the method's settings; whatever is given explicitly wins over it."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds; several are trained at once, each with a run directory of its own."""
    out: Path | None = None
    """Run directory (default: the next free runs/ENV-ALGO-NNN)."""
    resume: Path | None = None
    """Continue this run (or a directory of several seeds) from its newest whole checkpoint, with its own settings."""
    checkpoint_every: int | None = None
    """Save a checkpoint every this many steps (default: about once a minute; first and last are always saved)."""
    tensorboard: Flag = False
    """Also write TensorBoard files (needs the extra `tensorboard`)."""
    policy: str = ""
    """What acts: the method's own policy, directions of its embedding, or waypoints (docs/waypoints.md)."""
    settings: Any = None
    policy_settings: Any = None

    @classmethod
    def for_arguments(cls, arguments: list[str]) -> type[Train]:
        """These options with the settings of the chosen method, whose defaults are the chosen preset's values."""
        from iel.methods import METHODS, get_method
        from iel.methods.method import policy_from
        from iel.policies import POLICIES

        named = Annotated[str, tyro.conf.arg(metavar=f"{{{','.join(METHODS)}}}")]
        acting = Annotated[str, tyro.conf.arg(metavar=f"{{own,{','.join(POLICIES)}}}")]
        fields: list[Any] = []
        if path := _value_of("--resume", arguments):  # the run's own; what is given all the same must agree
            from iel.training import open_runs

            config, defaults = (first := open_runs(path)[0]).config, first.algo
            fields += [
                ("algo", named, config["algo"]),
                ("checkpoint_every", int | None, config.get("checkpoint_every")),
            ]
            fields += [("seeds", tuple[int, ...], tuple(config.get("seeds", [first.seed])))]
        else:
            method = get_method(_value_of("--algo", arguments) or cls.algo)
            defaults = method.preset(_value_of("--preset", arguments) or cls.preset)
            wanted = _value_of("--policy", arguments)
            if wanted is not None and wanted != _kind(defaults.policy):
                defaults = dataclasses.replace(defaults, policy=policy_from(wanted))
            fields += [("algo", named, cls.algo)]
        presets = tyro.conf.arg(metavar=f"{{{','.join(defaults.presets)}}}")
        fields += [("preset", Annotated[str, presets], cls.preset), ("policy", acting, _kind(defaults.policy))]
        about = f"Settings of {defaults.name}; the values shown are those of the preset."
        settings: tuple[Any, ...] = (tyro.conf.arg(help=about), tyro.conf.OmitArgPrefixes)
        of_policy: tuple[Any, ...] = (tyro.conf.arg(name="policy", help="Settings of the policy."),)
        brief = ADVANCED not in arguments and any(word in arguments for word in ("-h", "--help"))
        if brief:
            settings, of_policy = (*settings, tyro.conf.Suppress), (*of_policy, tyro.conf.Suppress)
        # The policy has options of its own, so it is no option of the method.
        hidden = Annotated[Any, tyro.conf.Fixed, tyro.conf.Suppress]
        kind = make_dataclass(
            type(defaults).__name__,
            [("policy", hidden, field(default=None))],
            bases=(type(defaults),),
            frozen=True,
            kw_only=True,
        )
        values = {each.name: getattr(defaults, each.name) for each in dataclasses.fields(defaults)}
        fields += [("settings", Annotated[(kind, *settings)], field(default=kind(**values)))]
        if defaults.policy is not None:
            fields += [
                ("policy_settings", Annotated[(type(defaults.policy), *of_policy)], field(default=defaults.policy))
            ]
        chosen = make_dataclass("Train", fields, bases=(cls,), frozen=True, kw_only=True)
        chosen.__doc__ = cls.__doc__
        if brief:
            count = len(dataclasses.fields(defaults)) - 1
            chosen.__doc__ = (
                f"Train a method on a data set.\n\nThe {count} settings of {defaults.name} are options too "
                f"(--steps 20000, ...), and those of its policy (--policy.steps 20000, ...): "
                f"`iel train --algo {defaults.name} --help-all` lists them."
            )
        return chosen

    def method(self) -> Method:
        """The method as the options describe it."""
        from iel.methods import get_method

        kind = get_method(self.algo)
        values = {each.name: getattr(self.settings, each.name) for each in dataclasses.fields(kind)}
        return kind(**{**values, "policy": self.policy_settings})


def _kind(policy: Policy | None) -> str:
    return "own" if policy is None else policy.kind


def train_command(options: Train) -> dict[str, Any]:
    """`iel train`."""
    from iel.commands.pictures import draw_training
    from iel.training import open_runs, train
    from iel.training.run import holds_run, next_free
    from iel.typed import check_seeds, check_settings

    algo = options.method()
    check_seeds(options.seeds)  # before data is collected, which may take minutes
    check_settings(algo)
    if options.resume is None and options.out is not None and holds_run(options.out):
        raise ConfigError(f"{options.out} already holds a run; continue it with --resume, or choose another --out.")
    data, file = _data_to_continue(options) if options.resume is not None else _data_to_begin(options)
    begun = None if options.resume is None else open_runs(options.resume)[0]
    out = options.resume or options.out or next_free(Path("runs"), f"{data.name}-{algo.name}")
    trained = train(
        data,
        algo,
        options.seeds,
        out=out,
        resume=options.resume is not None,
        checkpoint_every=options.checkpoint_every,
        tensorboard=options.tensorboard or (begun is not None and (begun.path / "tensorboard").is_dir()),
        data_file=file,
        snapshots=1 if begun is None else begun.config.get("snapshots", 1),
    )
    for run in trained.runs.values():
        draw_training(run)
    if not options.json:
        print(f"trained in {trained.seconds:.0f} s; next: {_next(out, data.name)}")
    return {
        "run": str(out),
        "runs": [str(run.path) for run in trained.runs.values()],
        "env": data.name,
        "algo": algo.name,
        "steps": algo.steps,
        "seeds": list(options.seeds),
        "seconds": round(trained.seconds, 2),
    }


def _next(out: Path, env: str) -> str:
    """What to do with a run: logs of one's own have no environment of ours."""
    from iel.envs import canonical_name

    try:
        canonical_name(env)
    except ConfigError:
        return f"iel play {out}, iel diagnose {out}, or iel evaluate {out} --env-factory package:function"
    return f"iel evaluate {out}"


def _data_to_begin(options: Train) -> tuple[Trajectories, Path | None]:
    from iel.commands.runs import training_data
    from iel.envs import canonical_name

    if options.env is None and options.data is None:
        raise ConfigError("Say what to train on: --env pointmaze-large-navigate-v0, or --data FILE.")
    if options.env is not None:
        canonical_name(options.env)  # an unknown name is refused before anything long starts
    return training_data(options.env, options.data, options.episodes, options.trust), options.data


def _data_to_continue(options: Train) -> tuple[Trajectories, Path | None]:
    """The data of the run; `--env`, `--data` and `--algo` may be given again, and are then held against the run."""
    from iel.training import open_runs

    assert options.resume is not None
    run = open_runs(options.resume)[0]
    if options.out is not None and options.out != options.resume:
        raise ConfigError(f"--resume continues {options.resume} where it is; leave out --out.")
    for name, given, recorded in (("env", options.env, run.env), ("algo", options.algo, run.config["algo"])):
        if given is not None and given != recorded:
            raise ConfigError(f"{options.resume} cannot be resumed: {name} is {recorded} in the run and {given} now.")
    file = options.data or (Path(recorded) if (recorded := run.config["data"].get("file")) else None)
    return run.data(file), file


def _value_of(flag: str, arguments: list[str]) -> str | None:
    for position, word in enumerate(arguments):
        if word == flag and position + 1 < len(arguments):
            return arguments[position + 1]
        if word.startswith(f"{flag}="):
            return word.split("=", 1)[1]
    return None
