"""A grid: environments x methods x planners x seeds, with the protocol they are measured by.

A grid is a TOML file, the fields of `GridFile`; docs/comparing.md shows all that can be in it. It is checked before
anything runs.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

import iel
from iel.envs.registry import canonical_name
from iel.errors import ConfigError, IELError, unknown_name
from iel.evaluation import Protocol, TaskRequest
from iel.learner import Method
from iel.loader import read_toml
from iel.methods import config_dict, config_from_dict, get_method
from iel.planning import PLANNERS, ActionKind
from iel.training.loop import check_seeds
from iel.training.shared import policy_fingerprint
from iel.typed import Amount, Count, Index, Seed, violation

BUILTIN = Path(__file__).parent / "grids"
Settings = dict[str, Any]
"""Of a method or a planner, as a file has them."""
Names = Annotated[tuple[str, ...], Meta(min_length=1)]
Columns = Annotated[tuple[Index, ...], Meta(min_length=1)]
T = TypeVar("T")


class GridProtocol(Struct, frozen=True, forbid_unknown_fields=True):
    """How every cell is evaluated."""

    episodes: Count = 20
    seed: Seed = 1000
    """Not one that was used while choosing settings."""
    tasks: Annotated[tuple[Seed, ...], Meta(min_length=1)] | None = None
    max_steps: Count | None = None
    action: ActionKind = "mean"
    checkpoints: Count = 1
    """Models measured of a training: with more than one, earlier steps as well."""
    distances: Index = 0
    """Episodes per band of distance, beside the tasks."""

    def __post_init__(self) -> None:
        if self.tasks is not None and len(set(self.tasks)) != len(self.tasks):
            raise ValueError("tasks must be different")

    def by_task(self, columns: tuple[int, ...] | None) -> Protocol:
        """Of the environment's tasks, conditioned on these columns of each goal (None: all)."""
        return Protocol(self.episodes, self.tasks, self.seed, self.max_steps, self.action, TaskRequest(columns))

    def by_distance(self) -> Protocol:
        """Of pairs of cells in bands of distance."""
        return Protocol(self.distances, None, self.seed, self.max_steps, self.action, by_distance=True)


class DataChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """Which data set of an environment: its episodes (None: the benchmark's own) and the seed it is collected with."""

    episodes: Count | None = None
    seed: Seed = 0


# ---------------------------------------------------------------- what a file holds


class DataTable(DataChoice, frozen=True, forbid_unknown_fields=True):
    """[data]"""

    where: dict[str, DataChoice] = {}
    """Pattern of environments -> what is different there."""


class PlannerTable(Struct, frozen=True):
    """[planners.LABEL]; all else in it are settings of the planner."""

    planner: str
    policy_of: str = ""
    goal_columns: dict[str, Columns] = {}


class MethodAtScale(Struct, frozen=True, forbid_unknown_fields=True):
    """[methods.scales.NAME]"""

    planners: Names | None = None
    settings: Settings = {}


class MethodTable(Struct, frozen=True, forbid_unknown_fields=True):
    """[[methods]]"""

    algo: str
    label: str = ""
    planners: Names = ("direct",)
    settings: Settings = {}
    where: dict[str, Settings] = {}
    scales: dict[str, MethodAtScale] = {}


class ScaledPart(Struct, frozen=True, forbid_unknown_fields=True):
    """[scales.NAME], and the keys at the top of a file."""

    title: str = ""
    environments: Names = ()
    seeds: tuple[Seed, ...] = (0,)
    preset: str | None = None
    settings: Settings = {}
    protocol: GridProtocol = GridProtocol()
    data: DataTable = DataTable()
    planners: dict[str, Settings] = {}


class GridFile(ScaledPart, frozen=True, forbid_unknown_fields=True):
    """A whole file."""

    methods: tuple[MethodTable, ...] = ()
    scales: dict[str, ScaledPart] = {}
    published: str | None = None


KEYS = {name for kind in (GridFile, MethodTable, GridProtocol, DataTable) for name in kind.__struct_fields__}


