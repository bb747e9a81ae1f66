"""Metrics read off value networks and successor measures: what a network says of two states, as a cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from iel.distances import FLOOR, Floats, LatentGoal, Metric
from iel.model.networks import BLOCK, FloatArray, distinct_rows, in_blocks, on_sphere, products, softplus
from iel.typed import Fraction

if TYPE_CHECKING:
    from iel.model.model import Model


class ValueCost(Metric):
    """What a value network says of a state s and a target t, as a cost. The same for all goals.

        -V                  V(s, t), the mean over its heads, or min_e Q_e(s, t, pi(s, t)) of a critic, counts steps
        -log sigmoid(V)     V is a log-odds: how likely t lies ahead of s (without a discount: these are not steps)

    A value may also be the product <v(s, a), w(t)> of two networks' features, `value` and `goal_features`. Embeddings
    are the observations themselves, so rows of this metric are rows of a network.
    """

    for_every_goal, expensive = True, True
    spatial = False

    def __init__(self, model: Model, discount: float | None):
        self.model, self.discount = model, discount
        self.value = model.networks["value"]
        self.goal_features = model.networks.get("goal_features")
        self.by_action = "action" in self.value.inputs

    def costs(self, sources: Floats, targets: Floats, goal: LatentGoal) -> Floats:
        height = max(1, BLOCK // len(targets))  # pairs of `height` sources fill a block of the network
        return np.concatenate([self._table(sources[i : i + height], targets) for i in range(0, len(sources), height)])

    def _table(self, sources: Floats, targets: Floats) -> Floats:
        pairs = np.repeat(sources, len(targets), axis=0), np.tile(targets, (len(sources), 1))
        return self._rows(*pairs).reshape(len(sources), len(targets))

    def row_costs(self, sources: Floats, targets: Floats, goals: list[LatentGoal]) -> Floats:
        return self._rows(sources, targets)

    def _rows(self, states: Floats, goals: Floats) -> Floats:
        rows = (np.asarray(part, np.float32) for part in (states, goals))
        return np.maximum(in_blocks(self._cost, "distances", *rows).astype(np.float64), FLOOR)

    def _cost(self, states: FloatArray, goals: FloatArray) -> FloatArray:
        known = {"observation": states, "goal": goals}
        if self.by_action:
            known["action"] = self.model.mean_action(states, goals, self.model.actor)
        given = self.model.inputs(self.value, **known)
        if self.goal_features is None:
            heads = self.value.features(given).sum(-1)
        else:
            heads = products(self.value, given, self.goal_features, goals)
        cost = -(heads.min(0) if self.by_action else heads.mean(0))
        return softplus(cost) if self.value.logit else cost


class Measure(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="measure"):
    """What a model's file says of a `MeasureCost`: gamma of the successor measure, which is not a unit of costs."""

    decay: Fraction


class MeasureCost(Metric):
    """How late t is reached from s, by a successor measure M(s, t) = F(s, pi(s, z), z)^T z with z = B(t).

    M(s, t) is how much more often than the data pi(., z) will be at t, discounted by gamma from the next step on. With
    H the steps to the first visit, and d = ||B||^2 the density of a point as B sees it,

        E[gamma^H] = p(s, t) = gamma M(s, t) / (d + gamma M(t, t)),        C = log p / log gamma,

    were M exact: then C is the number of steps of a certain visit that is worth as much. A learned M of rank d is not
    exact, so these are not steps. It may even be negative: p is replaced by e log(1 + exp(p / e)) with e = 0.01, which
    preserves the order. F is the mean of its heads.
    """

    for_every_goal, expensive = True, True
    spatial = False
    SMALL = 0.01

    def __init__(self, model: Model, decay: float):
        self.model, self.decay = model, decay
        self.forward, self.backward = model.networks["forward"], model.networks["high"]

    def costs(self, sources: Floats, targets: Floats, goal: LatentGoal) -> Floats:
        tasks, most = self._targets(targets)
        height, count = max(1, BLOCK // len(targets)), len(targets)
        blocks = (sources[i : i + height] for i in range(0, len(sources), height))
        tables = [
            self._rows(np.repeat(b, count, axis=0), np.tile(tasks, (len(b), 1)), np.tile(most, len(b))) for b in blocks
        ]
        return np.concatenate(tables).reshape(len(sources), count)

    def row_costs(self, sources: Floats, targets: Floats, goals: list[LatentGoal]) -> Floats:
        return self._rows(sources, *self._targets(targets))

    def _targets(self, targets: Floats) -> tuple[FloatArray, FloatArray]:
        """(z, d + gamma M(t, t)) of every target; planners evaluate few of them many times."""
        rows, which = distinct_rows(np.asarray(targets, np.float32))
        tasks = self.tasks(rows)
        own = in_blocks(self.measure, "measures", rows, tasks)
        return tasks[which], (tasks.shape[1] + self.decay * np.maximum(own, 0.0))[which]

    def _rows(self, states: Floats, tasks: FloatArray, most: FloatArray) -> Floats:
        measures = in_blocks(self.measure, "measures", np.asarray(states, np.float32), tasks)
        likely = self.decay * measures.astype(np.float64) / (most * self.SMALL)
        # log(log(1 + exp(x))) is x where exp(x) is tiny
        log = np.where(likely > -30.0, np.log(np.logaddexp(0.0, np.maximum(likely, -30.0))), likely)
        return np.maximum((log + np.log(self.SMALL)) / np.log(self.decay), FLOOR)

    def tasks(self, targets: FloatArray) -> FloatArray:
        """z = B(t), of length sqrt(d)."""
        return in_blocks(lambda rows: on_sphere(self.backward(rows)), "task vectors", targets)

    def measure(self, states: FloatArray, tasks: FloatArray) -> FloatArray:
        """F(s, pi(s, z), z)^T z, the mean over heads."""
        action = self.model.mean_action(states, tasks, self.model.actor)
        inputs = self.model.inputs(self.forward, observation=states, action=action, command=tasks)
        return (self.forward.features(inputs) * tasks).sum(-1).mean(0)
