"""A run directory: what training leaves behind and evaluation opens.

    RUN/
      config.json        format, environment, method, settings, seed, data fingerprint, status
      run.toml           all options of the run: `iel train --config RUN/run.toml --out NEW` repeats it to the bit
      metrics.csv        step, phase, metric, value
      checkpoints/       step_*/ directories, see `iel.training.checkpoint`
      .lock              held by the process that is training
      model/             the frozen model: config.json, model.safetensors
      evaluations/       one JSON file per planner: `iel.evaluation.result`
      plots/             pictures
      data.npz           the data, if it was built in memory (beside the seeds if there are several)

Training several seeds at once gives a directory with one run a seed: OUT/seed_0, OUT/seed_1, ...
"""

import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, to_builtins
from msgspec.structs import replace

from iel.data import Trajectories, load
from iel.data.catalogue import stored
from iel.data.make.recipes import recipe_names
from iel.errors import ConfigError, DataError, RunError
from iel.files import notice, write_errors, write_json, write_text
from iel.learner import Method
from iel.loader import os_errors, read_json, read_toml, refuse_partial
from iel.methods import config_dict, config_from_dict
from iel.model import Model, load_model
from iel.signals import UNNAMED, Signals
from iel.typed import Count, Index, Seed, as_struct

FORMAT = 1
STORED_DATA = "data.npz"
"""Data that was built in memory is stored with the run, so that it can be planned over, audited and resumed."""
OPTIONS = "run.toml"
Config = dict[str, Any]
"""What config.json holds: a `RunConfig`, and what a later version may have added."""


class DataFacts(Struct, frozen=True):
    """What config.json says of the data."""

    fingerprint: str
    name: str = ""
    episodes: Count = 1
    transitions: Count = 1
    file: str | None = None


class RunConfig(Struct, frozen=True):
    """What config.json must hold; what a later version adds is left alone."""

    env: str
    algo: str
    settings: dict[str, Any]
    seed: Seed
    status: Literal["running", "interrupted", "finished"]
    data: DataFacts | UnsetType = UNSET
    seeds: list[Seed] = []
    checkpoint_every: Count | None = None
    evaluate_every: Count | None = None
    stop_at: float | None = None
    trackers: list[str] = []
    snapshots: Count = 1
    step: Index = 0
    stopped_at: Index | None = None
    signals: Signals = UNNAMED


class Options(Struct, frozen=True, forbid_unknown_fields=True):
    """What a run.toml may hold: options of `iel train` under their names, settings of the method and of the policy."""

    env: str | None = None
    data: str | None = None
    """A path relative to the file."""
    trust: bool = False
    episodes: Count | None = None
    algo: str | None = None
    preset: str | None = None
    seeds: tuple[Seed, ...] = (0,)
    checkpoint_every: Count | None = None
    evaluate_every: Count | None = None
    stop_at: float | None = None
    tracker: list[str] = []
    settings: dict[str, Any] = {}
    policy: dict[str, Any] | None = None


class Run:
    """One trained seed on disk."""

    def __init__(self, path: Path, config: Config):
        self.path, self.config = path, config

    @property
    def env(self) -> str:
        return self.config["env"]

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def status(self) -> str:
        """`running`, `interrupted` or `finished`."""
        return self.config["status"]

    @cached_property
    def algo(self) -> Method:
        from iel.methods import get_method

        try:
            return config_from_dict(get_method(self.config["algo"]), self.config["settings"])
        except (ConfigError, TypeError, ValueError) as error:
            raise RunError(
                f"{self.path / 'config.json'} does not describe a method of this version ({error}) "
                "A method of your own has to be imported first: --algo package.module:Class."
            ) from None

    @cached_property
    def model(self) -> Model:
        if not (self.path / "model").is_dir():
            raise RunError(
                f"{self.path} has no model yet (status: {self.status}); let the training finish, or train again."
            )
        self.tell_unfinished()
        return load_model(self.path / "model")

    def tell_unfinished(self) -> bool:
        """Whether the training has not ended; then a notice is printed."""
        unfinished = self.status != "finished"
        if unfinished:
            notice(f"{self.path} is not finished ({self.status}, step {self.config.get('step', 0)}).", once=True)
        return unfinished

    def data(self, file: Path | str | None = None) -> Trajectories:
        """The data the run was trained on (planners take their nodes from it), or the `file` if one is given."""
        if file is not None:
            return load(file, env=self.env, trust=True)  # it was validated when it was trained on
        facts = self.config.get("data", {})
        if not {"name", "episodes", "fingerprint"} <= facts.keys():
            raise DataError(f"{self.path} does not say what it was trained on; give --data FILE.")
        # Sets of an older recipe too, if it was trained on one.
        found = [path for episodes in (None, facts["episodes"]) for path in stored(facts["name"], episodes)]
        copies = [location / STORED_DATA for location in (self.path, self.path.parent)]  # of one seed, of several
        recorded = [Path(facts["file"])] if "file" in facts else []
        for path in dict.fromkeys(path for path in (*copies, *recorded, *found) if path.exists()):
            data = load(path, trust=True)
            if data.fingerprint == facts["fingerprint"]:
                return data.named(self.env)
        what = f"The data {self.path} was trained on ('{facts['name']}', {facts['episodes']} episodes)"
        if facts["name"] in recipe_names():
            raise DataError(
                f"{what} is not on this machine; make it again with `iel data make {facts['name']} --episodes "
                f"{facts['episodes']}` if it was made, or give --data FILE."
            )
        raise DataError(f"{what} is no longer in {recorded[0] if recorded else copies[0]}; give --data FILE.")

    def folder(self, name: str) -> Path:
        """A subdirectory, made if it is missing; a symbolic link is refused."""
        path = self.path / name
        with write_errors(f"The directory '{name}'", self.path):
            if path.is_symlink():
                raise RunError(f"{path} is a symbolic link, which is not written through; remove it.")
            path.mkdir(exist_ok=True)
        return path

    def update(self, **changes: Any) -> None:
        """Change entries of config.json, atomically."""
        config = {**self.config, **changes}
        with write_errors("The run's status", self.path / "config.json"):
            write_json(self.path / "config.json", config)
        self.config = config


