"""What a method is: a frozen configuration with a handful of pure functions.

    phases()                              -> the named phases of training and their lengths
    init(key, spec)                       -> state, one pytree with everything training changes
    tables(phase, state, data)            -> what is frozen during the phase, computed once for every state of the data
    sample(phase, key, data, tables)      -> batch
    update(phase, state, batch, key)      -> (state, metrics)
    model(state, spec)                    -> the frozen Model that is shipped

The training loop, checkpoints, evaluation and planners work with anything that keeps this contract;
`check_algo` proves that a method does.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from iel.data.goals import DeviceData, to_device
from iel.data.trajectories import Trajectories
from iel.errors import ConfigError, unknown_name

State = Any
Batch = Any
Tables = Any
Metrics = dict[str, jax.Array]
Config = TypeVar("Config", bound=type)


class Spec(NamedTuple):
    """What networks need to know about the data."""

    observation_size: int
    action_size: int


class Phase(NamedTuple):
    """A stretch of training with one loss."""

    name: str
    steps: int


class Algo(Protocol):
    """The contract; see the head of this file."""

    name: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]

    def phases(self) -> tuple[Phase, ...]: ...
    def init(self, key: jax.Array, spec: Spec) -> State: ...
    def tables(self, phase: str, state: State, data: DeviceData) -> Tables: ...
    def sample(self, phase: str, key: jax.Array, data: DeviceData, tables: Tables) -> Batch: ...
    def update(self, phase: str, state: State, batch: Batch, key: jax.Array) -> tuple[State, Metrics]: ...
    def model(self, state: State, spec: Spec) -> Any: ...


def with_presets(presets: Mapping[str, Mapping[str, Any]]):
    """Class decorator: `Method(preset="laptop", beta=0.3)` is the preset with what was said explicitly on top."""

    def decorate(cls: Config) -> Config:
        generated = cls.__init__  # type: ignore[misc]
        names = [field.name for field in dataclasses.fields(cls)]

        def __init__(self, *, preset: str = "paper", **settings: Any) -> None:
            if preset not in presets:
                raise unknown_name("preset", preset, presets)
            for name in settings:
                if name not in names:
                    raise unknown_name(f"setting of {cls.__name__}", name, names)
            generated(self, preset=preset, **{**presets[preset], **settings})

        cls.__init__ = __init__  # type: ignore[misc]
        cls.presets = presets  # type: ignore[attr-defined]
        return cls

    return decorate


def config_dict(algo: Any) -> dict[str, Any]:
    """A method's settings as JSON-safe values."""
    return json.loads(json.dumps(dataclasses.asdict(algo)))


def config_from_dict(cls: Any, settings: Mapping[str, Any]) -> Any:
    """The inverse of `config_dict`: lists become the tuples the configuration holds."""
    return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()})


def require_positive(algo: Any, *names: str) -> None:
    """Refuse settings that must be positive and are not."""
    for name in names:
        values = getattr(algo, name)
        if any(value <= 0 for value in (values if isinstance(values, tuple) else (values,))):
            raise ConfigError(f"{name} must be positive, but is {values}.")


def require_fraction(algo: Any, *names: str) -> None:
    """Refuse settings that must lie strictly between 0 and 1 and do not."""
    for name in names:
        if not 0.0 < getattr(algo, name) < 1.0:
            raise ConfigError(f"{name} must lie strictly between 0 and 1, but is {getattr(algo, name)}.")


def require_share(algo: Any, *names: str) -> None:
    """Refuse settings that must lie between 0 and 1, ends included, and do not."""
    for name in names:
        if not 0.0 <= getattr(algo, name) <= 1.0:
            raise ConfigError(f"{name} is a share and must lie between 0 and 1, but is {getattr(algo, name)}.")


# ---------------------------------------------------------------- the check


