"""Rests: an agent that waits is cut short, one that keeps going is left whole."""

import numpy as np
import pytest

from iel.data import Trajectories, cut_rests, rest_rows
from iel.data.positions import LONG, SHORT, Rest


def walk(*parts: tuple[int, float]) -> np.ndarray:
    """(rows, 1) positions: parts of given lengths and speeds, one after another."""
    return np.cumsum(np.concatenate([np.full(rows, speed) for rows, speed in parts]))[:, None]


def stored(*walks: np.ndarray) -> Trajectories:
    return Trajectories.from_episodes([(position, np.zeros((len(position) - 1, 1))) for position in walks], trust=True)


def slowly(data: Trajectories, kind: Rest = LONG) -> list[int]:
    """The definition, row by row."""
    position = data.observations[:, 0].astype(float) / data.observations[:, 0].astype(float).std()
    spans = list(zip(data.offsets[:-1], data.offsets[1:], strict=True))
    whole = [abs(position[t + kind.window] - position[t]) for a, b in spans for t in range(a, b - kind.window)]
    limit, rows = np.quantile(whole, 0.99) / 4, []
    for a, b in spans:
        run: list[int] = []
        for t in [*range(a, b), None]:
            if t is not None:
                ahead = min(kind.window, b - 1 - t)
                share = max(ahead, 1) / kind.window if kind is SHORT else 1.0
                if abs(position[t + ahead] - position[t]) < limit * share:
                    run.append(t)
                    continue
            rows += run[kind.edge : len(run) - kind.edge] if len(run) >= kind.shortest else []
            run = []
    return rows


def test_the_inside_of_a_rest_is_left_out_and_nothing_else():
    data = stored(walk((200, 0.1), (160, 0.0), (200, 0.1)), walk((150, 0.1), (140, 0.0)))
    rows = rest_rows(data, [0])
    assert rows.tolist() == slowly(data) and len(rows) > 100
    first, second = rows[rows < 560], rows[rows >= 560]
    assert 220 < first.min() < 240 and 285 < first.max() < 300  # it walks on from row 360, and looks 40 rows ahead
    assert second.max() == 850 - LONG.window - 1
    assert cut_rests(data, [0]) is data  # less than half of it rests


def test_rests_are_cut_out_where_they_are_most_of_the_data():
    data = stored(walk((200, 0.1), (700, 0.0), (100, 0.1)), walk((150, 0.1), (640, 0.0)))
    rows, pieces = rest_rows(data, [0]), cut_rests(data, [0])
    assert len(rows) > len(data.observations) / 2
    assert len(pieces) == 4 and pieces.num_transitions == data.num_transitions - len(rows)


@pytest.mark.parametrize("seed", range(5))
def test_equal_to_the_definition_on_random_walks(seed):
    rng = np.random.default_rng(seed)
    parts = [[(int(rng.integers(1, 240)), float(rng.choice([0.0, 0.01, 0.1]))) for _ in range(8)] for _ in range(3)]
    data = stored(*(walk(*part) + 0.001 * rng.standard_normal((sum(rows for rows, _ in part), 1)) for part in parts))
    assert rest_rows(data, [0]).tolist() == slowly(data)
    assert rest_rows(data, [0], SHORT).tolist() == slowly(data, SHORT)


def test_short_rests_go_where_they_are_most_of_the_data():
    """As in episodes that end at their goal: none is long enough to count as a long rest, and most of the time is."""
    data = stored(*(walk((30, 0.1), (50, 0.0)) for _ in range(30)))
    assert len(rest_rows(data, [0])) == 0
    pieces = cut_rests(data, [0])
    assert len(pieces) == 30 and 20 * 30 < pieces.num_states < 36 * 30


@pytest.mark.parametrize("pause", [0, LONG.shortest - 41])
def test_what_keeps_going_stays_whole(pause):
    data = stored(walk((200, 0.1), (pause, 0.0), (200, 0.1)))
    assert len(rest_rows(data, [0])) == 0 and cut_rests(data, [0]) is data


def test_where_nothing_tells_the_position_nothing_rests():
    noise = np.random.default_rng(0).standard_normal((500, 3))
    data = stored(noise)
    assert len(rest_rows(data)) == 0 and cut_rests(data) is data


def test_episodes_shorter_than_a_window():
    assert len(rest_rows(stored(walk((10, 0.1)), walk((12, 0.0))), [0])) == 0
