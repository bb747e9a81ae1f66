"""`iel train`."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

import iel
from iel.commands.common import ADVANCED, Command, Facts, Flag, known_environment
from iel.errors import ConfigError

if TYPE_CHECKING:
    from iel.methods import Method
    from iel.policies import Policy
    from iel.training import Run


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
    """Method (docs/comparing.md tells them apart), or package.module:Class of your own (CONTRIBUTING.md). With --data
    alone: htp, with the preset that suits the data."""
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
    """What acts: the method's own policy, directions of its embedding or of the state, or waypoints (docs/htp.md)."""
    settings: Any = None
    policy_settings: Any = None

    @classmethod
    def for_arguments(cls, arguments: list[str]) -> type[Train]:
        """These options with the settings of the chosen method, whose defaults are the chosen preset's values."""
        from iel.agent import suited_preset
        from iel.methods import METHODS, get_method, policy_from
        from iel.policies import POLICIES

        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for option in ("--resume", "--algo", "--preset", "--policy", "--data", "--env"):
            parser.add_argument(option)
        given = parser.parse_known_args(arguments)[0]
        algo, preset, seeds, every = cls.algo, cls.preset, cls.seeds, cls.checkpoint_every
        if given.resume:  # the run's own; what is given all the same must agree
            from iel.training import open_runs

            first = open_runs(given.resume)[0]
            defaults, algo, every = first.algo, first.config["algo"], first.config.get("checkpoint_every")
            seeds = tuple(first.config.get("seeds", [first.seed]))
        else:
            alone = given.data and not (given.env or given.algo or given.preset)  # then what `iel.fit` trains
            algo = given.algo or ("htp" if alone else algo)
            method = get_method(algo)  # imports one of your own
            preset = cls.preset if cls.preset in method.presets else "paper"
            if alone:
                preset = suited_preset(iel.load(given.data, trust=True))  # judged when it is trained on
            defaults = method.preset(given.preset or preset)
            if given.policy is not None and given.policy != _kind(defaults.policy):
                defaults = dataclasses.replace(defaults, policy=policy_from(given.policy))
        # The policy has options of its own, so it is no option of the method.
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
            ("seeds", tuple[int, ...], seeds),
            ("checkpoint_every", int | None, every),
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
        from iel.training import open_runs
        from iel.training.loop import check_seeds
        from iel.training.run import holds_run, next_free

        algo = self.method()
        check_seeds(self.seeds)  # before data is collected, which may take minutes
        if self.resume is None and self.out is not None and holds_run(self.out):
            raise ConfigError(f"{self.out} already holds a run; continue it with --resume, or choose another --out.")
        begun = None if self.resume is None else open_runs(self.resume)[0]
        data, file = self._data_to_begin() if begun is None else self._data_to_continue(begun, algo)
        out = self.resume or self.out or next_free(Path("runs"), f"{data.name}-{algo.name}")
        trained = iel.train(
            data,
            algo,
            self.seeds,
            out=out,
            resume=begun is not None,
            checkpoint_every=self.checkpoint_every,
            tensorboard=self.tensorboard or (begun is not None and (begun.path / "tensorboard").is_dir()),
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

        if self.env is not None:
            canonical_name(self.env)  # an unknown name is refused before anything long starts
        if self.data is not None:
            return iel.load(self.data, env=self.env, trust=self.trust), self.data
        if self.env is None:
            raise ConfigError("Say what to train on: --env pointmaze-large-navigate-v0, or --data FILE.")
        return iel.load(self.env, episodes=self.episodes, trust=self.trust), None

    def _data_to_continue(self, run: Run, algo: Method) -> tuple[iel.Trajectories, Path | None]:
        """The data of the run; `--env`, `--data` and `--algo` may be given again, and are then held against the run."""
        if self.out is not None and self.out != self.resume:
            raise ConfigError(f"--resume continues {self.resume} where it is; leave out --out.")
        for name, given, recorded in (("env", self.env, run.env), ("algo", algo.name, run.config["algo"])):
            if given is not None and given != recorded:
                raise ConfigError(f"{self.resume} cannot be resumed: {name} is {recorded} in the run and {given} now.")
        file = self.data or (Path(recorded) if (recorded := run.config["data"].get("file")) else None)
        return run.data(file), file


def _kind(policy: Policy | None) -> str:
    return "own" if policy is None else policy.kind


def _one_of(names: Iterable[str]) -> object:
    """The type of an option that is one of these words; others are refused with the nearest one."""
    return Annotated[str, tyro.conf.arg(metavar=f"{{{','.join(names)}}}")]
