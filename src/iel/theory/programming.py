"""Hitting-time programming (HTP) with matrices in place of networks: its programme, its distance and its slack.

    programme   max sum_x V(x, g)   subject to   V(x, g) <= 1 + V(x', g) for every transition,   V(g, g) = 0
    distance    d(x, y) = max_g <phi(y) - phi(x), omega_g>,   g over the landmarks          a support function
    exact form  phi(x) = -V(x, .), omega_g = e_g:   <phi(g) - phi(x), omega_g> = V(x, g)    the Kuratowski embedding

V* is the fewest steps in a deterministic world, the smallest expected hitting time over all policies in a random one.
"""

from collections.abc import Iterator

import numpy as np
from scipy.optimize import linprog
from scipy.sparse.csgraph import shortest_path

from iel.errors import ChainError
from iel.theory.bounds import MEDIUM_MAZE
from iel.theory.builders import corridor, grid, moving, random_process
from iel.theory.chains import ControlledProcess, hitting_time_matrix, policy_chain, uniform_policy
from iel.theory.evidence import INSTANCES, ROUNDING, Evidence, off_diagonal, statement
from iel.theory.mazes import maze_from_map
from iel.theory.optimal import optimal_hitting_times

WORLDS = INSTANCES // 5
"""Random worlds behind a check that solves a programme for every goal."""


def programme(process: ControlledProcess, goal: int, sampled: bool = False) -> np.ndarray:
    """The optimum (n,) of the linear programme for one goal; infinite everywhere if it is unbounded.

    Its constraints are V(x) <= 1 + E[V(x') | x, a] for every state and action. With `sampled` they are
    V(x) <= 1 + V(x') for every next state that can occur, which is what single transitions of the data say.
    """
    here, ahead = np.tile(np.eye(process.states), (process.actions, 1)), np.concatenate(process.dense())
    if sampled:
        pairs, onto = np.nonzero(ahead)
        here, ahead = here[pairs], np.eye(process.states)[onto]
    limits = [(0.0, 0.0) if x == goal else (None, None) for x in range(process.states)]
    found = linprog(-np.ones(process.states), here - ahead, np.ones(len(here)), bounds=limits)
    if found.status not in (0, 3):
        raise ChainError(f"The programme of goal {goal} was not solved: {found.message}")
    return found.x if found.status == 0 else np.full(process.states, np.inf)


def programmes(process: ControlledProcess, sampled: bool = False) -> np.ndarray:
    """The optimum for all goals, (n, n)."""
    return np.stack([programme(process, goal, sampled) for goal in range(process.states)], axis=1)


def fewest_steps(process: ControlledProcess) -> np.ndarray:
    """The length of the shortest path along transitions that can occur, for all pairs, (n, n)."""
    return shortest_path(sum(process.transitions, start=0), unweighted=True)


def support_distance(features: np.ndarray, omegas: np.ndarray) -> np.ndarray:
    """d(x, y) = max_g <phi(y) - phi(x), omega_g> for all pairs, (n, n)."""
    scores = features @ omegas.T
    return (scores[None] - scores[:, None]).max(axis=2)


def longest_step(process: ControlledProcess, distances: np.ndarray) -> float:
    """The largest d(x, x') over transitions that can occur: 1 + e."""
    return float(max(distances[chain.nonzero()].max() for chain in process.transitions))


def low_rank(times: np.ndarray, rank: int) -> tuple[np.ndarray, np.ndarray, float]:
    """phi (n, d) and omega (n, d) with c_g - <phi(x), omega_g> nearest to V(x, g), and the largest entrywise error.

    The columns' means c_g cancel in every displacement, so they cost no rank.
    """
    means = times.mean(axis=0)
    left, singular, right = np.linalg.svd(times - means)
    features, omegas = -left[:, :rank] * singular[:rank], right[:rank].T
    return features, omegas, float(np.abs(means - features @ omegas.T - times).max())


def random_world(generator: np.random.Generator) -> ControlledProcess:
    """A deterministic world whose states all reach each other: a cycle through all, and two random moves per state."""
    states = int(generator.integers(3, 9))
    order = generator.permutation(states)
    cycle = np.roll(order, -1)[np.argsort(order)]
    return moving(np.column_stack([cycle, generator.integers(states, size=(states, 2))]))


