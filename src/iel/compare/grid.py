"""A grid: environments x methods x planners x seeds, with the protocol they are measured by.

A grid is a TOML file; docs/comparing.md shows all that can be in it. Everything is checked before anything runs, and
all mistakes are told at once.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import typing
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

import iel
from iel.envs.registry import canonical_name
from iel.errors import ConfigError, IELError, unknown_name
from iel.evaluation import Ask, Protocol
from iel.learner import Method
from iel.loader import read_toml
from iel.methods import METHODS, config_dict, config_from_dict
from iel.planning import ACTION_KINDS, PLANNERS, ActionKind
from iel.training.shared import policy_fingerprint
from iel.typed import LARGEST, SEEDS, Amount, Count, Index, Seed, shown, violation

SHIPPED = Path(__file__).parent / "grids"
SCALED = ("title", "environments", "seeds", "preset", "settings", "protocol", "data", "planners")
KEYS = (*SCALED, "methods", "scales", "published")
METHOD = ("algo", "label", "planners", "settings", "where", "scales")
SEED = f"a whole number from 0 to {SEEDS - 1}"
WORDS = {"seed": SEED, "action": f"one of {', '.join(ACTION_KINDS)}"}
"""What a value must be, where it is not a count."""
Settings = dict[str, Any]
"""Of a method or a planner, as a file has them."""
Table = Mapping[str, Any]
T = typing.TypeVar("T")


@dataclass(frozen=True)
class GridProtocol:
    """How every cell is evaluated."""

    episodes: Count = 20
    seed: Seed = 1000
    """Not one that was used while choosing settings."""
    tasks: tuple[Seed, ...] | None = None
    max_steps: Count | None = None
    action: ActionKind = "mean"
    checkpoints: Count = 1
    """Models measured of a training: with more than one, earlier steps as well."""
    distances: Index = 0
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

    episodes: Count | None = None
    seed: Seed = 0


@dataclass(frozen=True)
class Variant:
    """A planner with its settings, under the name it has in tables."""

    label: str
    planner: str
    settings: Settings
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
    settings: Settings
    seed: int
    data: DataChoice
    planners: tuple[Variant, ...]
    protocol: GridProtocol
    drivers: dict[str, Settings] = field(default_factory=dict)
    """Methods whose policies act in some of the planners: `algo` and `settings` of each."""

    def driver(self, method: str) -> Cell:
        """The training of another method with the same data and seed."""
        return replace(self, method=method, **self.drivers[method], planners=(), drivers={})

    @property
    def config(self) -> Method:
        """The method with its settings."""
        return config_from_dict(METHODS[self.algo], self.settings)

    def policy_fingerprint(self, data_fingerprint: str) -> str | None:
        """Hash of all that decides a policy which is the same under every geometry; None where there is none."""
        return policy_fingerprint(self.config, data_fingerprint, self.seed) if self.settings.get("policy") else None

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


def check_grid(table: Table, name: str, scale: str | None = None) -> Grid:
    """The grid a TOML table describes; raises one error that lists everything wrong with it."""
    mistakes = Mistakes()
    mistakes.unknown("key", table, KEYS, "")
    scales = mistakes.table(table.get("scales", {}), "scales")
    if scale is None and scales:
        scale = "laptop" if "laptop" in scales else next(iter(scales))
    chosen = dict(table)
    if scale in scales:
        for key, value in mistakes.table(scales[scale], f"scales.{scale}", SCALED).items():
            both = isinstance(value, dict) and isinstance(chosen.get(key), dict)
            chosen[key] = {**chosen[key], **value} if both else value
    elif scale is not None:
        mistakes.add(str(unknown_name("scale", scale, scales)) if scales else f"There is no scale '{scale}' in it.")
    if isinstance(table.get("methods"), list):
        chosen["methods"] = [_at_scale(method, scale, scales, mistakes) for method in table["methods"]]
    grid = _assemble(chosen, name, scale, mistakes)
    if mistakes.found:
        count = "1 mistake" if len(mistakes.found) == 1 else f"{len(mistakes.found)} mistakes"
        raise ConfigError(f"The grid '{name}' has {count}: " + " ".join(mistakes.found))
    return grid


def _at_scale(method: object, scale: str | None, scales: Table, mistakes: Mistakes) -> object:
    """A method with what it has at this scale only; its other settings stay."""
    if not isinstance(method, dict) or "scales" not in method:
        return method
    where = f"methods.{method.get('label', method.get('algo'))}.scales"
    tables = mistakes.table(method["scales"], where, scales, "scale")
    keys = ("planners", "settings")
    own = {name: mistakes.table(table, f"{where}.{name}", keys) for name, table in tables.items()}.get(str(scale), {})
    settings = [mistakes.table(part.get("settings", {}), where) for part in (method, own)]
    return {**method, **own, "settings": {**settings[0], **settings[1]}}


class Mistakes:
    """Everything wrong with a grid, in the order it was met."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, mistake: str) -> None:
        if mistake not in self.found:
            self.found.append(mistake)

    def unknown(self, kind: str, given: Iterable[str], known: Iterable[str], where: str) -> None:
        names = [f"{where}{name}" for name in known]
        for key in given:
            if f"{where}{key}" not in names:
                self.add(str(unknown_name(kind, f"{where}{key}", names)))

    def table(self, value: object, where: str, known: Iterable[str] | None = None, kind: str = "key") -> Settings:
        """`value` if it is a table, with keys that are known, else an empty one and a mistake."""
        if not isinstance(value, dict):
            self.add(f"{where} must be a table, but is {shown(value)}.")
            return {}
        if known is not None:
            self.unknown(kind, value, known, f"{where}.")
        return value

    def numbers(self, value: Any, where: str) -> tuple[int, ...]:
        """A list of different whole numbers that can be seeds."""
        if violation(value, list[Seed]) or not value or len(set(value)) != len(value):
            self.add(f"{where} must be a list of different whole numbers from 0 to {SEEDS - 1}, but is {shown(value)}.")
            return ()
        return tuple(value)

    def fields(self, value: object, where: str, kind: type[Any]) -> Settings:
        """What a table says of the fields of `kind`."""
        hints = typing.get_type_hints(kind, include_extras=True)
        given = {name: item for name, item in self.table(value, where, hints).items() if name in hints}
        for name, item in given.items():
            if name == "tasks":
                self.numbers(item, f"{where}.tasks")
            elif violation(item, hints[name]):
                wanted = WORDS.get(name, f"a whole number from 1 to {LARGEST}")
                self.add(f"{where}.{name} must be {wanted}, not {shown(item)}.")
        return given


