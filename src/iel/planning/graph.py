"""The directed planning graph: prepared once per coreset, searched in milliseconds per goal.

For a goal the graph has the k cheapest out-edges of every node and, in both directions, the Euclidean spanning tree of
the coreset, which makes it strongly connected. Searched backwards from the goal's node it gives every node its distance
and its next hop:

    distance(i) = min_j C_ij + distance(j),     next(i) = smallest j that attains it.

For a `Displacement`, preparation finds which edges can matter for any goal; a goal then needs only N projections and
the costs of those candidates, and the result is the graph of the dense formula (`reference`) to the last bit. Any other
metric is asked for rows of costs, once where they are the same for all goals.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from iel.errors import ConfigError, GeometryError
from iel.metrics import (
    FLOOR,
    Displacement,
    Floats,
    Integers,
    LatentGoal,
    Metric,
    checked_costs,
    checked_points,
    directed_cost,
    lengths_to,
    pair_lengths,
    projections,
)
from iel.planning.candidates import Nearby, TooMany, around, nearest_pairs, typical_square
from iel.planning.chance import Portals, chance_search
from iel.planning.field import NO_HOP, Field
from iel.planning.screen import BLOCK_ELEMENTS, WIDEN, Screen, places
from iel.planning.search import Edges, search, without
from iel.planning.tree import Pairs, euclidean_tree
from iel.planning.witness import LONGEST, Connectivity, Witnesses, connectivity

MOST_CANDIDATES = 2e7
"""Candidates kept at most when the path is chosen automatically: about 800 MB."""


CHUNK_ELEMENTS = 1 << 16
"""Candidate costs worked on at a time: small enough to stay in a core's cache."""


@dataclass
class Report:
    """What preparation found and how long it took."""

    path: str = "pruned"
    """`pruned` (exact, from candidates), `dense` (exact, every pair) or `metric` (rows of any other metric)."""
    candidates: int = 0
    seconds: dict[str, float] = field(default_factory=dict)


