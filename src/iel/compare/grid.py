"""A grid: environments x methods x planners x seeds, with the protocol they are measured by.

    environments = ["pointmaze-large-navigate-v0"]
    seeds = [0, 1, 2]
    preset = "laptop"

    [protocol]                      # `episodes` per task, evaluation `seed`; also `tasks`, `max_steps`, `checkpoints`,
    episodes = 20                   # `action` (mean, sample, unstick), and `distances`: episodes per band of distance,
                                    # beside the tasks (default: none)
    seed = 1000

    [settings]                      # of every method, where it has no other of its own; they win over the preset
    batch_size = 512

    [data]                          # `episodes` and `seed` of collected sets (default: the benchmark's own)
    episodes = 300
    [data.where."*-giant-*"]        # other ones in environments that match
    episodes = 200

    [planners.wide]                 # a planner with settings of its own, under a name of its own
    planner = "asym-graph"
    nodes = 4096

    [planners.common]               # with the policy that another method of the grid trained with the same seed
    planner = "sym-graph"
    policy_of = "IEL waypoint"

    [planners.parts]                # asked for these columns of each goal, whatever the others, by environment
    planner = "asym-graph"
    goal_columns = { "kitchen-partial-*" = [17, 19, 22, 23] }

    [[methods]]
    algo = "iel"
    label = "IEL"                   # default: the algorithm's name
    planners = ["direct", "wide"]
    settings = { beta = 0.3 }
    [methods.where."*-stitch-*"]    # settings only in environments that match
    beta = 0.1
    [methods.scales.smoke]          # planners and settings at this scale only; `preset` is one of them
    planners = ["direct"]
    settings = { preset = "laptop" }

    [scales.smoke]                  # anything above but methods, replaced when this scale is chosen
    seeds = [0]

Everything is checked before anything runs, and all mistakes are told at once.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import iel
from iel.envs.registry import canonical_name
from iel.errors import ConfigError, IELError, unknown_name
from iel.evaluation import Protocol
from iel.evaluation.ask import Ask
from iel.loader import read_toml
from iel.methods import METHODS
from iel.methods.method import config_dict, config_from_dict
from iel.planning import ACTION_KINDS, PLANNERS, ActionKind
from iel.typed import LARGEST, SEEDS, Amount, Count, Seed, check_settings, shown, violation

SHIPPED = Path(__file__).parent / "grids"
SCALED = ("title", "environments", "seeds", "preset", "settings", "protocol", "data", "planners")
KEYS = (*SCALED, "methods", "scales", "published")
METHOD = ("algo", "label", "planners", "settings", "where", "scales")


@dataclass(frozen=True)
class GridProtocol:
    """How every cell is evaluated."""

    episodes: int = 20
    seed: int = 1000
    """Not one that was used while choosing settings."""
    tasks: tuple[int, ...] | None = None
    max_steps: int | None = None
    action: ActionKind = "mean"
    checkpoints: int = 1
    """Models measured of a training: with more than one, earlier steps as well."""
    distances: int = 0
    """Episodes per band of distance, beside the tasks."""

    def by_task(self, columns: tuple[int, ...] | None) -> Protocol:
        """Of the environment's tasks, conditioned on these columns of each goal (None: all)."""
        return Protocol(self.episodes, self.tasks, self.seed, self.max_steps, self.action, Ask(columns))

    def by_distance(self) -> Protocol:
        """Of pairs of cells in bands of distance."""
        return Protocol(self.distances, None, self.seed, self.max_steps, self.action, by_distance=True)


