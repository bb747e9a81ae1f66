"""Where the rows of a batch come from: the device's memory, or a store on the disk.

Data in memory goes to the device as a whole, and so do the tables of a phase; batches are drawn there, inside of the
compiled loop. Data on the disk stays there: the same loop calls back for the rows of a batch (`iel.data.goals`), and
what a phase knows about every state (`tables`) is computed for those rows alone, which agrees to float tolerance.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from iel.data.goals import DeviceData, Facts, Shape, to_device
from iel.data.scaling import Scaling, standardised
from iel.data.store import FILES, RowReader
from iel.data.trajectories import Trajectories
from iel.errors import DataError
from iel.learner import Learner, Spec, Tables, Trained

CHUNK = 100
"""Steps between two looks at the metrics."""


def step_keys(key: jax.Array, step: Any) -> tuple[jax.Array, jax.Array]:
    """The keys of a step's batch and of its noise: f(seed, step)."""
    sample_key, update_key = jax.random.split(jax.random.fold_in(key, step))
    return sample_key, update_key


class MemorySource:
    """All rows, and the tables of a phase, on the device."""

    def __init__(self, data: Trajectories, spec: Spec, scaling: Scaling | None):
        self.data = to_device(data if scaling is None else standardised(data, scaling), spec.position)
        self.spec = spec

    def prepare(self, learner: Learner, trained: Trained, data: DeviceData) -> Tables:
        """What `seen` needs of a seed's own, computed once at the beginning of a phase."""
        return learner.tables(trained, data, self.spec)

    def seen(self, learner: Learner, prepared: Tables, data: DeviceData) -> tuple[DeviceData, Tables]:
        """The data and the tables that `sample` sees."""
        return data, prepared


class DiskSource:
    """Rows are read from a store when a batch needs them; `data` is what the device keeps."""

    def __init__(self, data: Trajectories, spec: Spec, scaling: Scaling | None):
        assert data.stored is not None
        if data.num_states >= 2**31:
            raise DataError(f"{data.name} has {data.num_states:,} states; row numbers here go up to 2^31.")
        self.spec, self.scaling, self.shape = spec, scaling, Shape.of(data)
        widths = {"observations": data.observation_size, "actions": data.action_size}
        self.readers = {name: RowReader(data.stored / FILES[name], width) for name, width in widths.items()}
        others = np.setdiff1d(np.arange(data.observation_size), np.array(spec.position, int))
        scale = data.scale if scaling is None else np.ones_like(data.scale)
        facts = data.offsets.astype(np.int32), scale, np.array(spec.position, np.int32), others.astype(np.int32)
        self.data = Facts(*map(jnp.asarray, facts))

    def prepare(self, learner: Learner, trained: Trained, data: Facts) -> Trained:
        """The networks trained so far: tables are computed from them row by row."""
        return trained

    def seen(self, learner: Learner, prepared: Trained, data: Facts) -> tuple[DeviceData, Tables]:
        """Data that reads its rows, and tables of them."""
        rows = self.shape.seen(data, self._read)
        return rows, learner.tables(prepared, rows, self.spec)

    def _read(self, name: str, rows: jax.Array) -> jax.Array:
        shape = jax.ShapeDtypeStruct((*rows.shape, self.readers[name].columns), jnp.float32)
        return jax.pure_callback(lambda numbers: self._rows(name, numbers), shape, rows, vmap_method="expand_dims")

    def _rows(self, name: str, numbers: Any) -> np.ndarray:
        found = self.readers[name](np.asarray(numbers))
        return self.scaling(found) if name == "observations" and self.scaling is not None else found


Source = MemorySource | DiskSource


def source_of(data: Trajectories, spec: Spec, scaling: Scaling | None) -> Source:
    """Data in memory goes to the device, data on the disk stays there."""
    return (MemorySource if data.stored is None else DiskSource)(data, spec, scaling)
