"""Points in small boxes, so that near ones are found without looking at all pairs.

The points are turned into the axes of their principal components, which keeps lengths, and split again and again at the
median of the longest side until a box holds `SIZE` of them. Between two boxes A and B lies at least the gap

    gap(A, B)^2 = sum over axes of max(0, low_B - high_A, low_A - high_B)^2  <=  ||x - y||^2,   x in A, y in B,

so every point within r of some point of A is in a box with gap(A, B) <= r. Learned embeddings have few directions that
matter: of a million points of a bent four-dimensional sheet in 32 dimensions a box meets some thousands.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from iel.metrics import Floats, Integers

SIZE = 96
"""Points in a box, at most: smaller boxes fit closer, larger ones make larger matrix products."""
AXES = 12
"""Leading axes whose gaps are measured; any number gives a bound."""
SAFE = 1.0 - 1e-9
"""Gaps are made smaller by this, far more than the rounding of a rotation."""


class Boxes:
    """All points of a table, in boxes."""

    def __init__(self, points: Floats):
        turned = _principal(points)
        self.order, self.starts = _split(turned)
        """Rows box by box, and where each box begins."""
        sorted_points = turned[self.order]
        self.low = np.minimum.reduceat(sorted_points, self.starts[:-1])
        self.high = np.maximum.reduceat(sorted_points, self.starts[:-1])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def members(self, boxes: Integers) -> Integers:
        """The rows in these boxes."""
        return np.concatenate([self.order[self.starts[box] : self.starts[box + 1]] for box in boxes])

    def gaps(self, box: int) -> Floats:
        """Squared gap between a box and every box."""
        gap = np.maximum(self.low - self.high[box], self.low[box] - self.high)
        np.maximum(gap, 0.0, out=gap)
        return SAFE * np.einsum("bd,bd->b", gap, gap)


def _principal(points: Floats) -> Floats:
    """The leading coordinates of the points in their principal axes."""
    centred = points - points.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    return centred @ axes[:, ::-1][:, :AXES]


def _split(turned: Floats) -> tuple[Integers, Integers]:
    """(rows in order of their boxes, first place of every box and the end)."""
    order, bounds = np.arange(len(turned)), [0, len(turned)]
    while max(np.diff(bounds)) > SIZE:
        halved = [0]
        for begin, end in pairwise(bounds):
            rows = order[begin:end]
            table = turned[rows]
            middle = (end - begin) // 2
            longest = table[:, int(np.argmax(np.ptp(table, axis=0)))]
            order[begin:end] = rows[np.argpartition(longest, middle)]
            halved += [begin + middle, end]
        bounds = halved
    return order, np.array(bounds)