def _assemble(table: Table, name: str, scale: str | None, mistakes: Mistakes) -> Grid:
    environments = _environments(table.get("environments", []), mistakes)
    seeds = mistakes.numbers(table.get("seeds", [0]), "seeds")
    protocol = _typed(mistakes.fields(table.get("protocol", {}), "protocol", GridProtocol), GridProtocol)
    data = {env: _data(table, env, mistakes) for env in environments or ("",)}
    variants = _variants(table.get("planners", {}), mistakes)
    common = mistakes.table(table.get("settings", {}), "settings")
    if "preset" in common:
        mistakes.add("settings.preset belongs at the top of the grid or into a scale, as `preset`.")
    common = {**({} if table.get("preset") is None else {"preset": table["preset"]}), **common}
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
        chosen[label] = _planners_of(method, label, variants, mistakes)
        planners = tuple(variants[known] for known in chosen[label])
        for env in environments or ("",):  # a method is checked even where there is no place for it
            settings = _settings(method, label, env, common, mistakes)
            if settings is not None:
                cells += [Cell(env, label, method["algo"], settings, s, data[env], planners, protocol) for s in seeds]
    cells = _with_drivers(cells, variants, chosen, mistakes)
    cells.sort(key=lambda cell: cell.seed)  # every method once before any a second time: something to see early
    title, published = str(table.get("title", name)), table.get("published")
    return Grid(
        name, title, scale, environments, tuple(chosen), chosen, seeds, protocol, published, tuple(cells)
    )  # fmt: skip


def _typed(given: Settings, kind: type[T]) -> T:
    """The fields of `kind`; with mistakes, which are noted by now, its defaults."""
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError:
        return kind()


def _environments(names: object, mistakes: Mistakes) -> tuple[str, ...]:
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


def _data(table: Table, env: str, mistakes: Mistakes) -> DataChoice:
    """Which data an environment is collected with: the general numbers, and those of patterns that match its name."""
    given = dict(mistakes.table(table.get("data", {}), "data"))
    for pattern, special in mistakes.table(given.pop("where", {}), "data.where").items():
        numbers = mistakes.fields(special, "data.where", DataChoice)
        given |= numbers if fnmatch.fnmatch(env, pattern) else {}
    return _typed(mistakes.fields(given, "data", DataChoice), DataChoice)