@dataclass(frozen=True)
class DataChoice:
    """Which data set of an environment: its episodes (None: the benchmark's own) and the seed it is collected with."""

    episodes: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Variant:
    """A planner with its settings, under the name it has in tables."""

    label: str
    planner: str
    settings: dict[str, Any]
    policy_of: str = ""
    """Method of the grid whose policy acts; empty: the method's own."""
    goal_columns: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Pattern of environments -> columns of each goal that are asked for; elsewhere it is the whole goal."""

    def columns_in(self, env: str) -> tuple[int, ...] | None:
        """The columns asked for in an environment; None: all."""
        return next((columns for pattern, columns in self.goal_columns.items() if fnmatch.fnmatch(env, pattern)), None)


@dataclass(frozen=True)
class Cell:
    """One training run and the planners it is evaluated under."""

    env: str
    method: str
    algo: str
    settings: dict[str, Any]
    seed: int
    data: DataChoice
    planners: tuple[Variant, ...]
    protocol: GridProtocol
    drivers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Methods whose policies act in some of the planners: `algo` and `settings` of each."""

    def driver(self, method: str) -> Cell:
        """The training of another method with the same data and seed."""
        return replace(self, method=method, **self.drivers[method], planners=(), drivers={})

    @property
    def name(self) -> str:
        return f"{self.env} {self.method} seed {self.seed}"

    def training_fingerprint(self, data_fingerprint: str) -> str:
        """Hash of all that decides the trained model."""
        parts = (self.env, asdict(self.data), data_fingerprint, self.algo, self.settings, self.seed, iel.__version__)
        snapshots = self.protocol.checkpoints
        return _digest(parts if snapshots == 1 else (*parts, snapshots))

    def evaluation_fingerprint(self, data_fingerprint: str, variant: Variant) -> str:
        """Hash of all that decides the measured scores."""
        trained = [self, *([self.driver(variant.policy_of)] if variant.policy_of else [])]
        models = [cell.training_fingerprint(data_fingerprint) for cell in trained]
        how = variant.planner, variant.settings, variant.columns_in(self.env)
        return _digest((models, how, asdict(self.protocol)))

    def directory(self, data_fingerprint: str) -> str:
        """Name of the cell's directory: readable, and another one for another training."""
        method = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in self.method)
        return f"{self.env}--{method}--seed{self.seed}--{self.training_fingerprint(data_fingerprint)[:8]}"


@dataclass(frozen=True)
class Grid:
    """A checked grid at one scale."""

    name: str
    title: str
    scale: str | None
    environments: tuple[str, ...]
    methods: tuple[str, ...]
    variants: dict[str, tuple[str, ...]]
    """Method -> labels of its planners, in the order of the table."""
    seeds: tuple[int, ...]
    protocol: GridProtocol
    published: str | None
    """Which of the published tables stands beside ours."""
    cells: tuple[Cell, ...]