# ---------------------------------------------------------------- what is made of it


@dataclass(frozen=True)
class Variant:
    """A planner with its settings, under the name it has in tables."""

    label: str
    planner: str
    settings: Settings
    policy_of: str = ""
    """Method of the grid whose policy acts; empty: the method's own."""
    goal_columns: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Pattern of environments -> columns of each goal that are requested; elsewhere it is the whole goal."""

    def columns_in(self, env: str) -> tuple[int, ...] | None:
        """The requested columns of goals in an environment; None: all."""
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
        return config_from_dict(get_method(self.algo), self.settings)

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


def builtin_grids() -> list[str]:
    """Names of the grids that come with the package."""
    return sorted(path.stem for path in BUILTIN.glob("*.toml"))


def read_grid(source: str | Path, scale: str | None = None) -> Grid:
    """The grid of a TOML file, or one of the package by its name; `scale` is one of its `[scales.*]`.

    Raises a `ConfigError` that names what is wrong with it.
    """
    path = Path(source)
    if not str(source).endswith(".toml"):
        if str(source) not in builtin_grids():
            raise unknown_name("grid", str(source), builtin_grids())
        path = BUILTIN / f"{source}.toml"
    return check_grid(read_toml(path), path.stem, scale)


def check_grid(table: Mapping[str, Any], name: str, scale: str | None = None) -> Grid:
    """The grid that a TOML table describes; raises a `ConfigError` that names what is wrong with it."""
    try:
        scales = _as(table, GridFile, "").scales
        if scale is None and scales:
            scale = "laptop" if "laptop" in scales else next(iter(scales))
        chosen = dict(table)
        if scale is not None:
            if scale not in scales:
                raise unknown_name("scale", scale, scales, "" if scales else "there are none in it.")
            for key, value in table["scales"][scale].items():
                chosen[key] = {**chosen.get(key, {}), **value} if isinstance(value, dict) else value
        return _assemble(chosen, name, scale)
    except ConfigError as error:
        raise ConfigError(f"The grid '{name}': {error}") from None


def _as(table: object, kind: type[T], where: str) -> T:
    """A table of the file as what it should be; the error of an unknown key names the nearest one."""
    if wrong := violation(table, kind):
        if unknown := re.search(r"unknown field `(.*)`(?: at (.*))?", wrong):
            wrong = str(unknown_name("key", unknown[1], KEYS, "docs/comparing.md shows all there are."))
            raise ConfigError(f"{where}{f'{unknown[2]}: ' if unknown[2] else ''}{wrong}")
        raise ConfigError(f"{where}{wrong}.")
    return msgspec.convert(table, kind)


def _assemble(table: Mapping[str, Any], name: str, scale: str | None) -> Grid:
    file = _as(table, GridFile, "")
    if not file.environments or not file.methods:
        raise ConfigError("it needs `environments`, a list of at least one name, and [[methods]].")
    environments = tuple(dict.fromkeys(map(canonical_name, file.environments)))
    check_seeds(file.seeds)
    if "preset" in file.settings:
        raise ConfigError("settings.preset belongs at the top of the grid or into a scale, as `preset`.")
    common = {**({} if file.preset is None else {"preset": file.preset}), **file.settings}
    data = {env: _data(table.get("data", {}), env) for env in environments}
    variants = _variants(file.planners)
    cells: list[Cell] = []
    chosen: dict[str, tuple[str, ...]] = {}
    for method in file.methods:
        label = method.label or get_method(method.algo).name
        if label in chosen:
            raise ConfigError(f"Two methods are called '{label}'; give them different labels.")
        for pattern in method.scales:
            if not fnmatch.filter(file.scales, pattern):
                raise unknown_name("scale", pattern, file.scales)
        matching = (at for pattern, at in method.scales.items() if fnmatch.fnmatch(scale or "", pattern))
        own = next(matching, MethodAtScale())
        chosen[label] = tuple(dict.fromkeys(own.planners or method.planners))
        allowed = get_method(method.algo).planners
        for planner in chosen[label]:
            if planner not in variants:
                raise unknown_name("planner", planner, variants)
            if variants[planner].planner not in allowed:
                raise ConfigError(f"Planner '{planner}' cannot drive method '{label}'; use {', '.join(allowed)}.")
        planners = tuple(variants[planner] for planner in chosen[label])
        for env in environments:
            settings = _settings(method, label, env, common, own.settings)
            cells += [
                Cell(env, label, method.algo, settings, s, data[env], planners, file.protocol) for s in file.seeds
            ]
    cells = _with_drivers(cells, variants, chosen)
    cells.sort(key=lambda cell: cell.seed)  # every method once before any a second time: something to see early
    return Grid(
        name, file.title or name, scale, environments, tuple(chosen), chosen, file.seeds, file.protocol,
        file.published, tuple(cells),
    )  # fmt: skip


def _data(table: Settings, env: str) -> DataChoice:
    """Which data an environment is collected with: the general numbers, and those of patterns that match its name."""
    given = dict(table)
    for pattern, special in given.pop("where", {}).items():
        given |= special if fnmatch.fnmatch(env, pattern) else {}
    return msgspec.convert(given, DataChoice)


def _variants(tables: Mapping[str, Settings]) -> dict[str, Variant]:
    """Every planner under its own name, and those the grid defines (which may also change the usual ones)."""
    variants = {name: Variant(name, name, {}) for name in PLANNERS}
    for label, table in tables.items():
        where = f"planners.{label}"
        given = _as({"planner": label, **table}, PlannerTable, f"{where}: ")
        if given.planner not in PLANNERS:
            raise unknown_name("planner", given.planner, PLANNERS)
        settings = {name: value for name, value in table.items() if name not in PlannerTable.__struct_fields__}
        known = PLANNERS[given.planner].setting_names()
        for name, value in settings.items():
            if name not in known:
                raise unknown_name("setting", f"{where}.{name}", [f"{where}.{other}" for other in known])
            if wrong := violation(value, str | bool | Amount):
                raise ConfigError(f"{where}.{name}: {wrong}.")
        variants[label] = Variant(label, given.planner, settings, given.policy_of, given.goal_columns)
    return variants


def _settings(method: MethodTable, label: str, env: str, common: Settings, at_scale: Settings) -> Settings:
    """The full settings of a method in an environment."""
    config = get_method(method.algo)
    fields = ["preset", *(field.name for field in dataclasses.fields(config))]
    for name in common:
        if name not in fields:
            raise ConfigError(f"{config.__name__} has no setting settings.{name}; give it to the methods that have it.")
    given = {**common, **method.settings, **at_scale}
    for pattern, special in method.where.items():
        for name in special:  # also where no environment matches
            if name not in fields:
                raise unknown_name(f"setting of {config.__name__}", name, fields)
        given |= special if fnmatch.fnmatch(env, pattern) else {}
    try:
        return config_dict(config_from_dict(config, given))
    except (IELError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"Method '{label}': {error}") from None


def _with_drivers(
    cells: list[Cell], variants: Mapping[str, Variant], methods: Mapping[str, tuple[str, ...]]
) -> list[Cell]:
    """Every cell with the trainings of the methods whose policies drive it."""
    trained = {(cell.env, cell.method): {"algo": cell.algo, "settings": cell.settings} for cell in cells}
    for name in sorted({variant.policy_of for variant in variants.values()} - {""}):
        if name not in methods:
            raise unknown_name("method", name, methods)
        if any(variants[label].policy_of for label in methods[name]):
            raise ConfigError(f"Method '{name}' drives others, so its own planners can have no policy_of.")
        if any(cell.method == name and cell.policy_fingerprint("") is None for cell in cells):
            raise ConfigError(f"Method '{name}' is to drive others, which only the policy waypoints can.")
    for number, cell in enumerate(cells):
        drivers = sorted({variant.policy_of for variant in cell.planners} - {""})
        cells[number] = replace(cell, drivers={name: trained[cell.env, name] for name in drivers})
    return cells


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
