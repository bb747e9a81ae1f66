"""Obstacles drawn on the map: which nodes and edges of a planning graph they block.

A stroke is a polyline with a brush radius r. It is sampled at distances of r or less, so whatever crosses it comes
within r of a sample: a node is blocked within r of one, an edge if any of its own samples, r apart too, is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from iel.planning.graph import Edges

Floats = NDArray[np.floating[Any]]
SAMPLES = 4096
"""Samples of all strokes together, at most."""
ALONG = 24
"""Samples of an edge at most; a longer one is sampled more thinly."""


class Obstacles:
    """Strokes on a map whose axes are measured in `scale`."""

    def __init__(self, strokes: Sequence[tuple[Any, float]], scale: Floats):
        self.scale = scale
        parts: dict[float, list[Floats]] = {}
        left = SAMPLES
        for points, radius in strokes:
            samples = _sampled(np.asarray(points, np.float64).reshape(-1, 2) / scale, radius, left)
            left -= len(samples)
            if len(samples):
                parts.setdefault(radius, []).append(samples)
        self._trees = {radius: cKDTree(np.concatenate(pieces)) for radius, pieces in parts.items()}

    def __bool__(self) -> bool:
        return bool(self._trees)

    def covers(self, places: Floats) -> NDArray[np.bool_]:
        """Whether places (n, 2) lie on an obstacle."""
        covered = np.zeros(len(places), bool)
        for radius, tree in self._trees.items():
            covered |= tree.query(places / self.scale, distance_upper_bound=np.nextafter(radius, np.inf))[0] <= radius
        return covered

    def crossed(self, edges: Edges, places: Floats) -> NDArray[np.int64]:
        """(m, 2) edges between nodes at these places that an obstacle crosses."""
        if not self._trees:
            return np.empty((0, 2), np.int64)
        gap = np.min([tree.query(places / self.scale)[0] for tree in self._trees.values()], axis=0)
        ahead = (places[edges.target] - places[edges.source]) / self.scale
        length = np.hypot(*ahead.T)
        near = np.flatnonzero(np.minimum(gap[edges.source], gap[edges.target]) <= length / 2 + max(self._trees))
        count = int(np.clip(np.ceil(length[near].max(initial=0.0) / min(self._trees)), 1, ALONG)) + 1
        share = np.linspace(0.0, 1.0, count)[:, None, None]
        samples = places[edges.source[near]] + share * (ahead[near] * self.scale)
        hit = self.covers(samples.reshape(-1, 2)).reshape(count, -1).any(axis=0)
        return np.stack([edges.source[near][hit], edges.target[near][hit]], 1)


def _sampled(points: Floats, radius: float, most: int) -> Floats:
    """Points along a polyline, at most a radius apart; `most` of them, further apart where that is too few."""
    along = np.concatenate([[0.0], np.hypot(*np.diff(points, axis=0).T).cumsum()])
    at = np.linspace(0.0, along[-1], int(np.clip(np.ceil(along[-1] / radius) + 1, 1, most)))
    return np.column_stack([np.interp(at, along, axis) for axis in points.T])