def gamble(luck: float = 0.1) -> ControlledProcess:
    """From 0 the goal, state 6, is six sure steps away, or one with probability `luck`; else six states lead back."""
    walk = moving(np.array([[1, 2, 3, 4, 5, 6, 6, 8, 9, 10, 11, 12, 0]]).T).transitions[0].toarray()
    bet = walk.copy()
    bet[0] = luck * np.eye(13)[6] + (1.0 - luck) * np.eye(13)[7]
    return ControlledProcess.of([walk, bet])


def value_iteration(process: ControlledProcess, sweeps: int = 500) -> np.ndarray:
    """V <- 1 + min_a E[V(x', g) | x, a] from zero, V(g, g) = 0: it rises to the optimal expected hitting times, (n, n).

    Where they are infinite it returns `sweeps`.
    """
    chains, values = process.dense(), np.zeros((process.states, process.states))
    for _ in range(sweeps):
        values = 1.0 + (chains @ values).min(axis=0)
        np.fill_diagonal(values, 0.0)
    return values


def sampled_means(process: ControlledProcess, samples: int, generator: np.random.Generator) -> ControlledProcess:
    """The process of observed frequencies, `samples` transitions per state and action.

    Its E[phi(x') | x, a] are the regression of phi(x') on indicators of (x, a), for any phi.
    """
    return ControlledProcess.of(generator.multinomial(samples, process.dense()) / samples)


def linear_means(features: np.ndarray, means: np.ndarray) -> np.ndarray:
    """K_a phi(x) + c_a nearest to the means (actions, n, d): what a regression linear in phi makes of them."""
    known = np.column_stack([np.ones(len(features)), features])
    return np.stack([known @ np.linalg.lstsq(known, mean, rcond=None)[0] for mean in means])


def programmes_within(features: np.ndarray, means: np.ndarray) -> np.ndarray:
    """The optimum of V(x, g) = <phi(g) - phi(x), w_g> over w_g, with <m(x, a) - phi(x), w_g> <= 1 everywhere, (n, n).

    With fewer dimensions than states V can express less, so the optimum is at most that of `programmes`.
    """
    progress = (means - features).reshape(-1, features.shape[1])
    columns = []
    for point in features:
        ahead = point - features
        found = linprog(-ahead.sum(axis=0), progress, np.ones(len(progress)), bounds=(None, None))
        if found.status != 0:
            raise ChainError(f"A programme within {features.shape[1]} dimensions was not solved: {found.message}")
        columns.append(ahead @ found.x)
    return np.stack(columns, axis=1)


@statement("HTP, the programme", "its optimum is the fewest steps, for every pair that is connected", "holds")
def shortest(generator: np.random.Generator) -> Iterator[Evidence]:
    """A feasible V falls by at most one per transition: along a shortest path V(x, g) <= V(g, g) + V*(x, g) = V*(x, g).

    V* itself is feasible (Bellman), so it is the largest feasible V at every pair at once, whatever the weights of the
    sum. Where no path leads to g, a constant may be added to V on all states that cannot reach it: no optimum.
    """
    worst = 0.0
    for _ in range(WORLDS):
        world = random_world(generator)
        worst = max(worst, np.abs(programmes(world) - fewest_steps(world)).max())
    numbers = {"largest difference": worst}
    yield Evidence(f"{WORLDS} random digraphs, all goals, against shortest paths", numbers, worst < ROUNDING)
    numbers = {"optimum": programme(corridor(3), 0)[2]}
    text = "a corridor against its direction: unbounded, so a learner needs a ceiling"
    yield Evidence(text, numbers, np.isinf(numbers["optimum"]))


@statement("HTP, support function", "d is directed and subadditive for any phi, omega; V* at landmarks", "holds")
def support(generator: np.random.Generator) -> Iterator[Evidence]:
    """<phi(z) - phi(x), w> = <phi(y) - phi(x), w> + <phi(z) - phi(y), w> <= d(x, y) + d(y, z): now the maximum over w.

    With V exact, d(x, y) = max_g V*(x, g) - V*(y, g) <= V*(x, y), because V* obeys the triangle inequality, and g = y
    attains it if y is a landmark. phi -> M phi, omega -> M^-T omega changes nothing.
    """
    diagonal, gap = 0.0, np.inf
    at_landmarks, elsewhere, turned = 0.0, -np.inf, 0.0
    for _ in range(INSTANCES):
        features = generator.normal(size=(6, int(generator.integers(1, 5))))
        drawn = support_distance(features, generator.normal(size=(int(generator.integers(1, 9)), features.shape[1])))
        diagonal = max(diagonal, np.abs(np.diag(drawn)).max())
        gap = min(gap, (drawn[:, :, None] + drawn[None] - drawn[:, None]).min())
        times = fewest_steps(random_world(generator))
        retained = generator.permutation(len(times))[: len(times) - 1]
        exact = support_distance(-times, np.eye(len(times))[retained])
        at_landmarks = max(at_landmarks, np.abs(exact - times)[:, retained].max())
        elsewhere = max(elsewhere, (exact - times).max())
        move = np.eye(len(times)) + 0.1 * generator.normal(size=times.shape)
        other = support_distance(-times @ move.T, np.eye(len(times))[retained] @ np.linalg.inv(move))
        turned = max(turned, np.abs(other - exact).max())
    numbers = {"largest d(x, x)": diagonal, "smallest d(x, y) + d(y, z) - d(x, z)": gap}
    yield Evidence(f"{INSTANCES} random phi and omega", numbers, diagonal == 0.0 and gap > -ROUNDING)
    numbers = {"|d - V*| at landmarks": at_landmarks, "d - V* elsewhere, at most": elsewhere, "turned by M": turned}
    text = f"{INSTANCES} random digraphs, V exact, all states but one are landmarks"
    yield Evidence(text, numbers, max(at_landmarks, elsewhere, turned) < ROUNDING)


