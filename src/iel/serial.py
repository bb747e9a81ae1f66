"""Pytrees as named arrays, and named arrays as safetensors files. Nothing here can run code from a file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from safetensors.numpy import save

from iel.errors import RunError
from iel.files import write_bytes
from iel.loader import read_safetensors

Tree = TypeVar("Tree")


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Every leaf under a dotted name, e.g. `embedding.layers.0.kernel`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): np.asarray(leaf) for path, leaf in leaves}


def fill(like: Tree, arrays: Mapping[str, np.ndarray], source: str) -> Tree:
    """A tree of the shape of `like` with the leaves of `arrays`; anything missing, extra or misshapen is refused."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    expected = {_name(path): leaf for path, leaf in leaves}
    missing, extra = sorted(expected.keys() - arrays.keys()), sorted(arrays.keys() - expected.keys())
    if missing or extra:
        raise RunError(
            f"{source} does not fit this configuration: it lacks {missing[:3] or 'nothing'} and has unexpected "
            f"{extra[:3] or 'nothing'}; it belongs to another version or another method."
        )
    for name, leaf in expected.items():
        if arrays[name].shape != leaf.shape or arrays[name].dtype != leaf.dtype:
            raise RunError(
                f"{source}: {name} is {arrays[name].dtype}{list(arrays[name].shape)}, but the configuration has "
                f"{leaf.dtype}{list(leaf.shape)}; config and weights come from different runs."
            )
    return jax.tree_util.tree_unflatten(structure, [arrays[_name(path)] for path, _ in leaves])


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays to a safetensors file, whole or not at all."""
    # `require` keeps a scalar a scalar, which `ascontiguousarray` does not.
    write_bytes(path, save({name: np.require(array, requirements="C") for name, array in arrays.items()}))


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read a safetensors file."""
    return read_safetensors(path, error=RunError)


def _name(path: tuple) -> str:
    return ".".join(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path)