def shipped_grids() -> list[str]:
    """Names of the grids that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def read_grid(source: str | Path, scale: str | None = None) -> Grid:
    """A grid by the name of a shipped one or by the path of a TOML file; `scale` is one of its `[scales.*]`."""
    path = Path(source)
    if not str(source).endswith(".toml"):
        if str(source) not in shipped_grids():
            raise unknown_name("grid", str(source), shipped_grids())
        path = SHIPPED / f"{source}.toml"
    return check_grid(read_toml(path), path.stem, scale)


def check_grid(table: Mapping[str, Any], name: str, scale: str | None = None) -> Grid:
    """The grid a TOML table describes; raises one error that lists everything wrong with it."""
    mistakes = Mistakes()
    mistakes.unknown("key", table, KEYS, "")
    scales = mistakes.expect(table.get("scales", {}), dict, "scales")
    if scale is None and scales:
        scale = "laptop" if "laptop" in scales else next(iter(scales))
    chosen = dict(table)
    if scale is not None:
        if scale in scales:
            replaced = mistakes.expect(scales[scale], dict, f"scales.{scale}")
            mistakes.unknown("key", replaced, SCALED, f"scales.{scale}.")
            chosen |= {
                key: {**chosen[key], **value}
                if isinstance(value, dict) and isinstance(chosen.get(key), dict)
                else value
                for key, value in replaced.items()
            }
        else:
            mistakes.add(str(unknown_name("scale", scale, scales)) if scales else f"There is no scale '{scale}' in it.")
    if isinstance(table.get("methods"), list):
        chosen["methods"] = [_at_scale(method, scale, scales, mistakes) for method in table["methods"]]
    grid = _assemble(chosen, name, scale, mistakes)
    mistakes.raise_for(name)
    assert grid is not None
    return grid


def _at_scale(method: Any, scale: str | None, scales: Mapping[str, Any], mistakes: Mistakes) -> Any:
    """A method with what it has at this scale only; its other settings stay."""
    if not isinstance(method, dict) or "scales" not in method:
        return method
    where = f"methods.{method.get('label', method.get('algo'))}.scales"
    tables = mistakes.expect(method["scales"], dict, where)
    mistakes.unknown("scale", tables, scales, f"{where}.")
    tables = {name: mistakes.expect(table, dict, f"{where}.{name}") for name, table in tables.items()}
    for table in tables.values():
        mistakes.unknown("key", table, ("planners", "settings"), f"{where}.")
    own = tables.get(scale, {})
    settings = [mistakes.expect(part.get("settings", {}), dict, where) for part in (method, own)]
    return {**method, **own, "settings": {**settings[0], **settings[1]}}


class Mistakes:
    """Everything wrong with a grid, in the order it was met."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, mistake: str) -> None:
        if mistake not in self.found:
            self.found.append(mistake)

    def unknown(self, kind: str, table: Mapping[str, Any], known: Any, where: str) -> None:
        for key in table:
            if key not in known:
                self.add(str(unknown_name(kind, f"{where}{key}", [f"{where}{name}" for name in known])))

    def expect(self, value: Any, kind: type, where: str) -> Any:
        """`value` if it is of this kind, else an empty one and a mistake."""
        if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
            return value
        self.add(f"{where} must be a {_kind_name(kind)}, but is {shown(value)}.")
        return kind()

    def numbers(self, value: Any, where: str) -> tuple[int, ...]:
        """A list of different whole numbers that can be seeds."""
        if violation(value, list[Seed]) or not value or len(set(value)) != len(value):
            self.add(f"{where} must be a list of different whole numbers from 0 to {SEEDS - 1}, but is {shown(value)}.")
            return ()
        return tuple(value)

    def raise_for(self, name: str) -> None:
        if self.found:
            count = "1 mistake" if len(self.found) == 1 else f"{len(self.found)} mistakes"
            raise ConfigError(f"The grid '{name}' has {count}: " + " ".join(self.found))


def _assemble(table: Mapping[str, Any], name: str, scale: str | None, mistakes: Mistakes) -> Grid | None:
    environments = _environments(table.get("environments", []), mistakes)
    seeds = mistakes.numbers(table.get("seeds", [0]), "seeds")
    protocol = GridProtocol(**_numbers(table.get("protocol", {}), "protocol", GridProtocol, mistakes))
    data = {env: _data(table, env, mistakes) for env in environments or ("",)}
    variants = _variants(table.get("planners", {}), mistakes)
    common = _common(table, mistakes)
    methods = table.get("methods", [])
    if not isinstance(methods, list) or not methods:
        mistakes.add("There are no [[methods]]; name at least one.")
        methods = []
    cells: list[Cell] = []
    chosen: dict[str, tuple[str, ...]] = {}
    for number, method in enumerate(methods, 1):
        if not isinstance(method, dict):
            mistakes.add(f"Method {number} must be a table, but is {method!r}.")
            continue
        label = str(method.get("label", method.get("algo", f"number {number}")))
        if label in chosen:
            mistakes.add(f"Two methods are called '{label}'; give them different labels.")
        labels = _planners_of(method, label, variants, mistakes)
        chosen[label] = labels
        planners = tuple(variants[known] for known in labels)
        for env in environments or ("",):  # a method is checked even where there is no place for it
            settings = _settings(method, label, env, common, mistakes)
            if settings is not None:
                cells += [Cell(env, label, method["algo"], settings, s, data[env], planners, protocol) for s in seeds]
    cells = _with_drivers(cells, variants, chosen, mistakes)
    if mistakes.found:
        return None
    cells.sort(key=lambda cell: cell.seed)  # every method once before any a second time: something to see early
    title, published = str(table.get("title", name)), table.get("published")
    return Grid(
        name, title, scale, environments, tuple(chosen), chosen, seeds, protocol, published, tuple(cells)
    )  # fmt: skip


