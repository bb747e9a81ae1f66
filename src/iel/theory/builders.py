"""Small worlds to test theorems on: random processes, directed rings, corridors, grids.

Every builder that draws takes an explicit numpy Generator; mazes have their own file.
"""

import numpy as np
import scipy.sparse as sp

from iel.errors import ChainError
from iel.theory.chains import ControlledProcess

GRID_MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])
"""(row, column) steps of the four grid actions: right, left, down, up."""
KING_MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1)])
"""The grid actions and the four diagonals."""


def random_process(
    states: int, actions: int, generator: np.random.Generator, concentration: float = 1.0
) -> ControlledProcess:
    """Dirichlet rows: every transition has positive probability, so every chain of it is irreducible.

    A small `concentration` makes nearly deterministic rows and long hitting times.
    """
    weights = generator.gamma(concentration, size=(actions, states, states)) + 1e-6
    return ControlledProcess.of(weights / weights.sum(axis=2, keepdims=True))


def random_policy(process: ControlledProcess, generator: np.random.Generator) -> np.ndarray:
    """Dirichlet(1) action probabilities in every state."""
    return generator.dirichlet(np.ones(process.actions), size=process.states)


def directed_ring(states: int, slip: float = 0.0) -> ControlledProcess:
    """x -> x + 1 (mod n), staying in place with probability `slip`: V(x, g) = ((g - x) mod n) / (1 - slip)."""
    if not 0.0 <= slip < 1.0:
        raise ChainError(f"A ring with slip {slip} never moves on: choose 0 <= slip < 1.")
    forward = np.roll(np.eye(states), 1, axis=1)
    return ControlledProcess.of([(1.0 - slip) * forward + slip * np.eye(states)])


def corridor(states: int, forward: float = 1.0) -> ControlledProcess:
    """0 -> 1 -> ... -> n-1 (absorbing); each step succeeds with probability `forward`, otherwise it stays."""
    chain = np.diag(np.full(states, 1.0 - forward)) + np.diag(np.full(states - 1, forward), 1)
    chain[-1] = np.eye(states)[-1]
    return ControlledProcess.of([chain])


def drift_walk(states: int, right: float) -> np.ndarray:
    """A walk on 0 .. n-1 that steps right with probability `right` and stays where it would leave the line, (n, n)."""
    chain, x = np.zeros((states, states)), np.arange(states)
    np.add.at(chain, (x, np.minimum(x + 1, states - 1)), right)
    np.add.at(chain, (x, np.maximum(x - 1, 0)), 1.0 - right)
    return chain


def absorbing(process: ControlledProcess, goal: int) -> ControlledProcess:
    """The same process with an absorbing goal; hitting times of that goal do not change."""
    keep = np.ones(process.states)
    keep[goal] = 0.0
    at_goal = sp.csr_array(([1.0], ([goal], [goal])), shape=(process.states, process.states))
    return ControlledProcess.of([sp.diags_array(keep) @ chain + at_goal for chain in process.transitions])


def grid(rows: int, columns: int, slip: float = 0.0) -> ControlledProcess:
    """An open rows x columns grid. State (i, j) has number i * columns + j; walking into the edge stays put.

    `slip` is the probability that a uniformly random move replaces the chosen one.
    """
    steps = moving(move_table(np.ones((rows, columns), dtype=bool))).transitions
    any_move = sum(steps, start=0) / len(steps)
    return ControlledProcess.of([(1.0 - slip) * step + slip * any_move for step in steps])


def moving(nexts: np.ndarray) -> ControlledProcess:
    """The deterministic process of a table of moves: action a leads from x to nexts[x, a]."""
    states = len(nexts)
    own, ones = np.arange(states), np.ones(states)
    return ControlledProcess.of([sp.csr_array((ones, (own, column)), shape=(states, states)) for column in nexts.T])


def move_table(free: np.ndarray, moves: np.ndarray = GRID_MOVES) -> np.ndarray:
    """The state each move leads to, (states, moves); states number the free cells of a mask in row order.

    A move into a wall or off the map stays. Diagonal moves may not cut a corner: both cells they pass by must be free.
    """
    mask = np.asarray(free, dtype=bool)
    if mask.ndim != 2 or not mask.any():
        raise ChainError("The map has no free cell: pass a 2-D mask with at least one True.")
    padded = np.pad(mask, 1)
    number = np.full(padded.shape, -1, dtype=np.int64)
    number[padded] = np.arange(mask.sum())
    i, j = np.nonzero(padded)
    nexts = np.empty((len(i), len(moves)), dtype=np.int64)
    for a, (down, right) in enumerate(moves):
        is_open = padded[i + down, j + right] & padded[i + down, j] & padded[i, j + right]
        nexts[:, a] = np.where(is_open, number[i + down, j + right], np.arange(len(i)))
    return nexts


def lumpable(groups: np.ndarray, actions: int, generator: np.random.Generator) -> ControlledProcess:
    """A process whose groups form a Markov chain of their own: the next state depends on the group only."""
    blocks = int(groups.max()) + 1
    macro = generator.dirichlet(np.ones(blocks), size=(actions, blocks))
    inside = generator.random(len(groups)) + 0.1
    inside /= np.bincount(groups, inside, blocks)[groups]
    return ControlledProcess.of(macro[:, groups][:, :, groups] * inside)


def affine_process(points: np.ndarray, slopes: np.ndarray, shifts: np.ndarray) -> ControlledProcess:
    """Actions with mean next point slope * f + shift on a line of points f: the features (1, f) are sufficient."""
    # A distribution with the right mean is enough: mix the two extreme points.
    right = (np.outer(slopes, points) + np.asarray(shifts)[:, None] - points[0]) / (points[-1] - points[0])
    chains = np.zeros((len(slopes), len(points), len(points)))
    chains[:, :, 0], chains[:, :, -1] = 1.0 - right, right
    return ControlledProcess.of(chains)
