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

from iel.errors import ChainError

Goal = int | Sequence[int] | np.ndarray
"""One state, several states any of which counts as arrived, or a mask with one True or False per state."""


def goal_indices(goal: Goal, states: int) -> np.ndarray:
    """The goal as a sorted array of distinct state numbers."""
    given = np.atleast_1d(np.asarray(goal))
    if given.dtype == bool:
        if given.shape != (states,):
            raise ChainError(f"The goal is a mask of shape {given.shape}: it needs one entry per state, ({states},).")
        given = np.flatnonzero(given)
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise ChainError(f"The goal {goal!r} is not made of whole numbers: pass state numbers or a mask.")
    indices = np.unique(given)
    if indices.size == 0 or indices[0] < 0 or indices[-1] >= states:
        raise ChainError(f"The goal {goal!r} is not a state of this chain: choose numbers from 0 to {states - 1}.")
    return indices


def _backward_closure(edges: sp.csr_array, seeds: np.ndarray) -> np.ndarray:
    """The mask of states with a path along `edges` into `seeds` (a mask); seeds belong to it."""
    into = sp.csr_array(edges.T)
    reached = seeds.copy()
    frontier = np.flatnonzero(seeds)
    while frontier.size:
        predecessors, _ = _entries(into, frontier)
        fresh = np.unique(predecessors[~reached[predecessors]])
        reached[fresh] = True
        frontier = fresh
    return reached


def _entries(matrix: sp.csr_array, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The column numbers stored in these rows, one after the other, and the row each belongs to."""
    begin = matrix.indptr[rows]
    lengths = matrix.indptr[rows + 1] - begin
    shift = np.repeat(begin - np.cumsum(lengths) + lengths, lengths)
    return matrix.indices[shift + np.arange(lengths.sum())], np.repeat(rows, lengths)


def _mask(states: int, goal: Goal) -> np.ndarray:
    mask = np.zeros(states, dtype=bool)
    mask[goal_indices(goal, states)] = True
    return mask


def can_reach(chain: sp.csr_array, goal: Goal) -> np.ndarray:
    """States from which the goal has positive probability, as a mask."""
    matrix = sp.csr_array(chain)
    return _backward_closure(matrix, _mask(matrix.shape[0], goal))


def reached_almost_surely(chain: sp.csr_array, goal: Goal) -> np.ndarray:
    """States from which the goal is hit with probability one, as a mask.

    A state fails exactly when it can walk, without touching the goal, into a state that cannot reach the goal.
    """
    matrix = sp.csr_array(chain)
    target = _mask(matrix.shape[0], goal)
    lost = ~_backward_closure(matrix, target)
    before_goal = sp.csr_array(sp.diags_array((~target).astype(np.float64)) @ matrix)
    before_goal.eliminate_zeros()
    return ~_backward_closure(before_goal, lost)


def winning_states(
    transitions: Sequence[sp.csr_array], goal: Goal, allowed: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """States from which some policy reaches the goal almost surely, and the actions (n, |A|) that never leave them.

    The greatest set W such that every state of W can reach the goal using only actions that stay in W. Every state
    keeps one way to the goal, so that the ways form a tree. When states are lost, the actions that may lead to them
    are struck out, and only the branches that hung on such an action look for another way: each loss costs as much as
    the part of the tree that it breaks, not a search of the whole graph.
    """
    states, actions = transitions[0].shape[0], len(transitions)
    # Row a * n + x of `moves` holds the successors of x under action a; row y of `into` the pairs that may lead to y.
    moves = sp.csr_array(sp.vstack(transitions))
    into = sp.csr_array(moves.T)
    usable = np.asarray(allowed, dtype=bool).T.ravel()
    attached = _mask(states, goal)
    via, parent = np.full(states, -1), np.full(states, -1)
    waiting, frontier = np.flatnonzero(~attached), np.flatnonzero(attached)
    while True:
        while frontier.size:
            pairs, onto = _entries(into, frontier)
            open_way = usable[pairs] & ~attached[pairs % states]
            frontier, first = np.unique(pairs[open_way] % states, return_index=True)
            via[frontier], parent[frontier] = pairs[open_way][first], onto[open_way][first]
            attached[frontier] = True
        gone = waiting[~attached[waiting]]
        if gone.size == 0:
            return attached, usable.reshape(actions, states).T
        struck, _ = _entries(into, gone)
        usable[struck] = False
        waiting = _detach(np.unique(struck[via[struck % states] == struck] % states), into, attached, via, parent)
        # Some of the branch's states have another action into what still hangs together: the search goes on there.
        own = (np.arange(actions)[:, None] * states + waiting).ravel()
        onto, _ = _entries(moves, own[usable[own]])
        frontier = np.unique(onto[attached[onto]])


def _detach(
    branch: np.ndarray, into: sp.csr_array, attached: np.ndarray, via: np.ndarray, parent: np.ndarray
) -> np.ndarray:
    """Cut these states and all that hang on them off the tree of ways; returns everything that was cut off."""
    cut = [branch]
    while branch.size:
        attached[branch], via[branch] = False, -1
        pairs, onto = _entries(into, branch)
        child = pairs % len(attached)
        branch = np.unique(child[(via[child] == pairs) & (parent[child] == onto)])
        cut.append(branch)
    return np.concatenate(cut)
