"""Many goals pursued at once: where should each episode head for, given where it is in the latent space?

A `Plan` keeps the little state that pursuing needs: which stage of a sequence each episode is in, and (for hysteresis)
the node it was last matched to. How a single goal is approached is a `Pursuit`, one per planner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from iel.errors import GeometryError, NoPath
from iel.planning.geometry import Floats, Integers, unit
from iel.planning.goals import LatentWish


@dataclass(frozen=True)
class Aim:
    """What a pursuit answers for n states: targets (n, d), predicted cost to the goal (n,), matched nodes (n,).

    Where there is no way the cost is infinite and the target is the goal itself.
    """

    targets: Floats
    costs: Floats
    nodes: Integers


class Pursuit(Protocol):
    """How one planner approaches goals that were prepared together; goals are numbered."""

    goals: Floats
    """phi(g) of every goal, (m, d)."""
    directions: Floats
    """omega_g of every goal, (m, d)."""

    def aim(self, states: Floats, goals: Integers, memory: Integers) -> Aim:
        """Head for goal goals[r] from states[r]; memory[r] is the node matched last time, or -1."""

    def direct_costs(self, states: Floats, goals: Integers) -> Floats:
        """d(x, g; g) from states[r] straight to goal goals[r]."""


@dataclass(frozen=True)
class Path:
    """A way for people to look at: the nodes from a state to its goal, and what each step of the way costs."""

    nodes: Integers
    """Nodes of the coreset along the way (empty where the planner has none)."""
    states: Integers
    """The same nodes as rows of the data's observations."""
    observations: Floats
    """Their observations, (len(nodes), obs_dim)."""
    costs: Floats
    """Cost of each part: state to first node, node to node, last node to goal; one more than there are nodes."""
    stages: list[int] = field(default_factory=lambda: [0])
    """For a sequence: position in `costs` at which each stage begins."""

    @property
    def total(self) -> float:
        """Predicted steps from the state to the goal along this way."""
        return float(self.costs.sum())

    @property
    def steps_to_go(self) -> Floats:
        """Predicted steps to the goal from the state and from each place of the way."""
        return np.cumsum(self.costs[::-1])[::-1]


class Plan:
    """Prepared goals of G episodes; `targets` and `directions` answer for all of them, or for the listed rows."""

    def __init__(
        self,
        pursuit: Pursuit,
        wishes: list[LatentWish],
        numbers: list[list[list[int]]],
        *,
        pursue_blindly: bool = False,
    ):
        """`numbers[e][s]` are the pursuit's goal numbers of the alternatives of stage s of episode e.

        Where there is no way to a goal, `targets` raises `NoPath`, or heads straight for it if `pursue_blindly`.
        """
        self.pursuit = pursuit
        self.pursue_blindly = pursue_blindly
        self.within = np.array([wish.within for wish in wishes])
        self.alternatives = [[np.array(stage) for stage in stages] for stages in numbers]
        self.stages = np.array([len(stages) for stages in numbers])
        self.simple = bool(all(len(stages) == 1 and len(stages[0]) == 1 for stages in numbers))
        self.only = np.array([stages[0][0] for stages in numbers])
        self.memory = np.full(len(numbers), -1, dtype=np.int64)
        self.stage = np.zeros(len(numbers), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.stages)

    def reset(self, rows: Integers | None = None) -> None:
        """Forget the stage and the matched node of all episodes, or of the listed ones."""
        chosen = slice(None) if rows is None else rows
        self.memory[chosen] = -1
        self.stage[chosen] = 0

    def targets(self, embeddings: Any, rows: Integers | None = None) -> Floats:
        """The latent point to head for from each embedding."""
        return self._reachable_aim(embeddings, rows)[0].targets

    def directions(self, embeddings: Any, rows: Integers | None = None) -> Floats:
        """Unit vectors towards the targets, always finite.

        A state that sits on its target heads for phi(g); one that sits on that as well follows omega_g.
        """
        states = np.asarray(embeddings, dtype=np.float64)
        aim, goals = self._reachable_aim(states, rows)
        pursuit = self.pursuit
        return unit(aim.targets - states, lambda: pursuit.goals[goals] - states, lambda: pursuit.directions[goals])

    def costs(self, embeddings: Any, rows: Integers | None = None) -> Floats:
        """Predicted steps from each embedding to the goal of its current stage; infinite where there is no way."""
        return self._aim(embeddings, rows)[0].costs

    def _reachable_aim(self, embeddings: Any, rows: Integers | None) -> tuple[Aim, Integers]:
        aim, goals = self._aim(embeddings, rows)
        if not self.pursue_blindly and not np.isfinite(aim.costs).all():
            stuck = np.flatnonzero(~np.isfinite(aim.costs))
            names = stuck if rows is None else np.asarray(rows)[stuck]
            raise NoPath(
                f"No way leads to the goal of episode {int(names[0])} ({len(stuck)} of {len(aim.costs)} episodes); "
                "switch nodes or edges back on, or allow direct pursuit with unreachable='direct'."
            )
        return aim, goals

    def _aim(self, embeddings: Any, rows: Integers | None) -> tuple[Aim, Integers]:
        states = np.asarray(embeddings, dtype=np.float64)
        rows = np.arange(len(self)) if rows is None else np.asarray(rows)
        dimension = self.pursuit.goals.shape[1]
        if states.shape != (len(rows), dimension):
            raise GeometryError(
                f"The embeddings have shape {states.shape}; {len(rows)} episodes need ({len(rows)}, {dimension})."
            )
        if not np.isfinite(states).all():
            row = int(np.argmin(np.isfinite(states).all(axis=1)))
            raise GeometryError(f"The embedding of episode {int(rows[row])} is not finite; check its observation.")
        if self.simple:
            goals = self.only[rows]
            aim = self.pursuit.aim(states, goals, self.memory[rows])
        else:
            self._advance(states, rows)
            aim, goals = self._best_alternative(states, rows)
        self.memory[rows] = aim.nodes
        return aim, goals

    def _advance(self, states: Floats, rows: Integers) -> None:
        """Move episodes that reached the goal of their stage on to the next stage."""
        pending = np.arange(len(rows))
        while len(pending):
            pending = pending[self.stage[rows[pending]] + 1 < self.stages[rows[pending]]]
            members, owner = self._members(rows[pending])
            costs = self.pursuit.direct_costs(states[pending[owner]], members)
            done = np.zeros(len(pending), dtype=bool)
            done[owner[costs <= self.within[rows[pending[owner]]]]] = True
            pending = pending[done]
            self.stage[rows[pending]] += 1
            self.memory[rows[pending]] = -1

    def _members(self, rows: Integers) -> tuple[Integers, Integers]:
        """Goal numbers of the alternatives of each row's stage, and which row each belongs to."""
        lists = [self.alternatives[row][self.stage[row]] for row in rows]
        owner = np.repeat(np.arange(len(rows)), [len(each) for each in lists])
        return (np.concatenate(lists) if lists else np.empty(0, dtype=np.int64)), owner

    def _best_alternative(self, states: Floats, rows: Integers) -> tuple[Aim, Integers]:
        """Aim at every alternative, keep the cheapest of each episode (the first among equals)."""
        members, owner = self._members(rows)
        aim = self.pursuit.aim(states[owner], members, self.memory[rows][owner])
        order = np.lexsort((aim.costs, owner))
        best = order[np.searchsorted(owner[order], np.arange(len(rows)))]
        return Aim(aim.targets[best], aim.costs[best], aim.nodes[best]), members[best]