@statement("HTP, slack and rank", "d <= (1 + e) V* if no step exceeds 1 + e; |d - V*| <= 2 max |V^ - V*|", "holds")
def relaxed(generator: np.random.Generator) -> Iterator[Evidence]:
    """Along a shortest path x_0, .., x_n the triangle inequality gives d(x_0, x_n) <= sum d(x_i, x_i+1) <= (1 + e) n.

    For the second, d and V* are maxima over g of V^(x, g) - V^(y, g) and of V*(x, g) - V*(y, g) (every y a landmark).
    Each difference is off by at most 2 eta if each entry is off by at most eta, and a maximum moves no more than that.
    """
    slack, far, rank = 0.0, 0.0, 0.0
    for _ in range(INSTANCES):
        world = random_world(generator)
        times = fewest_steps(world)
        drawn = support_distance(0.3 * generator.normal(size=times.shape) - times, np.eye(len(times)))
        ratio = drawn / (longest_step(world, drawn) * np.maximum(times, 1.0))
        slack, far = max(slack, ratio.max()), max(far, ratio[times > 2].max(initial=0.0))
        features, omegas, error = low_rank(times, int(generator.integers(1, len(times) - 1)))
        if error > ROUNDING:
            rank = max(rank, np.abs(support_distance(features, omegas) - times).max() / (2.0 * error))
    numbers = {"largest d / ((1 + e) V*)": slack, "where V* > 2": far}
    holds = 0.7 < far <= slack <= 1.0 + ROUNDING
    yield Evidence(f"{INSTANCES} random digraphs, exact phi with noise", numbers, holds)
    text = "the same, the best rank-d fit of V*: one eta would not do"
    yield Evidence(text, {"largest |d - V*| / (2 eta)": rank}, 0.5 < rank <= 1.0 + ROUNDING)
    times, numbers, holds = fewest_steps(maze_from_map(MEDIUM_MAZE, subcells=1).process()), {}, True
    for dimension in (2, 4, 8):
        features, omegas, error = low_rank(times, dimension)
        missed = np.abs(support_distance(features, omegas) - times).max()
        holds &= bool(missed <= 2.0 * error)
        numbers |= {f"|d - V*|, d = {dimension}": missed, f"2 eta, d = {dimension}": 2.0 * error}
    yield Evidence(f"the cells of OGBench's medium maze, up to {times.max():.0f} moves apart", numbers, holds)


