"""The tensors of a safetensors file, taken out one by one and checked."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iel.errors import RunError
from iel.loader import read_safetensors


class Tensors:
    """The tensors of a file, taken out one by one: each must have the shape that is expected, and none may be left."""

    def __init__(self, source: Path, unbounded: Collection[str] = ()):
        """Numbers must be finite; those of the tensors `unbounded` may be infinite."""
        self.source, self.arrays = source, read_safetensors(source)
        for name, array in self.arrays.items():
            if array.dtype.kind == "f" and not (~np.isnan(array) if name in unbounded else np.isfinite(array)).all():
                raise RunError(f"{source}: {name[:80]} holds a number that is not finite; export or train again.")

    def take(self, name: str, *shape: int | None, dtype: type = np.float32) -> NDArray[Any]:
        """One tensor; None stands for any length but 0."""
        array = self.arrays.pop(name, None)
        if array is None:
            raise RunError(f"{self.source} lacks the tensor {name}; its files do not belong together, copy them again.")
        fits = len(array.shape) == len(shape) and all(
            has == wanted if wanted is not None else has > 0 for has, wanted in zip(array.shape, shape, strict=True)
        )
        if array.dtype != dtype or not fits:
            expected = ", ".join("n" if length is None else str(length) for length in shape)
            raise RunError(
                f"{self.source}: {name} is {array.dtype}{list(array.shape)}, but {dtype.__name__}[{expected}] is "
                "expected; its files do not belong together, copy them again."
            )
        return np.ascontiguousarray(array)

    def require_all_taken(self) -> None:
        if self.arrays:
            raise RunError(
                f"{self.source} has the unexpected tensor {min(self.arrays)[:80]}; its files do not belong together, "
                "copy them again."
            )

    def take_numbers(self, name: str, limit: int) -> NDArray[np.int64]:
        """One list of whole numbers from 0 to `limit` - 1, of any integer type and length."""
        numbers = self.arrays.pop(name, np.zeros(0))
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu" or not ((numbers >= 0) & (numbers < limit)).all():
            raise RunError(f"{self.source}: {name} does not hold whole numbers below {limit}; copy its files again.")
        return numbers.astype(np.int64)