def _variants(tables: object, mistakes: Mistakes) -> dict[str, Variant]:
    """Every planner under its own name, and those the grid defines (which may also change the usual ones)."""
    variants = {name: Variant(name, name, {}) for name in PLANNERS}
    for label, table in mistakes.table(tables, "planners").items():
        where = f"planners.{label}"
        settings = dict(mistakes.table(table, where))
        planner, policy_of = str(settings.pop("planner", label)), str(settings.pop("policy_of", ""))
        asked = mistakes.table(settings.pop("goal_columns", {}), f"{where}.goal_columns")
        columns = {name: mistakes.numbers(own, f"{where}.goal_columns.{name}") for name, own in asked.items()}
        if planner not in PLANNERS:
            mistakes.add(str(unknown_name("planner", planner, PLANNERS)))
            variants[label] = Variant(label, "direct", {})
            continue
        mistakes.unknown("setting", settings, planner_fields(planner), f"{where}.")
        for name, value in settings.items():
            if not isinstance(value, (str, bool)) and violation(value, Amount):
                mistakes.add(f"{where}.{name} must be a number from 0 to {LARGEST}, but is {shown(value)}.")
        variants[label] = Variant(label, planner, settings, policy_of, columns)
    return variants


def _with_drivers(
    cells: list[Cell], variants: Mapping[str, Variant], methods: Mapping[str, tuple[str, ...]], mistakes: Mistakes
) -> list[Cell]:
    """Every cell with the trainings of the methods whose policies drive it."""
    trained = {(cell.env, cell.method): {"algo": cell.algo, "settings": cell.settings} for cell in cells}
    for name in sorted({variant.policy_of for variant in variants.values() if variant.policy_of}):
        if name not in methods:
            mistakes.add(str(unknown_name("method", name, methods)))
        elif any(variants[label].policy_of for label in methods[name]):
            mistakes.add(f"Method '{name}' drives others, so its own planners can have no policy_of.")
        elif any(cell.method == name and cell.policy_fingerprint("") is None for cell in cells):
            mistakes.add(f"Method '{name}' is to drive others, which only the policy waypoints can.")
    if mistakes.found:
        return cells
    others = [sorted({variant.policy_of for variant in cell.planners if variant.policy_of}) for cell in cells]
    return [
        replace(cell, drivers={name: trained[cell.env, name] for name in names})
        for cell, names in zip(cells, others, strict=True)
    ]


def planner_fields(planner: str) -> list[str]:
    """What can be set of a planner from a file."""
    return sorted(PLANNERS[planner].setting_names())


def _planners_of(method: Table, label: str, variants: Mapping[str, Variant], mistakes: Mistakes) -> tuple[str, ...]:
    names = method.get("planners", ["direct"])
    if not isinstance(names, list) or not names:
        mistakes.add(f"The planners of method '{label}' must be a list of at least one name.")
        return ()
    entry = METHODS.get(str(method.get("algo")))
    known = dict.fromkeys(str(name) for name in names)
    mistakes.unknown("planner", known, variants, "")
    for name in known:
        if entry is not None and name in variants and variants[name].planner not in entry.planners:
            mistakes.add(f"Planner '{name}' cannot drive method '{label}'; use {', '.join(entry.planners)}.")
    return tuple(name for name in known if name in variants)


def _settings(method: Table, label: str, env: str, common: Table, mistakes: Mistakes) -> Settings | None:
    """The full settings of a method in an environment, or None with the reason among the mistakes."""
    where = f"methods.{label}."
    mistakes.unknown("key", method, METHOD, where)
    algo = str(method.get("algo", ""))
    if algo not in METHODS:
        mistakes.add(str(unknown_name("method", algo, METHODS)))
        return None
    config = METHODS[algo]
    fields = ["preset", *(field.name for field in dataclasses.fields(config))]
    for key in common:
        if key not in fields:
            mistakes.add(f"settings.{key} is no setting of {config.__name__}; give it to the methods that have it.")
    given = {**common, **mistakes.table(method.get("settings", {}), f"{where}settings")}
    for pattern, table in mistakes.table(method.get("where", {}), f"{where}where").items():
        special = mistakes.table(table, f"{where}where.{pattern}")
        mistakes.unknown(f"setting of {config.__name__}", special, fields, "")
        given |= special if fnmatch.fnmatch(env, pattern) else {}
    mistakes.unknown(f"setting of {config.__name__}", [key for key in given if key not in common], fields, "")
    try:
        return config_dict(config_from_dict(config, {key: value for key, value in given.items() if key in fields}))
    except IELError as error:
        mistakes.add(f"Method '{label}': {error}")
    except (TypeError, ValueError) as error:
        mistakes.add(f"Method '{label}' has a setting of the wrong kind ({error}).")
    return None


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
