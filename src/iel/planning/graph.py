"""The directed planning graph: prepared once per coreset, searched in milliseconds per goal.

For a goal with direction w the graph has the k cheapest out-edges of every node and, in both directions, the spanning
tree of the symmetrised cost, which makes it strongly connected. Searched backwards from the goal's node it gives every
node its distance and its next hop:

    distance(i) = min_j C_ij + distance(j),     next(i) = smallest j that attains it.

Preparation finds which edges can matter for any goal; a goal then needs only N projections and the costs of those
candidates. The result is the graph of the dense formula (`reference`) to the last bit.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from iel.errors import ConfigError, GeometryError
from iel.planning.bottleneck import Pairs
from iel.planning.candidates import TooMany, nearest_pairs, tree_pairs, typical_square
from iel.planning.edges import Cheapest, DenseRows, DirectedRows, NeighbourTable, TreeTable, dense_tree
from iel.planning.geometry import (
    CostFunction,
    Floats,
    Integers,
    checked_beta,
    checked_points,
    directed_cost,
    lengths_to,
    pair_lengths,
    projections,
)
from iel.planning.screen import Screen
from iel.planning.usercost import CostRows, edge_costs

NO_HOP = -1
MOST_CANDIDATES = 2e7
"""Candidates kept at most when the path is chosen automatically: about 800 MB."""


@dataclass(frozen=True)
class Edges:
    """A directed graph as lists: source[e] -> target[e] at cost[e]."""

    source: Integers
    target: Integers
    cost: Floats

    def __len__(self) -> int:
        return len(self.source)


@dataclass(frozen=True)
class Field:
    """Everything planning knows about one goal: where each node goes next, and how far it is."""

    goal: Floats
    """phi(g), (d,)."""
    direction: Floats
    """omega_g, (d,)."""
    node: int
    """The node that stands for the goal: argmin_i d(x_i, g; g)."""
    last_cost: float
    """d(node, g; g), the way from that node to the goal itself."""
    projection: Floats
    """p_i of every node."""
    distance: Floats
    """Cost of the shortest way from every node to `node`; infinite where there is none."""
    next_hop: Integers
    """The next node on that way; -1 at `node` itself and where there is no way."""


@dataclass(frozen=True)
class Nearby:
    """Lists of near nodes, one width for all: nodes[i] holds i and, ascending, every node within radii[i] of it.

    Short lists are filled up with i itself. A list too long for the width has radius -1 and holds nothing for certain.
    """

    nodes: Integers
    radii: Floats
    own: Integers
    """The column in which i stands in its own list."""

    @classmethod
    def of(cls, near: Pairs, radii: Floats, count: int) -> Nearby:
        """`near` lists all pairs within radii[first], ordered by first, then second."""
        starts = np.searchsorted(near.first, np.arange(count + 1))
        sizes = np.diff(starts)
        # Nearly all lists; but where a few are long, the table may not grow far beyond the lists themselves.
        width = min(int(np.quantile(sizes, 0.98, method="higher")), 2 * len(near) // count + 8)
        place = np.arange(width)
        inside = place < sizes[:, None]
        everyone = np.arange(count)
        nodes = np.repeat(everyone[:, None], width + 1, axis=1)
        nodes[:, :-1][inside] = near.second[(starts[:-1, None] + place)[inside]]
        nodes.sort(axis=1)
        return cls(nodes, np.where(sizes <= width, radii, -1.0), (nodes < everyone[:, None]).sum(axis=1))


@dataclass
class Report:
    """What preparation found and how long it took."""

    neighbours_path: str = "pruned"
    tree_path: str = "pruned"
    neighbour_candidates: int = 0
    tree_candidates: int = 0
    candidates_per_node: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """'pruned' or 'dense' where both parts agree, otherwise both."""
        if self.neighbours_path == self.tree_path:
            return self.neighbours_path
        return f"neighbours {self.neighbours_path}, tree {self.tree_path}"


class PlanningGraph:
    """A coreset's points, ready to be planned over for any goal.

    `path` forces the "pruned" or the "dense" computation; "auto" prunes while that is cheaper. With a `cost` function
    the geometry is the user's own and the path is dense. `both_ways` adds the reverse of every kept edge (Sym-Graph).
    """

    def __init__(
        self,
        points: Any,
        *,
        beta: float = 0.1,
        neighbours: int = 10,
        both_ways: bool = False,
        cost: CostFunction | None = None,
        path: str = "auto",
        recent: int = 4,
    ):
        self.points = checked_points(points, "coreset embeddings")
        self.columns = np.ascontiguousarray(self.points.T)
        self.beta = checked_beta(beta)
        if neighbours < 1:
            raise ConfigError(f"neighbours is {neighbours}; every node needs at least 1.")
        if path not in ("auto", "pruned", "dense"):
            raise ConfigError(f"path is '{path}'; choose auto, pruned or dense.")
        if self.beta > 1.0 and cost is None:
            warnings.warn(
                f"beta is {self.beta:g}: above 1 the directed cost breaks the triangle inequality, so an edge can cost "
                "more than a detour.",
                stacklevel=2,
            )
        self.neighbours = min(neighbours, self.count - 1)
        self.both_ways = both_ways
        self.cost = cost
        self.report = Report()
        self.seconds: dict[str, float] = {}
        self._recent: OrderedDict[bytes, Edges] = OrderedDict()
        self._capacity = max(1, recent)
        self._table: NeighbourTable | None = None
        self._sources = np.repeat(np.arange(self.count), self.neighbours)
        self.near: Nearby | None = None
        self._tree: TreeTable | None = None
        self._screen: Screen | None = None
        self._prepare("dense" if cost is not None else path)

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.points)

    @property
    def dimension(self) -> int:
        """Dimension of the latent space."""
        return self.points.shape[1]

    def _prepare(self, path: str) -> None:
        """Find the candidates, or settle for the dense path, and write the report."""
        report, started = self.report, time.perf_counter()
        self.spacing = 0.0
        if self.count == 1:
            return
        # Typical distance to the k-th nearest node: the resolution of the graph.
        self.spacing = math.sqrt(max(0.0, typical_square(self.points, self.neighbours)))
        if path == "dense":
            report.neighbours_path = report.tree_path = "dense"
        else:
            # Past a quarter of all pairs pruning gains nothing; past MOST_CANDIDATES it costs too much memory.
            useful = min(max(64.0 * self.count, 0.25 * self.count**2), MOST_CANDIDATES)
            limit = math.inf if path == "pruned" else useful
            try:
                near, radii = nearest_pairs(self.points, self.neighbours, math.exp(2.0 * self.beta), limit)
                self._table = NeighbourTable(near, self.count, self.neighbours)
                self.near = Nearby.of(near, radii, self.count)
                report.neighbour_candidates = len(near)
            except TooMany:
                report.neighbours_path = "dense"
                near, radii = nearest_pairs(self.points, self.neighbours, 1.0, math.inf)
            report.seconds["neighbours"] = time.perf_counter() - started
            try:
                pairs = tree_pairs(self.points, near, radii, self.beta, limit)
                self._tree = TreeTable(pairs, self.count)
                report.tree_candidates = len(pairs)
            except TooMany:
                report.tree_path = "dense"
            report.candidates_per_node = report.neighbour_candidates / self.count
        if "dense" in (report.neighbours_path, report.tree_path) and self.cost is None:
            self._screen = Screen(self.points)
        report.seconds["total"] = time.perf_counter() - started

    def edges(self, direction: Floats, goal: Floats | None = None) -> Edges:
        """The directed graph for one goal direction (and goal, which only a user's cost may look at)."""
        if self.beta == 0.0 and self.cost is None:
            key = b"every goal"
        else:
            key = direction.tobytes() + (b"" if self.cost is None or goal is None else goal.tobytes())
        if key in self._recent:
            self._recent.move_to_end(key)
            return self._recent[key]
        edges = self._build(direction, self.points[0] if goal is None else goal)
        self._recent[key] = edges
        if len(self._recent) > self._capacity:
            self._recent.popitem(last=False)
        return edges

    def _build(self, direction: Floats, goal: Floats) -> Edges:
        """Top-k out-edges, then the tree edges that are not among them, both ways."""
        if self.count == 1:
            return Edges(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        started = time.perf_counter()
        projection = projections(self.points, direction)
        rows = self._dense_rows(projection, goal, direction)
        if self._table is not None:
            cheapest = self._table.cheapest(projection, self.beta)
        else:
            assert rows is not None
            cheapest = rows.cheapest(self.neighbours)
        after_neighbours = time.perf_counter()
        if self._tree is not None:
            tree = self._tree.tree(projection, self.beta)
        else:
            assert rows is not None
            tree = self._measured(*dense_tree(rows.symmetric_row, self.count))
        after_tree = time.perf_counter()
        edges = self._join(cheapest, tree, projection, goal, direction)
        self.seconds["neighbours"] = after_neighbours - started
        self.seconds["tree"] = after_tree - after_neighbours
        self.seconds["join"] = time.perf_counter() - after_tree
        return edges

    def _dense_rows(self, projection: Floats, goal: Floats, direction: Floats) -> DenseRows | None:
        if self.cost is not None:
            return CostRows(self.points, self.cost, goal, direction)
        if self._screen is not None:
            return DirectedRows(self.points, self._screen, projection, self.beta)
        return None

    def _measured(self, first: Integers, second: Integers) -> Pairs:
        return Pairs(first, second, pair_lengths(self.columns, first, second))

    def _join(self, cheapest: Cheapest, tree: Pairs, projection: Floats, goal: Floats, direction: Floats) -> Edges:
        """The union of both edge sets; an edge in both appears once."""
        tree_sources = np.concatenate([tree.first, tree.second])
        tree_targets = np.concatenate([tree.second, tree.first])
        if self.cost is None:
            rises = projection[tree_targets] - projection[tree_sources]
            tree_costs = directed_cost(np.tile(tree.lengths, 2), rises, self.beta)
        else:
            tree_costs = self.edge_costs(tree_sources, tree_targets, direction, goal)
        new = ~cheapest.contains(tree_sources, tree_targets, tree_costs)
        edges = Edges(
            np.concatenate([self._sources, tree_sources[new]]),
            np.concatenate([cheapest.targets.ravel(), tree_targets[new]]),
            np.concatenate([cheapest.costs.ravel(), tree_costs[new]]),
        )
        return self._with_reverses(edges, projection, goal, direction) if self.both_ways else edges

    def _with_reverses(self, edges: Edges, projection: Floats, goal: Floats, direction: Floats) -> Edges:
        forward = edges.source * np.int64(self.count) + edges.target
        backward = edges.target * np.int64(self.count) + edges.source
        code = np.setdiff1d(backward, forward)
        source, target = code // self.count, code % self.count
        costs = self.edge_costs(source, target, direction, goal, projection)
        return Edges(
            np.concatenate([edges.source, source]),
            np.concatenate([edges.target, target]),
            np.concatenate([edges.cost, costs]),
        )

    def edge_costs(
        self,
        sources: Integers,
        targets: Integers,
        direction: Floats,
        goal: Floats | None = None,
        projection: Floats | None = None,
    ) -> Floats:
        """Costs of listed edges between nodes."""
        if self.cost is not None:
            return edge_costs(
                self.points, self.cost, sources, targets, self.points[0] if goal is None else goal, direction
            )
        projection = projections(self.points, direction) if projection is None else projection
        lengths = pair_lengths(self.columns, sources, targets)
        return directed_cost(lengths, projection[targets] - projection[sources], self.beta)

    def field(
        self,
        goal: Floats,
        direction: Floats,
        *,
        nodes_off: np.ndarray | None = None,
        edges_off: Iterable[tuple[int, int]] = (),
    ) -> Field:
        """Search backwards from the goal; `nodes_off` (a mask) and `edges_off` (pairs source, target) are not used.

        The goal keeps the node that geometry gives it: were that node switched off, every distance is infinite.
        """
        goal, direction = self._checked_goal(goal, direction)
        edges = self.edges(direction, goal)
        started = time.perf_counter()
        edges = without(edges, self.count, nodes_off, edges_off)
        projection = projections(self.points, direction)
        to_goal = self.costs_to(goal, direction, projection)
        node = int(np.argmin(to_goal))
        if nodes_off is not None and nodes_off[node]:
            distance = np.full(self.count, np.inf)
            next_hop: Integers = np.full(self.count, NO_HOP)
        else:
            distance, next_hop = search(edges, self.count, node)
            if nodes_off is not None:
                distance[nodes_off], next_hop[nodes_off] = np.inf, NO_HOP
        self.seconds["search"] = time.perf_counter() - started
        return Field(goal, direction, node, float(to_goal[node]), projection, distance, next_hop)

    def costs_to(self, goal: Floats, direction: Floats, projection: Floats) -> Floats:
        """d(x_i, g; g) from every node."""
        if self.cost is not None:
            rows = CostRows(self.points, self.cost, goal, direction)
            return rows.between(self.points, goal[None, :])[:, 0]
        lengths = lengths_to(self.columns, goal)
        return directed_cost(lengths, float(goal @ direction) - projection, self.beta)

    def _checked_goal(self, goal: Any, direction: Any) -> tuple[Floats, Floats]:
        goal, direction = np.asarray(goal, dtype=np.float64), np.asarray(direction, dtype=np.float64)
        if goal.shape != (self.dimension,) or direction.shape != (self.dimension,):
            raise GeometryError(
                f"The goal has shape {goal.shape} and its direction {direction.shape}; "
                f"both must be ({self.dimension},)."
            )
        if not (np.isfinite(goal).all() and np.isfinite(direction).all()):
            raise GeometryError("The goal's embedding or direction is not finite; check the model and the goal.")
        return goal, direction


def without(edges: Edges, count: int, nodes_off: np.ndarray | None, edges_off: Iterable[tuple[int, int]]) -> Edges:
    """The graph less the switched-off nodes and edges."""
    pairs = np.array(list(edges_off), dtype=np.int64).reshape(-1, 2)
    if nodes_off is None and not len(pairs):
        return edges
    keep = np.ones(len(edges), dtype=bool)
    if nodes_off is not None:
        keep &= ~(nodes_off[edges.source] | nodes_off[edges.target])
    if len(pairs):
        keep &= ~np.isin(edges.source * np.int64(count) + edges.target, pairs[:, 0] * count + pairs[:, 1])
    return Edges(edges.source[keep], edges.target[keep], edges.cost[keep])


def search(edges: Edges, count: int, node: int) -> tuple[Floats, Integers]:
    """Distances to `node` and next hops towards it, by Dijkstra's algorithm on the reversed graph."""
    reverse = coo_array((edges.cost, (edges.target, edges.source)), shape=(count, count))
    # No edge is listed twice, so there is nothing to sum: saves a sort.
    reverse.has_canonical_format = True
    distance, predecessor = dijkstra(reverse.tocsr(), directed=True, indices=node, return_predecessors=True)
    here, onward = distance.take(edges.source), distance.take(edges.target)
    best = np.flatnonzero(onward + edges.cost == here)
    best = best[onward[best] < here[best]]
    next_hop = np.full(count, count)
    np.minimum.at(next_hop, edges.source[best], edges.target[best])
    # Where a cost drowns in the distance's rounding no edge shortens it strictly: keep the search's own tree there,
    # which says -9999 where there is no way.
    left = np.flatnonzero(next_hop == count)
    next_hop[left] = np.maximum(predecessor[left], NO_HOP)
    next_hop[node] = NO_HOP
    return distance, next_hop