def check_algo(algo: Any, data: Trajectories | None = None) -> None:
    """Run the whole contract on a small data set; raises AssertionError with the promise that is broken.

    Checked in every phase: shapes and types are preserved by `update` (so that it can be scanned), metrics are
    finite scalars, the same key gives the same bits, another key does not, seeds can be mapped, and the model
    survives a round trip through its files. The configuration must survive JSON.
    """
    data = data or _random_walks()
    arrays, spec = to_device(data), Spec(data.observation_size, data.action_size)
    assert config_from_dict(type(algo), config_dict(algo)) == algo, "the configuration does not survive JSON"
    phases = algo.phases()
    assert phases and all(phase.steps >= 0 for phase in phases), "phases() must name at least one phase"

    state = jax.jit(lambda key: algo.init(key, spec))(jax.random.key(0))
    for phase in phases:
        state = _check_phase(algo, phase.name, state, arrays, spec)
    _check_model(algo, state, spec, data)


def _check_phase(algo: Any, phase: str, state: State, arrays: DeviceData, spec: Spec) -> State:
    tables = jax.jit(lambda state: algo.tables(phase, state, arrays))(state)

    @jax.jit
    def step(state: State, key: jax.Array) -> tuple[State, Metrics]:
        sample_key, update_key = jax.random.split(key)
        return algo.update(phase, state, algo.sample(phase, sample_key, arrays, tables), update_key)

    after, metrics = step(state, jax.random.key(1))
    before_types = jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), state)
    assert before_types == jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), after), f"{phase}: update reshapes state"
    for name, value in metrics.items():
        assert value.shape == () and bool(jnp.isfinite(value)), f"{phase}: metric {name} is not a finite scalar"
    again, _ = step(state, jax.random.key(1))
    other, _ = step(state, jax.random.key(2))
    assert _same(after, again), f"{phase}: the same key gave two results"
    assert not _same(after, other), f"{phase}: the key does not matter"
    assert not _same(after, state), f"{phase}: update changes nothing"

    def from_scratch(key: jax.Array) -> tuple[State, Metrics]:
        fresh = algo.init(key, spec)
        return algo.update(phase, fresh, algo.sample(phase, key, arrays, algo.tables(phase, fresh, arrays)), key)

    # Whether seeds can be mapped shows when the program is traced; compiling it would only take time.
    jax.eval_shape(jax.vmap(from_scratch), jax.random.split(jax.random.key(3), 2))
    return after


def _check_model(algo: Any, state: State, spec: Spec, data: Trajectories) -> None:
    import tempfile
    from pathlib import Path

    from iel.algos.model import load_model

    model = algo.model(state, spec)
    with tempfile.TemporaryDirectory() as scratch:
        model.save(Path(scratch) / "model")
        loaded = load_model(Path(scratch) / "model")
    observations = data.observations[:7]
    goals = data.observations[-7:]
    directions = model.task(goals)
    answers = [
        ("embed", model.embed(observations), loaded.embed(observations)),
        ("task", directions, loaded.task(goals)),
        ("act", model.act(observations, directions), loaded.act(observations, directions)),
    ]
    if model.has_distance:
        distances = model.hitting_time(observations, goals), loaded.hitting_time(observations, goals)
        answers.append(("hitting_time", *distances))
    for name, mine, theirs in answers:
        assert isinstance(mine, np.ndarray) and np.isfinite(mine).all(), f"model.{name} is not a finite numpy array"
        assert np.array_equal(mine, theirs), f"model.{name} changes when saved and loaded"
    assert np.allclose(np.linalg.norm(directions, axis=1), 1.0, atol=1e-3), "model.task does not give unit vectors"
    assert model.act(observations, directions).shape == (7, spec.action_size), "model.act has the wrong shape"


def _same(one: Any, other: Any) -> bool:
    return all(jax.tree.leaves(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), one, other)))


def _random_walks() -> Trajectories:
    rng = np.random.default_rng(0)
    episodes = []
    for length in (12, 30, 7, 21):
        actions = rng.uniform(-1, 1, (length, 2))
        episodes.append((np.concatenate([np.zeros((1, 2)), actions.cumsum(0)]), actions))
    return Trajectories.from_episodes(episodes, "random walks")
