"""Obstacles drawn on the map: which nodes and edges of a planning graph they block.

A stroke is a polyline with a brush radius r. It is sampled at distances of r or less, so whatever crosses it comes
within r of a sample: a node is blocked within r of one, an edge if any of its own samples, r apart too, is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from iel.planning.search import Edges

Floats = NDArray[np.floating[Any]]
SAMPLES = 4096
"""Samples of all strokes together, at most."""
ALONG = 24
"""Samples of an edge at most; a longer one is sampled more thinly."""


class Obstacles:
    """Strokes on a map whose axes are measured in `scale`."""

    def __init__(self, strokes: Sequence[tuple[Any, float]], scale: Floats):
        self.scale = scale
        parts = [(_sampled(np.asarray(points, np.float64).reshape(-1, 2) / scale, r), r) for points, r in strokes]
        kept = [(points, r) for points, r in parts if len(points)]
        self.points = np.concatenate([points for points, _ in kept])[:SAMPLES] if kept else np.empty((0, 2))
        self.radii = np.concatenate([np.full(len(points), r) for points, r in kept])[:SAMPLES] if kept else np.empty(0)
        self._tree = cKDTree(self.points) if len(self.points) else None
        self._reach = float(self.radii.max(initial=0.0))

    def __bool__(self) -> bool:
        return self._tree is not None

    def gaps(self, places: Floats) -> Floats:
        """How far places (n, 2) are from the nearest sample; infinite without obstacles."""
        if self._tree is None:
            return np.full(len(places), np.inf)
        return self._tree.query(places / self.scale)[0]

    def covers(self, places: Floats) -> NDArray[np.bool_]:
        """Whether places (n, 2) lie on an obstacle."""
        if self._tree is None:
            return np.zeros(len(places), bool)
        if np.ptp(self.radii) == 0.0:
            return self.gaps(places) <= self._reach
        near = self._tree.query_ball_point(places / self.scale, self._reach)
        spots = places / self.scale
        return np.array(
            [bool((np.hypot(*(self.points[hit] - spots[i]).T) <= self.radii[hit]).any()) for i, hit in enumerate(near)],
            dtype=bool,
        )

    def crossed(self, edges: Edges, places: Floats) -> NDArray[np.int64]:
        """(m, 2) edges between nodes at these places that an obstacle crosses."""
        if self._tree is None:
            return np.empty((0, 2), np.int64)
        gap = self.gaps(places)
        ahead = (places[edges.target] - places[edges.source]) / self.scale
        length = np.hypot(*ahead.T)
        near = np.flatnonzero(np.minimum(gap[edges.source], gap[edges.target]) <= length / 2 + self._reach)
        if len(near) == 0:
            return np.empty((0, 2), np.int64)
        count = int(np.clip(np.ceil(length[near].max() / self.radii.min()), 1, ALONG)) + 1
        share = np.linspace(0.0, 1.0, count)[:, None, None]
        samples = places[edges.source[near]] + share * (ahead[near] * self.scale)
        hit = self.covers(samples.reshape(-1, 2)).reshape(count, -1).any(axis=0)
        return np.stack([edges.source[near][hit], edges.target[near][hit]], 1)


def _sampled(points: Floats, radius: float) -> Floats:
    """A polyline's points and as many between them as keep neighbours within the radius."""
    if len(points) < 2:
        return points
    pieces = [points[:1]]
    for first, second in pairwise(points):
        count = int(np.clip(np.ceil(np.hypot(*(second - first)) / radius), 1, SAMPLES))
        pieces.append(first + np.linspace(0.0, 1.0, count + 1)[1:, None] * (second - first))
    return np.concatenate(pieces)[:SAMPLES]
