"""Who can reach whom: graph searches that decide where a hitting time is finite before anything is solved.

Three different questions, often confused (the paper's problem statement assumes the first implies the last):

    can_reach               P(hit the goal | x) > 0
    reached_almost_surely   P(hit the goal | x) = 1; on a finite chain this is the same as E[T] < infinity
    winning_states          some policy reaches the goal almost surely

All work on CSR matrices and only look at which entries are positive.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp


def _backward_closure(edges: sp.csr_array, seeds: np.ndarray) -> np.ndarray:
    """The mask of states with a path along `edges` into `seeds` (a mask); seeds belong to it."""
    into = sp.csr_array(edges.T)
    reached = seeds.copy()
    frontier = np.flatnonzero(seeds)
    while frontier.size:
        # All predecessors of the frontier at once: concatenate the index ranges of its rows.
        begin, end = into.indptr[frontier], into.indptr[frontier + 1]
        lengths = end - begin
        offsets = np.repeat(begin - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
        predecessors = into.indices[offsets + np.arange(lengths.sum())]
        fresh = np.unique(predecessors[~reached[predecessors]])
        reached[fresh] = True
        frontier = fresh
    return reached


def _mask(states: int, goal: np.ndarray) -> np.ndarray:
    mask = np.zeros(states, dtype=bool)
    mask[goal] = True
    return mask


def can_reach(chain: sp.csr_array, goal: np.ndarray | Sequence[int] | int) -> np.ndarray:
    """States from which the goal has positive probability, as a mask."""
    matrix = sp.csr_array(chain)
    return _backward_closure(matrix, _mask(matrix.shape[0], np.atleast_1d(goal)))


def reached_almost_surely(chain: sp.csr_array, goal: np.ndarray | Sequence[int] | int) -> np.ndarray:
    """States from which the goal is hit with probability one, as a mask.

    A state fails exactly when it can walk, without touching the goal, into a state that cannot reach the goal.
    """
    matrix = sp.csr_array(chain)
    target = _mask(matrix.shape[0], np.atleast_1d(goal))
    lost = ~_backward_closure(matrix, target)
    before_goal = sp.csr_array(sp.diags_array((~target).astype(np.float64)) @ matrix)
    before_goal.eliminate_zeros()
    return ~_backward_closure(before_goal, lost)


def winning_states(
    transitions: Sequence[sp.csr_array], goal: np.ndarray, allowed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """States from which some policy reaches the goal almost surely, and the actions (n, |A|) that never leave them.

    The greatest set W such that every state of W can reach the goal using only actions that stay in W. Computed by
    shrinking W until nothing changes; each round removes at least one state, so it ends.
    """
    states = transitions[0].shape[0]
    target = _mask(states, goal)
    winning = np.ones(states, dtype=bool)
    while True:
        lost = (~winning).astype(np.float64)
        leaves = np.stack([np.asarray(chain @ lost).ravel() > 0 for chain in transitions], axis=1)
        safe = allowed & ~leaves
        edges = sum(
            (sp.diags_array((safe[:, a] & winning).astype(np.float64)) @ chain for a, chain in enumerate(transitions)),
            start=0,
        )
        matrix = sp.csr_array(edges)
        matrix.eliminate_zeros()
        shrunk = _backward_closure(matrix, target)
        if np.array_equal(shrunk, winning):
            return winning, safe
        winning = shrunk
