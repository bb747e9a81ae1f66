"""The states a planner may use, and what the data says about them.

    Atlas.of(data)                  every state of a data set, with its trajectories
    AsymGraph(...).node_atlas()     the nodes of a graph alone, and what the trajectories said about them
    atlas.save, Atlas.load          the latter as a file that an export carries, because the data stays behind

planner.safetensors holds `observations` and `embeddings` of the nodes; observed edges as `codes`, `steps` and their
penalty `unobserved_cost` (`iel.planning.observed`); `lookahead`; `node_scale`; and teleports as `teleports.aims` and
so on (`iel.planning.teleports`). All but the observations may be missing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from iel.data.positions import jump_rows
from iel.data.trajectories import Trajectories
from iel.distances import Booleans, Floats, Integers
from iel.errors import ConfigError, GeometryError, RunError
from iel.files import write_bytes
from iel.model.tensors import Tensors

if TYPE_CHECKING:
    from iel.model.model import Model

TOLERANCE = 1e-3
"""Largest relative difference between embeddings made here and at export: above rounding, below another model."""
COMPARED = 256
"""States whose embeddings are computed and compared when a file is read; checksums guard all of them."""
SLACK = 3.0
"""How many times slower than predicted an observed edge may be: demonstrations are noisy and not always optimal."""
AT_JUMPS = 1000.0
"""The penalty of other edges where positions teleport, unless another is given: they are a last resort."""


@dataclass(frozen=True, eq=False)
class ObservedEdges:
    """n(i, j), the least number of steps in which a trajectory went from node i to node j, for all pairs that one did
    (`iel.planning.observed`); by ascending code i * count + j."""

    count: int
    """Number of nodes."""
    codes: Integers
    steps: Integers

    def least(self, sources: Integers, targets: Integers) -> Floats:
        """n(i, j) of listed edges; infinite where none was observed."""
        code = np.asarray(sources, np.int64) * self.count + targets
        slot = np.minimum(np.searchsorted(self.codes, code), len(self.codes) - 1)
        if not len(self.codes):
            return np.full(len(code), np.inf)
        return np.where(self.codes[slot] == code, self.steps[slot], np.inf)

    def seen(self, sources: Integers, targets: Integers, predicted: Floats, slack: float = SLACK) -> Booleans:
        """Which edges were observed, given their predicted steps."""
        return self.least(sources, targets) <= 1.0 + slack * predicted


@dataclass(frozen=True, eq=False)
class ObservedTeleports:
    """K positions that move the agent elsewhere, as the data shows (`iel.planning.teleports`)."""

    aims: Floats
    """(K, o) observations to head for to enter them."""
    source: Integers
    """Nodes that `entered` can be entered from, both (entries,)."""
    entered: Integers
    left: Integers
    """Teleport, node and share of every exit, all (exits,)."""
    exits: Integers
    shares: Floats

    def __len__(self) -> int:
        return len(self.aims)


@dataclass(frozen=True, eq=False)
class Atlas:
    """Candidate states for planners. Fields after `trajectories` are what an export says where they are missing."""

    observations: Floats
    """(states, observation size)."""
    trajectories: Trajectories | None = None
    """The data that they are the rows of, in order; None where they are states alone."""
    chosen: bool = False
    """Whether they are the nodes of a graph already; what follows is about these nodes."""
    embeddings: Floats | None = None
    """phi of each, as their planner used it: computed in other batches it may differ in the last bit."""
    edges: ObservedEdges | None = None
    """Observed edges: pairs of nodes that a trajectory passed one after the other, and in how many steps."""
    penalty: float | None = None
    """Cost multiplier of all other edges."""
    teleports: ObservedTeleports | None = None
    """Positions that move the agent elsewhere."""
    lookahead: tuple[float, float] | None = None
    """How far ahead targets of a policy that is sent to states lie, for `asym-graph` and `sym-graph`."""
    node_scale: Floats | None = None
    """Where distances between embeddings mean nothing: what their columns are divided by to choose nodes."""

    directed: bool = True
    """Whether the data shows passages that were made one way only, as far as that is known."""

    def __post_init__(self) -> None:
        if self.observations.ndim != 2 or len(self.observations) == 0:
            raise GeometryError(
                f"The data's observations have shape {self.observations.shape}; a planner needs a table with some rows."
            )

    @classmethod
    def of(cls, data: Source) -> Atlas:
        """The atlas of a data set, or of a table of observations; an atlas is returned as it is."""
        if isinstance(data, Atlas):
            return data
        if isinstance(data, Trajectories):
            return cls(data.observations, data)
        return cls(np.asarray(data))

    @classmethod
    def blank(cls, width: int) -> Atlas:
        """One state of zeros: for `direct`, which looks at none."""
        return cls(np.zeros((1, width), np.float32))

    def __len__(self) -> int:
        return len(self.observations)

    def __repr__(self) -> str:
        episodes = "" if self.trajectories is None else f" of {len(self.trajectories)} episodes"
        return f"Atlas({len(self)} {'nodes' if self.chosen else 'states'}{episodes})"

    # ---------------------------------------------------------------- what trajectories say

    @property
    def resident(self) -> Trajectories | None:
        """The trajectories, if there are any and memory holds them."""
        return None if self.trajectories is None or self.trajectories.stored is not None else self.trajectories

    @cached_property
    def position_columns(self) -> tuple[int, ...]:
        """Columns that the data shows to be positions; none where nothing separates position from pose."""
        return () if self.resident is None else self.resident.position_columns

    @property
    def one_way(self) -> bool:
        """Whether some passages were made one way only, as the trajectories or an export say; True if unknown."""
        return self.directed if self.resident is None else self.resident.one_way

    def walked(self) -> Integers:
        """Where trajectories begin and end; one that teleports ends there."""
        if self.trajectories is None:
            raise ConfigError(
                "This data has only states, not trajectories that show edges; plan with the training data."
            )
        return np.union1d(self.trajectories.offsets, self.trajectories.jumps + 1)

    def penalty_for(self, given: float | None, columns: tuple[int, ...] = ()) -> float:
        """The cost multiplier of edges that were never observed: as given, else as exported, else `AT_JUMPS` if these
        columns of the data teleport (no trajectory crosses that gap, so no edge may), else 1: no penalty."""
        factor = self.penalty if given is None else given
        if factor is None:
            jumps = len(columns) and self.resident is not None and len(jump_rows(self.resident, list(columns)))
            factor = AT_JUMPS if jumps else 1.0
        if not factor >= 1.0:
            raise ConfigError(f"unobserved_cost is {factor}; give the cost factor (1 or more) of unobserved edges.")
        return float(factor)

    # ---------------------------------------------------------------- files

    def save(self, model: Model, path: Path) -> None:
        """Write the nodes of a graph to planner.safetensors."""
        from safetensors.numpy import save  # reading needs no package, writing does

        observations = np.asarray(self.observations, np.float32)
        embeddings = model.embed(observations) if self.embeddings is None else self.embeddings.astype(np.float32)
        arrays: dict[str, Any] = {"observations": observations, "embeddings": embeddings}
        if self.edges is not None:
            size = np.int32 if len(self) ** 2 < 2**31 else np.int64
            arrays |= {"codes": self.edges.codes.astype(size), "steps": self.edges.steps.astype(np.uint8)}
            arrays["unobserved_cost"] = np.array([self.penalty])
        if self.lookahead is not None:
            arrays["lookahead"] = np.array(self.lookahead)
        if not self.directed:
            arrays["directed"] = np.zeros(1, np.uint8)
        if self.node_scale is not None:
            arrays["node_scale"] = self.node_scale
        if self.teleports is not None:
            arrays |= {f"teleports.{name}": array for name, array in asdict(self.teleports).items()}
        write_bytes(path, save({name: np.require(array, requirements="C") for name, array in arrays.items()}))

    @classmethod
    def load(cls, model: Model, path: Path) -> Atlas:
        """Read planner.safetensors; every number is checked against the model and against the other tensors."""
        tensors, size = Tensors(path, ("node_scale", "unobserved_cost")), model.observation_size
        observations = tensors.take("observations", None, size)
        count, there = len(observations), frozenset(tensors.arrays)
        embeddings = tensors.take("embeddings", count, model.dimension) if "embeddings" in there else None
        if embeddings is not None:
            some = np.linspace(0, count - 1, min(count, COMPARED)).astype(int)
            off = np.abs(model.embed(observations[some]) - embeddings[some]).max()
            if off > TOLERANCE * max(1.0, float(np.abs(embeddings).max())):
                raise RunError(
                    f"{path} belongs to another model (its embeddings differ from this model's); export again."
                )
        edges, penalty = (None, None) if "unobserved_cost" not in there else _edges(tensors, count)
        ahead = tensors.take("lookahead", 2, dtype=np.float64) if "lookahead" in there else None
        scale = tensors.take("node_scale", model.dimension, dtype=np.float64) if "node_scale" in there else None
        if (ahead is not None and (ahead < 0.0).any()) or (scale is not None and not (scale > 0.0).all()):
            raise RunError(f"{path} holds a negative lookahead or node scale; export the run again.")
        directed = "directed" not in there or bool(tensors.take_numbers("directed", 2).any())
        teleports = _teleports(tensors, count, size) if "teleports.aims" in there else None
        tensors.require_all_taken()
        return cls(
            observations,
            chosen=True,
            embeddings=embeddings,
            edges=edges,
            penalty=penalty,
            teleports=teleports,
            lookahead=None if ahead is None else (float(ahead[0]), float(ahead[1])),
            node_scale=scale,
            directed=directed,
        )


Source = Atlas | Trajectories | NDArray[Any]
"""What planners take: an atlas, trajectories, or a table of observations."""


def rows_before(offsets: Integers, steps: int, count: int) -> Integers:
    """Rows whose trajectory goes on for `steps` steps: all of them, or `count` drawn evenly."""
    room = np.maximum(np.diff(offsets) - steps, 0)
    ends, total = np.cumsum(room), int(room.sum())
    few = np.random.default_rng(0).choice(total, count, replace=False) if total > count else np.arange(total)
    trajectory = np.searchsorted(ends, few, side="right")
    return offsets[trajectory] + few - (ends - room)[trajectory]


# ---------------------------------------------------------------- the file


def _edges(tensors: Tensors, nodes: int) -> tuple[ObservedEdges, float]:
    """Observed edges between the nodes, and the penalty of all others."""
    codes, steps = tensors.take_numbers("codes", nodes**2), tensors.take_numbers("steps", 256)
    (factor,) = tensors.take("unobserved_cost", 1, dtype=np.float64)
    if len(codes) != len(steps) or not ((np.diff(codes) > 0).all() and (steps > 0).all() and factor >= 1.0):
        raise RunError(f"{tensors.source} holds observed edges that do not fit its states; export the run again.")
    return ObservedEdges(nodes, codes, steps), float(factor)


def _teleports(tensors: Tensors, nodes: int, size: int) -> ObservedTeleports:
    """Where to head for to enter a teleport, from which nodes, and where it leads."""
    aims = tensors.take("teleports.aims", None, size, dtype=tensors.arrays["teleports.aims"].dtype.type)
    limits = {"source": nodes, "entered": len(aims), "left": len(aims), "exits": nodes}
    found = {name: tensors.take_numbers(f"teleports.{name}", limit) for name, limit in limits.items()}
    shares = tensors.take("teleports.shares", len(found["left"]), dtype=np.float64)
    fits = len(found["source"]) == len(found["entered"]) and len(found["left"]) == len(found["exits"])
    if not (fits and (shares > 0).all() and np.allclose(np.bincount(found["left"], shares, len(aims)), 1.0, atol=1e-4)):
        raise RunError(f"{tensors.source} holds teleports that do not fit its states; export the run again.")
    return ObservedTeleports(aims, **found, shares=shares)
