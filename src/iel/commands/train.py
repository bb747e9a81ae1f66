"""`iel train`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import tyro
from msgspec import structs

import iel
from iel.commands.common import ADVANCED, Command, Facts, Flag, known_environment
from iel.errors import ConfigError

if TYPE_CHECKING:
    from iel.methods import Method
    from iel.policies import Policy
    from iel.training import Run
    from iel.training.run import Options


TRAINING = (
    "env", "data", "trust", "episodes", "seeds", "checkpoint_every", "evaluate_every", "stop_at", "tracker",
)  # fmt: skip
"""Options that a run.toml may hold besides the method and its settings: the data's first."""


@dataclass(frozen=True, kw_only=True)
class Train(Command):
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
    """Method (docs/which-method.md compares them), or package.module:Class of your own (CONTRIBUTING.md). With --data
    and no --env: htp; with --data alone, also the preset that suits the data."""
    preset: str = "laptop"
    """Named set of the method's settings; whatever is given explicitly wins over it."""
    config: Path | None = None
    """Take all options from this TOML file, such as the run.toml of a run; options given besides win over it."""
    seeds: tuple[int, ...] = (0,)
    """Training seeds; several are trained at once, each with a run directory of its own."""
    out: Path | None = None
    """Run directory (default: the next free runs/ENV-ALGO-NNN)."""
    resume: Path | None = None
    """Continue this run (or a directory of several seeds) from its newest whole checkpoint, with its own settings."""
    checkpoint_every: int | None = None
    """Save a checkpoint every this many steps (default: about once a minute; first and last are always saved)."""
    evaluate_every: int | None = None
    """Measure success in the environment every this many steps of the last phase; written to metrics.csv."""
    stop_at: float | None = None
    """End training once success, as --evaluate-every measures it, is at least this (0 to 1) for every seed."""
    tracker: tuple[str, ...] = ()
    """Also send metrics to these: tensorboard, wandb, mlflow (each an extra of the same name)."""
    policy: str = ""
    """What acts: the method's own policy, directions of its embedding or of the state, or waypoints (docs/htp.md)."""
    settings: Any = None
    policy_settings: Any = None

    @classmethod
    def for_arguments(cls, arguments: list[str]) -> type[Train]:
        """These options with the settings of the chosen method, whose defaults are the chosen preset's values."""
        from iel.agent import suited, suited_preset
        from iel.methods import METHODS, get_method, policy_from
        from iel.policies import POLICIES
        from iel.training.run import read_options

        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for option in ("--resume", "--config", "--algo", "--preset", "--policy", "--data", "--env"):
            parser.add_argument(option)
        given = parser.parse_known_args(arguments)[0]
        algo, preset = cls.algo, cls.preset
        recorded: dict[str, Any] = {}
        """Defaults that a run or a run.toml gives to options of training."""
        if given.resume:  # the run's own; what is given all the same must agree
            from iel.training import open_runs

            first = open_runs(given.resume)[0]
            defaults, algo = first.algo, first.config["algo"]
            recorded = {name: first.config.get(name) for name in ("checkpoint_every", "evaluate_every", "stop_at")}
            recorded |= {"seeds": first.config.get("seeds", [first.seed]), "tracker": first.config.get("trackers", [])}
        elif given.config:
            options = read_options(Path(given.config))
            algo = given.algo or options.algo or algo
            defaults = _of_file(options, given)
            recorded = {name: value for name, value in structs.asdict(options).items() if name in TRAINING}
            if given.env or given.data:  # other data than the file names
                recorded = {name: value for name, value in recorded.items() if name not in TRAINING[:4]}
            elif options.data is not None:
                recorded["data"] = Path(options.data)
        else:
            alone = given.data and not (given.env or given.algo or given.preset)  # then what `iel.fit` trains
            algo = given.algo or ("htp" if given.data and not given.env else algo)
            method = get_method(algo)  # imports one of your own
            preset = cls.preset if cls.preset in method.presets else "paper"
            defaults = method.preset(given.preset or preset)
            if alone:
                known = iel.load(given.data, trust=True)  # it is validated when it is trained on
                defaults, preset = suited(known), suited_preset(known)
        if not given.resume and given.policy is not None and given.policy != _kind(defaults.policy):
            defaults = dataclasses.replace(defaults, policy=policy_from(given.policy))
        # The policy has options of its own, so it is not an option of the method.
        hidden = ("policy", Annotated[Any, tyro.conf.Fixed, tyro.conf.Suppress], None)
        own = type(defaults)
        kind: Any = make_dataclass(own.__name__, [hidden], bases=(own,), frozen=True, kw_only=True)
        about = f"Settings of {defaults.name}; the values shown are those of the preset."
        brief = ADVANCED not in arguments and any(word in arguments for word in ("-h", "--help"))
        marks = (tyro.conf.Suppress,) if brief else ()
        settings = Annotated[(kind, tyro.conf.arg(help=about), tyro.conf.OmitArgPrefixes, *marks)]
        fields = [
            ("algo", _one_of((*METHODS, "package.module:Class")), algo),
            ("preset", _one_of(defaults.presets), preset),
            *_with_defaults(cls, recorded),
            ("policy", _one_of(("own", *POLICIES)), _kind(defaults.policy)),
            ("settings", settings, kind(**vars(defaults))),
        ]
        if defaults.policy is not None:
            about_policy = tyro.conf.arg(name="policy", help="Settings of the policy.")
            fields += [("policy_settings", Annotated[(type(defaults.policy), about_policy, *marks)], defaults.policy)]
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

        return get_method(self.algo)(**{**vars(self.settings), "policy": self.policy_settings})

    def __call__(self) -> Facts:
        from iel.commands.pictures import draw_training
        from iel.training import Evaluator, open_runs
        from iel.training.compiled import keep_programs
        from iel.training.loop import check_seeds
        from iel.training.run import holds_run, next_free

        algo = self.method()
        check_seeds(self.seeds)  # before data is collected, which may take minutes
        if self.stop_at is not None and self.evaluate_every is None:
            raise ConfigError("--stop-at needs --evaluate-every: say how often success is measured.")
        every = self.evaluate_every
        callbacks = [] if every is None else [Evaluator(every=every, stop_at=self.stop_at)]
        keep_programs()
        if self.resume is None and self.out is not None and holds_run(self.out):
            raise ConfigError(f"{self.out} already holds a run; continue it with --resume, or choose another --out.")
        begun = None if self.resume is None else open_runs(self.resume)[0]
        data, file = self._data_to_begin() if begun is None else self._data_to_continue(begun, algo)
        if callbacks and known_environment(data.name) is None:
            raise ConfigError(
                f"--evaluate-every needs an environment, but '{data.name}' has none; name it with --env, or give "
                "iel.train an Evaluator with your own."
            )
        out = self.resume or self.out or next_free(Path("runs"), f"{data.name}-{algo.name}")
        trained = iel.train(
            data,
            algo,
            self.seeds,
            out=out,
            resume=begun is not None,
            checkpoint_every=self.checkpoint_every,
            callbacks=callbacks,
            trackers=self.tracker,
            data_file=file,
            snapshots=1 if begun is None else begun.config.get("snapshots", 1),
        )
        for run in trained.runs.values():
            draw_training(run)
        own = f"iel play {out}, iel diagnose {out}, or iel evaluate {out} --env-factory package:function"
        further = f"iel evaluate {out}" if known_environment(data.name) else own
        print(f"trained in {trained.seconds:.0f} s; next: {further}")
        return {
            "run": str(out),
            "runs": [str(run.path) for run in trained.runs.values()],
            "env": data.name,
            "algo": algo.name,
            "steps": algo.steps,
            "seeds": list(self.seeds),
            "seconds": round(trained.seconds, 2),
        }

    def _data_to_begin(self) -> tuple[iel.Trajectories, Path | None]:
        from iel.envs import canonical_name

        if self.env is not None and self.config is None:
            canonical_name(self.env)  # an unknown name is refused before anything long starts
        if self.data is not None:
            return iel.load(self.data, env=self.env, trust=self.trust), self.data
        if self.env is None:
            raise ConfigError("Say what to train on: --env pointmaze-large-navigate-v0, or --data FILE.")
        return iel.load(self.env, episodes=self.episodes, trust=self.trust), None

    def _data_to_continue(self, run: Run, algo: Method) -> tuple[iel.Trajectories, Path | None]:
        """The data of the run; `--env`, `--data` and `--algo` may be given again, if they are those of the run."""
        if self.out is not None and self.out != self.resume:
            raise ConfigError(f"--resume continues {self.resume} where it is; leave out --out.")
        for name, given, recorded in (("env", self.env, run.env), ("algo", algo.name, run.config["algo"])):
            if given is not None and given != recorded:
                raise ConfigError(f"{self.resume} cannot be resumed: {name} is {recorded} in the run and {given} now.")
        file = self.data or (Path(recorded) if (recorded := run.config["data"].get("file")) else None)
        return run.data(file), file


def _of_file(options: Options, given: argparse.Namespace) -> Method:
    """The method that a run.toml describes."""
    from iel.methods import config_from_dict, get_method

    method = get_method(given.algo or options.algo or Train.algo)
    if given.preset or method.name != (options.algo or method.name):
        raise ConfigError(f"{given.config} says the method and its settings; leave out --algo and --preset.")
    preset = options.preset or (Train.preset if Train.preset in method.presets else "paper")
    chosen = {} if options.policy is None else {"policy": options.policy}
    return config_from_dict(method, {"preset": preset, **options.settings, **chosen})


def _with_defaults(kind: type[Train], values: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Fields of these names with these defaults, as `make_dataclass` takes them."""
    hints = get_type_hints(kind, include_extras=True)
    return [(name, hints[name], tuple(value) if isinstance(value, list) else value) for name, value in values.items()]


def _kind(policy: Policy | None) -> str:
    return "own" if policy is None else policy.kind


def _one_of(names: Iterable[str]) -> object:
    """The type of an option that is one of these words; others are refused with the nearest one."""
    return Annotated[str, tyro.conf.arg(metavar=f"{{{','.join(names)}}}")]