def _environments(names: Any, mistakes: Mistakes) -> tuple[str, ...]:
    if not isinstance(names, list) or not names:
        mistakes.add("`environments` must be a list of at least one name.")
        return ()
    known: dict[str, None] = {}
    for name in names:
        try:
            known[canonical_name(str(name))] = None
        except ConfigError as error:
            mistakes.add(str(error))
    return tuple(known)


def _numbers(table: Any, where: str, kind: type[Any], mistakes: Mistakes) -> dict[str, Any]:
    """What a table says of the fields of `kind`: whole numbers, tasks and how to act."""
    known = [field.name for field in dataclasses.fields(kind)]
    given = dict(mistakes.expect(table, dict, where))
    mistakes.unknown("key", given, known, f"{where}.")
    for name, value in given.items():
        if name == "tasks":
            given[name] = mistakes.numbers(value, f"{where}.tasks")
        elif name == "action":
            if value not in ACTION_KINDS:
                mistakes.add(f"{where}.action must be one of {', '.join(ACTION_KINDS)}, not {shown(value)}.")
        elif name in known:
            low, high = (0, SEEDS - 1) if name == "seed" else (1, LARGEST)
            if violation(value, Seed if name == "seed" else Count):
                mistakes.add(f"{where}.{name} must be a whole number from {low} to {high}, not {shown(value)}.")
    return {name: value for name, value in given.items() if name in known}


def _data(table: Mapping[str, Any], env: str, mistakes: Mistakes) -> DataChoice:
    """Which data an environment is collected with: the general numbers, and those of patterns that match its name."""
    given = dict(mistakes.expect(table.get("data", {}), dict, "data"))
    for pattern, special in mistakes.expect(given.pop("where", {}), dict, "data.where").items():
        numbers = _numbers(special, "data.where", DataChoice, mistakes)
        given |= numbers if fnmatch.fnmatch(env, pattern) else {}
    return DataChoice(**_numbers(given, "data", DataChoice, mistakes))


def _variants(tables: Any, mistakes: Mistakes) -> dict[str, Variant]:
    """Every planner under its own name, and those the grid defines (which may also change the usual ones)."""
    variants = {name: Variant(name, name, {}) for name in PLANNERS}
    for label, table in mistakes.expect(tables, dict, "planners").items():
        settings = dict(mistakes.expect(table, dict, f"planners.{label}"))
        planner, policy_of = str(settings.pop("planner", label)), str(settings.pop("policy_of", ""))
        columns = _goal_columns(settings.pop("goal_columns", {}), f"planners.{label}.goal_columns", mistakes)
        if planner not in PLANNERS:
            mistakes.add(str(unknown_name("planner", planner, PLANNERS)))
            variants[label] = Variant(label, "direct", {})
            continue
        mistakes.unknown("setting", settings, planner_fields(planner), f"planners.{label}.")
        for name, value in settings.items():
            if not isinstance(value, (str, bool)) and violation(value, Amount):
                mistakes.add(f"planners.{label}.{name} must be a number from 0 to {LARGEST}, but is {shown(value)}.")
        variants[label] = Variant(label, planner, settings, policy_of, columns)
    return variants


def _goal_columns(table: Any, where: str, mistakes: Mistakes) -> dict[str, tuple[int, ...]]:
    given = mistakes.expect(table, dict, where)
    return {pattern: mistakes.numbers(columns, f"{where}.{pattern}") for pattern, columns in given.items()}


def _policy_kind(cell: Cell) -> str:
    policy = cell.settings.get("policy")
    return policy["kind"] if isinstance(policy, dict) else "own"