class PlanningGraph:
    """A coreset's points, ready to be planned over for any goal.

    `path` forces the "pruned" or the "dense" computation of a `Displacement`; "auto" prunes while that is cheaper. Any
    other metric is asked for blocks of rows. `both_ways` adds the reverse of every kept edge (Sym-Graph). The
    Euclidean tree that keeps the graph connected is that of `tree_points`, where the points themselves are no space.
    Edges that `witnesses` did not see cost `unseen` times as much; an infinite factor takes them out.
    """

    def __init__(
        self,
        points: Any,
        metric: Metric,
        *,
        neighbours: int = 10,
        both_ways: bool = False,
        path: str = "auto",
        tree_points: Floats | None = None,
        witnesses: Witnesses | None = None,
        unseen: float = math.inf,
        recent: int = 4,
    ):
        self.points = checked_points(points, "coreset embeddings")
        self.columns = np.ascontiguousarray(self.points.T)
        self.metric = metric
        self.beta = metric.beta if isinstance(metric, Displacement) else None
        """beta of a displacement; None for a metric without structure."""
        if neighbours < 1:
            raise ConfigError(f"neighbours is {neighbours}; every node needs at least 1.")
        if path not in ("auto", "pruned", "dense"):
            raise ConfigError(f"path is '{path}'; choose auto, pruned or dense.")
        if self.beta is not None and self.beta > 1.0:
            warnings.warn(
                f"beta is {self.beta:g}: above 1 the directed cost breaks the triangle inequality, so an edge can cost "
                "more than a detour.",
                stacklevel=2,
            )
        self.neighbours = min(neighbours, self.count - 1)
        self.both_ways = both_ways
        self.witnesses, self.unseen = witnesses, unseen
        self.portals: Portals | None = None
        self.report = Report()
        self.seconds: dict[str, float] = {}
        self._recent: OrderedDict[bytes, Edges] = OrderedDict()
        self._capacity = max(1, recent)
        self._common: Edges | None = None
        self._table: NeighbourTable | None = None
        self._sources = np.repeat(np.arange(self.count), self.neighbours)
        self.near: Nearby | None = None
        self._screen: Screen | None = None
        self._prepare(path, self.points if tree_points is None else checked_points(tree_points, "tree points"))

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.points)

    @property
    def dimension(self) -> int:
        """Dimension of the latent space."""
        return self.points.shape[1]

    def _prepare(self, path: str, tree_points: Floats) -> None:
        """Find the candidates, or settle for the dense path; find the tree; write the report."""
        report, started = self.report, time.perf_counter()
        self.spacing = 0.0
        self.tree = Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        if self.count == 1:
            return
        # Typical distance to the k-th nearest node: the resolution of the graph.
        self.spacing = math.sqrt(max(0.0, typical_square(self.points, self.neighbours)))
        near: Pairs | None = None
        radii: Floats = np.empty(0)
        if self.beta is None:
            report.path = "metric"
        elif path != "dense":
            # Past a quarter of all pairs pruning gains nothing; past MOST_CANDIDATES it costs too much memory, though
            # of very many nodes 64 candidates each still cost less than looking at all pairs for every goal.
            most = max(MOST_CANDIDATES, 64.0 * self.count)
            useful = min(max(64.0 * self.count, 0.25 * self.count**2), most)
            limit = math.inf if path == "pruned" else useful
            try:
                near, radii = nearest_pairs(self.points, self.neighbours, math.exp(2.0 * self.beta), limit)
                self._table = NeighbourTable(near, self.count, self.neighbours)
                self.near = Nearby.of(near, radii, self.count)
                report.candidates = len(near)
            except TooMany:
                near = None
        if self.beta is not None and near is None:
            report.path, self._screen = "dense", Screen(self.points)
        report.seconds["neighbours"] = time.perf_counter() - started
        if near is None:
            near, radii = nearest_pairs(tree_points, self.neighbours, 1.0, math.inf)
        self.tree = euclidean_tree(tree_points, near, radii)
        report.seconds["total"] = time.perf_counter() - started

    @cached_property
    def vicinity(self) -> Integers | None:
        """Lists of the nodes around every node, along the graph, where costs are dear and the same for all goals."""
        if not (self.metric.dear and self.metric.for_every_goal) or self.count == 1:
            return None
        anywhere = LatentGoal(self.points[0], np.eye(self.dimension)[0], self.points[0])
        return around(self.edges(anywhere), self.count)

    def edges(self, goal: LatentGoal) -> Edges:
        """The directed graph for one goal, remembered for a while; one for all goals where costs are."""
        decisive = goal.key if self.beta is None else goal.key[1:2]  # of a displacement only omega_g
        key = b"every goal" if self.metric.for_every_goal else b"".join(decisive)
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        edges = self._build(goal)
        self._recent[key] = edges
        if len(self._recent) > self._capacity:
            self._recent.popitem(last=False)
        return edges

    def _build(self, goal: LatentGoal) -> Edges:
        """The edges that geometry gives, and among them dearer ones that nobody was seen to take."""
        edges = self.geometric(goal)
        if self.witnesses is None:
            return edges
        seen = self._seen(edges)
        if math.isinf(self.unseen):
            return Edges(edges.source[seen], edges.target[seen], edges.cost[seen])
        return Edges(edges.source, edges.target, np.where(seen, edges.cost, self.unseen * edges.cost))

    def _seen(self, edges: Edges) -> np.ndarray:
        if self.witnesses is None:
            raise ConfigError("This graph has no witnesses; make its planner with witnesses=1000.")
        return self.witnesses.seen(edges.source, edges.target, self.predicted(edges.cost))

    def predicted(self, costs: Floats) -> Floats:
        """The steps that edges are to take; as many as witnesses look for where the metric's costs are no steps."""
        return np.full(len(costs), LONGEST) if self.metric.discount is None else self.metric.steps(costs)

    def witnessed(self, goal: LatentGoal) -> Connectivity:
        """How the graph of one goal hangs together by the edges that were seen."""
        edges = self.geometric(goal)
        seen = self._seen(edges)
        return connectivity(self.count, edges.source, edges.target, seen)

    def geometric(self, goal: LatentGoal) -> Edges:
        """The edges that costs give, whoever took them; asked for once where they are the same for all goals."""
        if not self.metric.for_every_goal:
            return self._geometric(goal)
        if self._common is None:
            self._common = self._geometric(goal)
        return self._common

    def _geometric(self, goal: LatentGoal) -> Edges:
        """Top-k out-edges, then the tree edges that are not among them, both ways; an edge in both appears once."""
        if self.count == 1:
            return Edges(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        started = time.perf_counter()
        cheapest = self._cheapest(goal)
        self.seconds["neighbours"] = time.perf_counter() - started
        sources = np.concatenate([self.tree.first, self.tree.second])
        targets = np.concatenate([self.tree.second, self.tree.first])
        costs = self.edge_costs(sources, targets, goal)
        if self.beta is None:  # a metric's tables and rows may differ in the last bit
            listed = self._sources * self.count + cheapest.targets.ravel()
            new = ~np.isin(sources.astype(np.int64) * self.count + targets, listed)
        else:
            new = ~cheapest.contains(sources, targets, costs)
        edges = Edges(
            np.concatenate([self._sources, sources[new]]),
            np.concatenate([cheapest.targets.ravel(), targets[new]]),
            np.concatenate([cheapest.costs.ravel(), costs[new]]),
        )
        edges = self._with_reverses(edges, goal) if self.both_ways else edges
        self.seconds["join"] = time.perf_counter() - started - self.seconds["neighbours"]
        return edges

    def _cheapest(self, goal: LatentGoal) -> Cheapest:
        if self.beta is None:
            return cheapest_of_metric(self.points, self.metric, goal, self.neighbours)
        projection = projections(self.points, goal.direction)
        if self._table is not None:
            return self._table.cheapest(projection, self.beta)
        assert self._screen is not None
        return DirectedRows(self.points, self._screen, projection, self.beta).cheapest(self.neighbours)

    def _with_reverses(self, edges: Edges, goal: LatentGoal) -> Edges:
        forward = edges.source * np.int64(self.count) + edges.target
        backward = edges.target * np.int64(self.count) + edges.source
        code = np.setdiff1d(backward, forward)
        source, target = code // self.count, code % self.count
        return Edges(
            np.concatenate([edges.source, source]),
            np.concatenate([edges.target, target]),
            np.concatenate([edges.cost, self.edge_costs(source, target, goal)]),
        )

    def edge_costs(self, sources: Integers, targets: Integers, goal: LatentGoal) -> Floats:
        """Costs of listed edges between nodes."""
        if self.beta is None:
            rows = self.metric.row_costs(self.points[sources], self.points[targets], [goal] * len(sources))
            return checked_costs(rows, (len(sources),))
        projection = projections(self.points, goal.direction)
        lengths = pair_lengths(self.columns, sources, targets)
        return directed_cost(lengths, projection[targets] - projection[sources], self.beta)

    def field(
        self, goal: LatentGoal, *, nodes_off: np.ndarray | None = None, edges_off: Iterable[tuple[int, int]] = ()
    ) -> Field:
        """Search backwards from the goal; `nodes_off` (a mask) and `edges_off` (pairs source, target) are not used.

        The goal keeps the node that geometry gives it: were that node switched off, every distance is infinite.
        """
        goal = self._checked_goal(goal)
        edges = self.edges(goal)
        started = time.perf_counter()
        edges = without(edges, self.count, nodes_off, edges_off)
        projection = projections(self.points, goal.direction)
        to_goal = self._costs_to(goal, projection)
        node = int(np.argmin(to_goal))
        if nodes_off is not None and nodes_off[node]:
            distance = np.full(self.count, np.inf)
            next_hop: Integers = np.full(self.count, NO_HOP)
        else:
            distance, next_hop = self._search(edges, node, goal, nodes_off)
            if nodes_off is not None:
                distance[nodes_off], next_hop[nodes_off] = np.inf, NO_HOP
        self.seconds["search"] = time.perf_counter() - started
        hops = None if self.witnesses is None else self._hops(distance, next_hop, goal)
        return Field(goal, node, float(to_goal[node]), projection, distance, next_hop, hops=hops)

    def _search(
        self, edges: Edges, node: int, goal: LatentGoal, nodes_off: np.ndarray | None
    ) -> tuple[Floats, Integers]:
        portals = self.portals
        if portals is None:
            return search(edges, self.count, node)
        ends = self.points[portals.source], portals.points[portals.entered]
        entering = checked_costs(self.metric.row_costs(*ends, [goal] * len(portals.source)), (len(portals.source),))
        return chance_search(edges, self.count, node, portals, entering, nodes_off)

    def _hops(self, distance: Floats, next_hop: Integers, goal: LatentGoal) -> Floats:
        """What the metric says of every next hop, whoever was seen to make it; 0 where there is none, and where a
        portal is entered all that is still to come."""
        costs = np.where(next_hop < self.count, 0.0, distance)
        onward = np.flatnonzero((next_hop != NO_HOP) & (next_hop < self.count))
        costs[onward] = self.edge_costs(onward, next_hop[onward], goal)
        return costs

    def _costs_to(self, goal: LatentGoal, projection: Floats) -> Floats:
        """d(x_i, g; g) from every node."""
        if self.beta is None:
            return checked_costs(self.metric.costs(self.points, goal.point[None, :], goal), (self.count, 1))[:, 0]
        lengths = lengths_to(self.columns, goal.point)
        return directed_cost(lengths, float(goal.point @ goal.direction) - projection, self.beta)

    def _checked_goal(self, goal: LatentGoal) -> LatentGoal:
        point, direction = np.asarray(goal.point, dtype=np.float64), np.asarray(goal.direction, dtype=np.float64)
        if point.shape != (self.dimension,) or direction.shape != (self.dimension,):
            raise GeometryError(
                f"The goal has shape {point.shape} and its direction {direction.shape}; "
                f"both must be ({self.dimension},)."
            )
        if not (np.isfinite(point).all() and np.isfinite(direction).all()):
            raise GeometryError("The goal's embedding or direction is not finite; check the model and the goal.")
        return LatentGoal(point, direction, goal.observation)


# ---------------------------------------------------------------- the k cheapest out-edges of every node
#
# Out-edges of a node are ordered by (cost, target). The order is total, so the chosen edges are unique, whatever method
# finds them: from the candidates only (pruned), or from every pair in blocks of rows (dense, and for other metrics).


@dataclass(frozen=True)
class Cheapest:
    """The k cheapest out-edges of every node: targets and costs, (N, k), targets ascending."""

    targets: Integers
    costs: Floats
    largest: Floats
    """The largest of each row's costs, (N,)."""

    def contains(self, sources: Integers, targets: Integers, costs: Floats) -> np.ndarray:
        """Whether these edges, with these costs, were kept: by the tie rule two numbers per row decide."""
        bound = self.largest[sources]
        kept = costs < bound
        level = np.flatnonzero(costs == bound)
        if len(level):
            rows = sources[level]
            last = np.where(self.costs[rows] == bound[level, None], self.targets[rows], -1).max(axis=1)
            kept[level] = targets[level] <= last
        return kept


def keep_cheapest(costs: Floats, k: int) -> tuple[Integers, Floats]:
    """Places (in the flattened table) of the k cheapest entries of each row, in the order of columns, and the largest
    kept cost of each row; among equal costs the first columns win."""
    kth = np.partition(costs, k - 1, axis=1)[:, k - 1]
    chosen = costs <= kth[:, None]
    if np.count_nonzero(chosen) > k * len(costs):
        tied = np.flatnonzero(chosen.sum(axis=1) > k)
        order = np.argsort(costs[tied], axis=1, kind="stable")[:, :k]
        chosen[tied] = False
        chosen[tied[:, None], order] = True
    return np.flatnonzero(chosen), kth


class NeighbourTable:
    """Neighbour candidates as a few rectangles: rows of similar length together, padded with infinite lengths."""

    def __init__(self, near: Pairs, count: int, k: int):
        self.count, self.k = count, k
        starts = np.searchsorted(near.first, np.arange(count + 1))
        widths = np.diff(starts)
        order = np.argsort(widths, kind="stable")
        ordered = widths[order]
        self.blocks: list[tuple[Integers, Integers, Floats]] = []
        begin = 0
        while begin < count:
            # Rows are sorted by width: take as many as fit the chunk and waste at most a quarter on padding.
            narrow = max(1, int(ordered[begin]))
            wide_enough = int(np.searchsorted(ordered, narrow * 1.25 + 2, side="right"))
            end = max(begin + 1, min(wide_enough, begin + max(1, CHUNK_ELEMENTS // narrow)))
            rows = order[begin:end]
            width = int(widths[rows].max())
            inside = np.arange(width) < widths[rows][:, None]
            source = (starts[rows][:, None] + np.arange(width))[inside]
            targets = np.broadcast_to(rows[:, None], inside.shape).copy()
            targets[inside] = near.second[source]
            lengths = np.full(inside.shape, np.inf)
            lengths[inside] = near.lengths[source]
            self.blocks.append((rows, targets, lengths))
            begin = end

    def cheapest(self, projection: Floats, beta: float) -> Cheapest:
        """The k cheapest out-edges of every node for one goal."""
        targets = np.empty((self.count, self.k), dtype=np.int64)
        costs = np.empty((self.count, self.k))
        largest = np.empty(self.count)
        for rows, candidates, lengths in self.blocks:
            rises = projection[candidates]
            rises -= projection[rows][:, None]
            block = directed_cost(lengths, rises, beta)
            chosen, largest[rows] = keep_cheapest(block, self.k)
            targets[rows] = candidates.ravel()[chosen].reshape(-1, self.k)
            costs[rows] = block.ravel()[chosen].reshape(-1, self.k)
        return Cheapest(targets, costs, largest)


class DirectedRows:
    """Rows of the directed cost for one goal."""

    def __init__(self, points: Floats, screen: Screen, projection: Floats, beta: float):
        self.columns = np.ascontiguousarray(points.T)
        self.screen, self.projection, self.beta = screen, projection, beta
        self.count = len(points)

    def cheapest(self, k: int) -> Cheapest:
        """As `NeighbourTable.cheapest`, over all pairs: screened costs choose who gets an exact one.

        A relative error r of a length is at most a relative error (1 + beta) r of its cost.
        """
        targets = np.empty((self.count, k), dtype=np.int64)
        costs = np.empty((self.count, k))
        for rows, squares in self.screen.blocks():
            own = np.arange(len(rows))
            squares[own, rows] = np.inf
            least = np.maximum(squares.min(axis=1) - self.screen.slack, FLOOR**2)
            np.maximum(squares, FLOOR**2, out=squares)
            lengths = np.sqrt(squares, out=squares)
            rises = self.projection[None, :] - self.projection[rows][:, None]
            block = directed_cost(lengths, rises, self.beta)
            # Where rounding swamps the lengths everyone passes; e^99 is as good as infinity.
            error = np.exp(np.minimum((1.0 + self.beta) * self.screen.slack / least, 99.0)) * WIDEN
            kth = np.partition(block, k - 1, axis=1)[:, k - 1] * error
            row, column = places(block <= (kth * error)[:, None])
            exact_lengths = pair_lengths(self.columns, rows[row], column)
            exact = directed_cost(exact_lengths, self.projection[column] - self.projection[rows[row]], self.beta)
            chosen = np.lexsort((column, exact, row))[np.searchsorted(row, own)[:, None] + np.arange(k)]
            chosen.sort(axis=1)
            targets[rows], costs[rows] = column[chosen], exact[chosen]
        return Cheapest(targets, costs, costs.max(axis=1))


def cheapest_of_metric(points: Floats, metric: Metric, goal: LatentGoal, k: int) -> Cheapest:
    """The same for any metric: nothing can be pruned, so rows come in blocks, and no N^2 numbers are ever held."""
    count = len(points)
    targets, costs, largest = np.empty((count, k), dtype=np.int64), np.empty((count, k)), np.empty(count)
    height = max(1, BLOCK_ELEMENTS // count)
    for start in range(0, count, height):
        block = np.arange(start, min(start + height, count))
        table = checked_costs(metric.costs(points[block], points, goal), (len(block), count))
        table[np.arange(len(block)), block] = np.inf
        chosen, largest[block] = keep_cheapest(table, k)
        targets[block] = (chosen % count).reshape(-1, k)
        costs[block] = table.ravel()[chosen].reshape(-1, k)
    return Cheapest(targets, costs, largest)
