"""The samplers over a million draws: nothing crosses an episode, and every distribution is the one that is claimed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from iel.data import Trajectories
from iel.data.goals import BEHIND, GoalSampler, draw_states, geometric, relabel, to_device
from iel.errors import ConfigError

DRAWS = 1_000_000


@pytest.fixture(scope="module")
def data() -> Trajectories:
    rng = np.random.default_rng(0)
    lengths = [2, 3, 5, 8, 40, 200, 1000]
    return Trajectories.from_episodes([(rng.standard_normal((n + 1, 2)), np.zeros((n, 1))) for n in lengths])


@pytest.fixture(scope="module")
def draw(data):
    sampler = GoalSampler(discount=0.99, p_trajectory=0.625, p_random=0.375, max_steps=10)
    return jax.tree.map(np.asarray, sampler(jax.random.key(0), to_device(data), DRAWS))


def test_states_are_uniform_over_transitions(data, draw):
    counts = np.bincount(draw.state, minlength=data.num_states)[data.transitions]
    assert counts.sum() == DRAWS  # never the last state of an episode
    expected = DRAWS / data.num_transitions
    assert np.abs(counts - expected).max() < 6 * np.sqrt(expected)


def test_intermediates_stay_on_the_path(data, draw):
    assert (draw.steps >= 1).all() and (draw.steps <= 10).all()
    assert np.array_equal(draw.intermediate, draw.state + draw.steps)
    assert (draw.intermediate <= data.final[draw.state]).all()
    ahead = (draw.goal > draw.state) & (draw.goal <= data.final[draw.state])
    assert (draw.intermediate[ahead] <= draw.goal[ahead]).all()


def test_intermediate_gaps_are_uniform_in_the_middle_of_a_long_episode(data, draw):
    first = data.offsets[-2]
    elsewhere = (draw.goal < first) | (draw.goal > draw.state + 10)
    inside = (draw.state >= first) & (draw.state < first + 900) & elsewhere
    shares = np.bincount(draw.steps[inside], minlength=11)[1:] / inside.sum()
    np.testing.assert_allclose(shares, 0.1, atol=0.003)


def test_the_authors_code_takes_the_next_state_where_the_goals_row_is_lower(data):
    sampler = GoalSampler(max_steps=10, strays="step")
    draw = jax.tree.map(np.asarray, sampler(jax.random.key(0), to_device(data), 100_000))
    upper = np.minimum(np.minimum(draw.goal - 1, data.final[draw.state] - 1), draw.state + 10)
    assert (draw.steps[upper - draw.state < 1] == 1).all()
    ranged = upper - draw.state >= 1
    assert (draw.intermediate[ranged] <= upper[ranged]).all() and draw.steps.max() == 10
    assert (draw.steps[draw.goal < draw.state] == 1).all()


def test_share_of_random_goals(data, draw):
    # From the long last episode, a goal outside it must be a random one.
    first = data.offsets[-2]
    inside = draw.state >= first
    outside_share = (draw.goal[inside] < first).mean()
    assert outside_share == pytest.approx(0.375 * first / data.num_states, abs=0.002)
    # Success is equality of rows, which only a random goal can bring about.
    assert (draw.goal == draw.state).mean() == pytest.approx(0.375 / data.num_states, rel=0.3)


def test_trajectory_goals_are_geometric_and_clipped(data):
    sampler = GoalSampler(discount=0.9, p_trajectory=1.0, p_random=0.0)
    draw = jax.tree.map(np.asarray, sampler(jax.random.key(1), to_device(data), DRAWS))
    gap = draw.goal - draw.state
    assert (gap >= 1).all() and (draw.goal <= data.final[draw.state]).all()
    far = data.final[draw.state] - draw.state > 300
    shares = np.bincount(gap[far], minlength=8)[1:8] / far.sum()
    np.testing.assert_allclose(shares, 0.1 * 0.9 ** np.arange(7), atol=0.002)
    last_but_two = draw.state == data.final[draw.state] - 2
    assert (gap[last_but_two] == 2).mean() == pytest.approx(
        0.9, abs=0.02
    )  # all the mass beyond falls on the last state


def test_uniform_trajectory_goals_are_every_later_state_equally_often(data):
    sampler = GoalSampler(p_trajectory=1.0, p_random=0.0, future="uniform")
    rows = np.full(200_000, data.offsets[3], np.int32)  # the first state of the episode with eight steps
    goal = np.asarray(sampler.goals(jax.random.key(2), to_device(data), rows))
    shares = np.bincount(goal - rows, minlength=9) / len(rows)
    assert len(shares) == 9 and shares[0] == 0.0
    np.testing.assert_allclose(shares[1:], 1 / 8, atol=0.004)


def test_goals_behind_were_just_left_on_the_same_episode(data):
    rows, final = np.repeat(data.transitions, 50), np.asarray(data.final)
    sampler = GoalSampler(p_trajectory=1.0, p_random=0.0, p_behind=0.4)
    goals = np.asarray(sampler.goals(jax.random.key(3), to_device(data), jnp.asarray(rows)))
    behind = goals < rows
    assert (final[goals] == final[rows]).all() and (rows - goals <= BEHIND).all()
    start = np.searchsorted(final, final[rows])  # the episode's first row: there nothing lies behind
    free = rows - start >= BEHIND
    assert not behind[rows == start].any()
    assert abs(behind[free].mean() - 0.4) < 0.02
    assert abs((rows - goals)[free & behind].mean() - (BEHIND + 1) / 2) < 1.0


def test_relabelled_transitions(data):
    """Value goals 0.2 own, 0.5 ahead, 0.3 anywhere; actor goals ahead; success exactly where the goal is the state."""
    value = GoalSampler(0.9, 0.5, 0.3, p_current=0.2)
    actor = GoalSampler(p_trajectory=1.0, p_random=0.0, future="uniform")
    batch = jax.tree.map(np.asarray, relabel(jax.random.key(4), to_device(data), value, actor, 200_000))
    row = {observation.tobytes(): number for number, observation in enumerate(data.observations)}
    state, after, goal, actor_goal = (
        np.array([row[observation.tobytes()] for observation in part[:20_000]])
        for part in (batch.state, batch.next_state, batch.goal, batch.actor_goal)
    )
    assert np.array_equal(after, state + 1) and np.array_equal(batch.action[:20_000], data.actions[state])
    assert np.array_equal(batch.success[:20_000] == 1.0, goal == state)
    assert batch.success.mean() == pytest.approx(0.2, abs=0.004)
    assert (actor_goal > state).all() and (actor_goal <= data.final[state]).all()
    elsewhere = (goal < state) | (goal > data.final[state])
    assert 0.05 < elsewhere.mean() < 0.3  # only a random goal can lie there


def test_geometric_mean():
    assert np.asarray(geometric(jax.random.key(0), 0.99, DRAWS)).mean() == pytest.approx(100, rel=0.01)


def test_batches_follow_from_the_key_alone(data):
    arrays, sampler = to_device(data), GoalSampler()
    once, again = (sampler(jax.random.fold_in(jax.random.key(3), 7), arrays, 64) for _ in range(2))
    other = sampler(jax.random.fold_in(jax.random.key(3), 8), arrays, 64)
    assert np.array_equal(once.goal, again.goal) and not np.array_equal(once.goal, other.goal)
    assert draw_states(jax.random.key(0), arrays, 5).shape == (5,)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"p_trajectory": 0.5}, "sum to 1"),
        ({"p_trajectory": 1.5, "p_random": -0.5}, "non-negative"),
        ({"p_current": 0.2}, "sum to 1"),
        ({"discount": 1.0}, "strictly between"),
        ({"max_steps": 0}, "at least one step"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        GoalSampler(**settings)