@statement("HTP in random worlds", "constraints in expectation give min V^pi; single steps, the luckiest path", "holds")
def lucky(generator: np.random.Generator) -> Iterator[Evidence]:
    """V(x) <= 1 + V(x') for every x' that can occur is the programme of a world that chooses x': the luckiest path.

    V(x) <= 1 + E[V(x') | x, a] for every action says V <= T V with the Bellman operator T. T is monotone, so
    V <= T^k V, which tends to V*; V* = T V* is feasible, hence the optimum. V is linear in phi(x'), so the expectation
    goes inside: <E[phi(x') | x, a] - phi(x), omega_g> <= 1, where the paper's K_a phi(x) may stand for the mean.
    """
    world, goal = gamble(), 6
    inside, single = programme(world, goal), programme(world, goal, sampled=True)
    solved = value_iteration(world)[:, goal]
    numbers = {"single transitions": single[0], "in expectation": inside[0], "value iteration": solved[0]}
    right = single[0] == 1.0 and solved[0] > 5.9 and np.abs(inside - solved).max() < 1e-6
    yield Evidence("six sure steps, or one with probability 0.1 and else a long way back", numbers, right)
    error, luckiest, progress = 0.0, 0.0, 0.0
    for _ in range(WORLDS):
        process = random_process(int(generator.integers(3, 7)), 2, generator, concentration=0.3)
        best = np.stack([optimal_hitting_times(process, goal).values for goal in range(process.states)], axis=1)
        error = max(error, (np.abs(programmes(process) - best) / best.max()).max())
        luckiest = max(luckiest, np.abs(programmes(process, sampled=True) - fewest_steps(process)).max())
        # <E[phi(x')] - phi(x), omega_g> of the best action, with phi = -V* and omega_g = e_g: one off the goal.
        gained = (best - process.expected(best)).max(axis=0)
        progress = max(progress, np.abs(off_diagonal(gained) - 1.0).max(), np.diag(gained).max())
    numbers = {"in expectation, relative error": error, "single transitions against luckiest path": luckiest}
    yield Evidence(f"{WORLDS} random processes, all goals", numbers, max(error, luckiest) < 1e-6)
    yield Evidence("the same: progress of the best action is one", {"largest difference": progress}, progress < 1e-6)


@statement("HTP in noise", "single steps fall short by the slip; means by few samples and few dimensions", "holds")
def noisy(generator: np.random.Generator) -> Iterator[Evidence]:
    """Moves on a grid slip with probability s. Single steps believe in the slip that helps: V is the open map's.

    A mean learned from n samples per (x, a) is unbiased, but the minimum over actions picks the lucky one, so V is too
    small until n is large. A mean over the data's actions as well does not bound the best one: its optimum is the
    hitting time of the data's policy. In d dimensions all constraints must hold at once, and V falls short where V* is
    not of that rank; noise raises it. That the mean is linear in phi (the paper's K_a phi) costs hardly anything more.
    """
    calm, rough = grid(5, 5), grid(5, 5, slip=0.5)
    exact = value_iteration(rough)

    def share(found: np.ndarray, best: np.ndarray = exact) -> float:
        return float(np.median(off_diagonal(found) / off_diagonal(best)))

    slight = grid(5, 5, slip=0.2)
    numbers = {
        "single steps, slip 0.2": share(fewest_steps(slight), value_iteration(slight)),
        "slip 0.5": share(fewest_steps(rough)),
        "in expectation, largest |V - V*|": np.abs(programmes(rough) - exact).max(),
    }
    first, second, error = numbers.values()
    yield Evidence("a 5 x 5 grid, median of V / V*", numbers, 0.9 > first > 0.6 > second and error < 1e-6)
    numbers = {}
    for samples in (1, 4, 16, 256):
        drawn = [value_iteration(sampled_means(rough, samples, generator)) for _ in range(16)]
        numbers[f"n = {samples}"] = float(np.mean([share(found) for found in drawn]))
    found = list(numbers.values())
    holds = found == sorted(found) and found[0] < 0.8 and 0.97 < found[-1] < 1.0
    yield Evidence("slip 0.5, means over n samples per state and action, mean of 16 draws", numbers, holds)
    blind = ControlledProcess.of([policy_chain(rough, uniform_policy(rough))])
    times = hitting_time_matrix(blind.transitions[0])
    numbers = {"V / V*": share(times), "|V - V^pi|, relative": np.abs(programmes(blind) - times).max() / times.max()}
    text = "the same, means over the actions of the uniform policy as well"
    yield Evidence(text, numbers, numbers["V / V*"] > 5.0 and numbers["|V - V^pi|, relative"] < 1e-6)
    numbers = {}
    for name, process, best in (("slip 0", calm, fewest_steps(calm)), ("slip 0.5", rough, exact)):
        features = low_rank(best, 8)[0]
        numbers[name] = share(programmes_within(features, process.expected(features)), best)
    fitted = linear_means(features, rough.expected(features))
    numbers["K_a phi"] = share(programmes_within(features, fitted))
    drawn = [sampled_means(rough, 4, generator).expected(features) for _ in range(4)]
    found = [share(programmes_within(features, linear_means(features, means))) for means in drawn]
    numbers["K_a phi, n = 4"] = float(np.mean(found))
    calmly, rank, linear, few = numbers.values()
    holds = abs(calmly - 1.0) < 1e-6 and few < linear < 0.9 and abs(linear - rank) < 0.02
    yield Evidence("V within the best 8 dimensions of V*", numbers, holds)