def _with_drivers(
    cells: list[Cell], variants: Mapping[str, Variant], methods: Mapping[str, tuple[str, ...]], mistakes: Mistakes
) -> list[Cell]:
    """Every cell with the trainings of the methods whose policies drive it."""
    trained = {(cell.env, cell.method): {"algo": cell.algo, "settings": cell.settings} for cell in cells}
    drivers = {variant.policy_of for variant in variants.values() if variant.policy_of}
    for name in sorted(drivers):
        if name not in methods:
            mistakes.add(str(unknown_name("method", name, methods)))
        elif any(variants[label].policy_of for label in methods[name]):
            mistakes.add(f"Method '{name}' drives others, so its own planners can have no policy_of.")
        elif any(_policy_kind(cell) != "waypoints" for cell in cells if cell.method == name):
            mistakes.add(f"Method '{name}' is to drive others, which only the policy waypoints can.")
    if mistakes.found:
        return cells
    others = lambda cell: {v.policy_of for v in cell.planners if v.policy_of}  # noqa: E731
    return [replace(cell, drivers={name: trained[cell.env, name] for name in sorted(others(cell))}) for cell in cells]


def planner_fields(planner: str) -> list[str]:
    """What can be set of a planner from a file."""
    return sorted(PLANNERS[planner].setting_names())


def _planners_of(
    method: Mapping[str, Any], label: str, variants: Mapping[str, Variant], mistakes: Mistakes
) -> tuple[str, ...]:
    names = method.get("planners", ["direct"])
    if not isinstance(names, list) or not names:
        mistakes.add(f"The planners of method '{label}' must be a list of at least one name.")
        return ()
    known = [str(name) for name in names if str(name) in variants]
    for name in names:
        if str(name) not in variants:
            mistakes.add(str(unknown_name("planner", str(name), variants)))
    entry = METHODS.get(str(method.get("algo")))
    for name in known:
        if entry is not None and variants[name].planner not in entry.planners:
            mistakes.add(f"Planner '{name}' cannot drive method '{label}'; use {', '.join(entry.planners)}.")
    return tuple(dict.fromkeys(known))


def _common(table: Mapping[str, Any], mistakes: Mistakes) -> dict[str, Any]:
    """The preset, and the settings of every method that has no other of its own."""
    settings = mistakes.expect(table.get("settings", {}), dict, "settings")
    if "preset" in settings:
        mistakes.add("settings.preset belongs at the top of the grid or into a scale, as `preset`.")
    return {**({} if table.get("preset") is None else {"preset": table["preset"]}), **settings}


def _settings(
    method: Mapping[str, Any], label: str, env: str, common: Mapping[str, Any], mistakes: Mistakes
) -> dict[str, Any] | None:
    """The full settings of a method in an environment, or None with the reason among the mistakes."""
    mistakes.unknown("key", method, METHOD, f"methods.{label}.")
    algo = str(method.get("algo", ""))
    if algo not in METHODS:
        mistakes.add(str(unknown_name("method", algo, METHODS)))
        return None
    config = METHODS[algo]
    fields = ["preset", *(field.name for field in dataclasses.fields(config))]
    for key in common:
        if key not in fields:
            mistakes.add(f"settings.{key} is no setting of {config.__name__}; give it to the methods that have it.")
    given = mistakes.expect(method.get("settings", {}), dict, f"methods.{label}.settings")
    given = {**{key: value for key, value in common.items() if key in fields}, **given}
    for pattern, table in mistakes.expect(method.get("where", {}), dict, f"methods.{label}.where").items():
        special = mistakes.expect(table, dict, f"methods.{label}.where.{pattern}")
        mistakes.unknown(f"setting of {config.__name__}", special, fields, "")
        if fnmatch.fnmatch(env, pattern):
            given |= special
    mistakes.unknown(f"setting of {config.__name__}", given, fields, "")
    try:
        chosen = config_from_dict(config, {key: value for key, value in given.items() if key in fields})
        check_settings(chosen)
        return config_dict(chosen)
    except IELError as error:
        mistakes.add(f"Method '{label}': {error}")
    except (TypeError, ValueError) as error:
        mistakes.add(f"Method '{label}' has a setting of the wrong kind ({error}).")
    return None


def _kind_name(kind: type) -> str:
    return {dict: "table", list: "list", int: "whole number", str: "text"}[kind]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