def open_run(path: Path | str) -> Run:
    """Open the directory of one run."""
    path = Path(path)
    with os_errors(RunError, path):
        if not path.is_dir():
            raise RunError(f"{path} does not exist; `iel train` makes run directories.")
        refuse_partial(path)
        if not (path / "config.json").exists():
            what = "is empty" if not any(path.iterdir()) else "is not a run directory (it has no config.json)"
            raise RunError(f"{path} {what}; give the directory that `iel train` printed.")
    source = path / "config.json"
    config = read_json(source)
    if "networks" in config or (path / "card.json").exists():
        raise RunError(
            f"{path} is a model (exported, or RUN/model), not a run; give the run's directory, or use "
            "iel.load_model in Python."
        )
    if config.get("format") != FORMAT or isinstance(config["format"], bool):
        raise RunError(
            f"{path} has run format {str(config.get('format'))[:40]}, but this version of iel reads format {FORMAT}; "
            "use the version that wrote it, or train again."
        )
    check_config(config, source)
    return Run(path, config)


def check_config(config: Config, source: Path) -> None:
    """Refuse a run's config.json (or a checkpoint's copy of it) that holds anything else than it should."""
    as_struct(config, RunConfig, str(source), RunError)


def open_runs(path: Path | str) -> list[Run]:
    """One run, or all seeds of a directory that several were trained into."""
    path = Path(path)
    with os_errors(RunError, path):
        seeds = sorted(path.glob("seed_*"), key=lambda p: (len(p.name), p.name)) if path.is_dir() else []
    if seeds and not (path / "config.json").exists():
        return [open_run(seed) for seed in seeds]
    return [open_run(path)]


def next_free(root: Path, stem: str) -> Path:
    """root/stem-001, -002, ...: the first that does not exist, claimed by making it."""
    with os_errors(RunError, root, writing=True):
        root.mkdir(parents=True, exist_ok=True)
        for number in range(1, 100_000):
            path = root / f"{stem}-{number:03d}"
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    raise RunError(f"{root} holds too many runs of {stem}; remove some.")


# ---------------------------------------------------------------- beginning and continuing runs


def run_config(
    data: Trajectories,
    algo: Method,
    seeds: list[int],
    checkpoint_every: int | None,
    data_file: Path | str | None = None,
    snapshots: int = 1,
) -> Config:
    """What a run's config.json holds when it begins, its seed aside."""
    facts = {
        "name": data.name,
        "fingerprint": data.fingerprint,
        "episodes": len(data),
        "transitions": data.num_transitions,
    }
    if data_file is not None:
        facts["file"] = str(Path(data_file).absolute())
    return {
        "env": data.name,
        "algo": algo.name,
        "settings": config_dict(algo),
        "data": facts,
        "seeds": seeds,
        "checkpoint_every": checkpoint_every,
        "snapshots": snapshots,
        "status": "running",
        "signals": to_builtins(data.signals),
    }


def create_run(path: Path, config: Config) -> Run:
    """A new run directory."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        run = Run(path, {"format": FORMAT, **config})
        write_json(path / "config.json", run.config)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror}); choose another --out.") from error
    return run


def holds_run(out: Path) -> bool:
    """Whether there is a run, or several seeds, in this directory."""
    return (out / "config.json").exists() or any(out.glob("seed_*/config.json"))


def open_or_create(out: Path, seeds: list[int], config: Config, resume: bool) -> dict[int, Run]:
    """The runs of all seeds: new ones, or with `resume` those that are there, if they are runs of this `config`.

    One seed trains in OUT itself, several in OUT/seed_K.
    """
    if not resume and holds_run(out):
        raise RunError(
            f"{out} already holds a run; continue it with `iel train --resume {out}`, choose another --out, or "
            "remove it."
        )
    runs: dict[int, Run] = {}
    for seed in seeds:
        path, expected = out if len(seeds) == 1 else out / f"seed_{seed}", {**config, "seed": seed}
        if (path / "config.json").exists():
            runs[seed] = open_run(path)
            require_same(runs[seed], expected)
        elif (out / "config.json").exists() or (len(seeds) == 1 and holds_run(out)):
            raise RunError(f"{out} holds a run of other seeds; give the seeds it was started with.")
        else:  # new, or killed before this seed's directory was made
            runs[seed] = create_run(path, expected)
        if not (path / OPTIONS).exists():
            with write_errors("The run's options", path / OPTIONS):
                write_text(path / OPTIONS, options_of(expected, STORED_DATA if path == out else f"../{STORED_DATA}"))
    return runs


def options_of(config: Config, stored_data: str) -> str:
    """The run.toml of a run; `stored_data` is where its data is stored if no file is recorded."""
    settings = dict(config["settings"])
    policy = settings.pop("policy") or {"kind": "own"}
    top = {
        "env": config["env"],
        "data": config["data"].get("file", stored_data),
        "trust": True,  # it was validated when it was trained on
        **{name: config.get(name) for name in ("algo", "seeds", "checkpoint_every", "evaluate_every", "stop_at")},
        "tracker": config.get("trackers", []),
    }
    lines = [*_toml(top), "", "[settings]", *_toml(settings), "", "[policy]", *_toml(policy), ""]
    return "\n".join(lines).encode("utf-8", "replace").decode()


def _toml(table: Mapping[str, Any]) -> list[str]:
    """The lines of a TOML table: JSON writes strings, numbers, truth values and lists as TOML does."""
    return [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in table.items() if value is not None]


def read_options(path: Path) -> Options:
    """The checked content of a run.toml; its `data` as a path from here."""
    options = as_struct(read_toml(path), Options, str(path))
    return options if options.data is None else replace(options, data=str(path.parent / options.data))


def nothing_left(runs: Mapping[int, Run]) -> bool:
    """Whether all runs are finished and have their models: resuming them has nothing to do, and changes no file."""
    return all(run.status == "finished" and (run.path / "model").is_dir() for run in runs.values())


def _identity(config: Config) -> Config:
    """Everything that decides the bits of a run, under flat names."""
    settings = dict(config.get("settings", {}))
    policy = settings.pop("policy", None) or {}
    others = ("algo", "seed", "seeds", "checkpoint_every", "evaluate_every", "stop_at")
    return {
        **{f"settings.{name}": value for name, value in settings.items()},
        **{f"settings.policy.{name}": value for name, value in policy.items()},
        **{name: config.get(name) for name in others},
        "snapshots": config.get("snapshots", 1),
        "data.fingerprint": config.get("data", {}).get("fingerprint"),
    }


def differences(run: Config, now: Config) -> list[str]:
    """The fields in which two configurations differ, each as a phrase.

    A resumed run must end with the bits of one that was never stopped, so everything that decides them has to agree:
    the data, the method and its settings, the seeds trained together, and where metrics are averaged.
    """
    mine, other = _identity(run), _identity(now)
    return [
        f"{name} is {mine.get(name)!r} in the run and {other.get(name)!r} now"
        for name in {**mine, **other}
        if mine.get(name) != other.get(name)
    ]


def require_same(run: Run, now: Config) -> None:
    """Refuse to continue a run with another method, other settings, seeds or data, and say what differs."""
    if "seeds" not in run.config or "data" not in run.config:
        raise RunError(f"{run.path / 'config.json'} does not say the seeds and the data of the run; train it again.")
    recorded, data = run.config, run.config["data"]
    if data["fingerprint"] != now["data"]["fingerprint"]:
        raise RunError(
            f"{run.path} cannot be resumed on other data: data.fingerprint is {data['fingerprint'][:12]}... in the run "
            f"('{data.get('name')}', {data.get('episodes')} episodes) and {now['data']['fingerprint'][:12]}... now "
            f"('{now['data']['name']}', {now['data']['episodes']} episodes); give the data it was started with."
        )
    if different := differences(recorded, now):
        steps = any(phrase.startswith("settings.steps ") for phrase in different)
        why = "phases are shares of the steps, so a longer run is another run: train it anew" if steps else ""
        raise RunError(
            f"{run.path} cannot be resumed with another configuration: {'; '.join(different[:5])}; "
            f"{why or 'leave these as they were, or start a new run'}."
        )
