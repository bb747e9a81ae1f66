"""The audit on worlds whose answer is known: it must praise the exact geometry and reject a random one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from iel.errors import ChainError
from iel.theory import (
    audit_embedding,
    calibration_table,
    discounted_steps,
    draw_audit,
    fit_latent_dynamics,
    maze_from_map,
    spearman,
    steps_between,
    trusted_horizon,
    undiscounted_steps,
)

ROOM = np.pad(np.zeros((6, 6), int), 1, constant_values=1)


def wanderer(generator: np.random.Generator, episodes: int = 30, steps: int = 120):
    """Point-mass trajectories with momentum in an open room: positions (S, 2), actions (S, 2), offsets."""
    positions, actions = [], []
    for _ in range(episodes):
        xy, heading = generator.uniform(0, 20, 2), generator.normal(size=2)
        for step in range(steps + 1):
            heading = 0.9 * heading + 0.4 * generator.normal(size=2)
            action = np.clip(heading, -1, 1) if step < steps else np.full(2, np.nan)
            positions.append(xy)
            actions.append(action)
            xy = np.clip(xy + 0.2 * np.nan_to_num(action), -2, 22)
    return np.array(positions), np.array(actions), np.arange(episodes + 1) * (steps + 1)


@pytest.fixture(scope="module")
def world():
    positions, actions, offsets = wanderer(np.random.default_rng(0))
    maze = maze_from_map(ROOM, subcells=10)
    return positions, actions, offsets, maze


def run(world, predicted, *, exact=True, discount=None, seed=1):
    positions, actions, offsets, maze = world
    direction = np.tile([1.0, 0.0], (1, 1))
    return audit_embedding(
        positions,
        actions,
        offsets,
        predicted=predicted,
        task=lambda goals: np.repeat(direction, len(goals), axis=0),
        exact=(lambda i, j: steps_between(maze, positions[i], positions[j])) if exact else None,
        discount=discount,
        pairs=1500,
        generator=np.random.default_rng(seed),
    )


def test_an_exact_geometry_is_trusted_as_far_as_the_data_reaches(world):
    positions = world[0]
    audit = run(world, lambda i, j: np.abs(positions[j] - positions[i]).max(axis=1) / 0.2)
    assert audit.spearman_exact is not None and audit.spearman_exact > 0.99
    assert audit.horizon >= 64
    assert audit.triangle_violations == 0.0
    assert audit.asymmetry < 1e-9
    assert abs(audit.ratio - 1.0) < 0.1
    # Positions move linearly with the action except at the walls.
    assert audit.dynamics.epsilon(0.5) < 0.1 * audit.dynamics.step_size
    assert 0.9 < audit.dynamics.spectral_radius < 1.01


def test_a_random_geometry_is_not_trusted_at_any_distance(world):
    generator = np.random.default_rng(2)
    audit = run(world, lambda i, j: generator.uniform(1, 100, len(i)))
    assert audit.horizon == 0.0
    assert abs(audit.spearman_exact) < 0.1
    assert audit.triangle_violations > 0.05 and audit.triangle_excess > 0
    assert any("cannot be trusted" in line for line in audit.sentences())


def test_a_geometry_that_saturates_is_trusted_up_to_where_it_saturates(world):
    positions = world[0]
    audit = run(world, lambda i, j: np.minimum(np.abs(positions[j] - positions[i]).max(axis=1) / 0.2, 20.0))
    assert 16 <= audit.horizon <= 32


def test_without_exact_times_observed_gaps_bound_predictions_from_above(world):
    positions = world[0]
    audit = run(world, lambda i, j: np.abs(positions[j] - positions[i]).max(axis=1) / 0.2, exact=False)
    assert audit.spearman_exact is None and not audit.against_exact
    assert audit.ratio <= 1.0
    assert all(row.above < 0.01 for row in audit.calibration)
    assert any("bound the shortest time from above" in line for line in audit.sentences())


def test_discounted_predictions_are_turned_back_into_steps(world):
    positions = world[0]

    def steps(i, j):
        return np.abs(positions[j] - positions[i]).max(axis=1) / 0.2

    plain = run(world, steps)
    discounted = run(world, lambda i, j: discounted_steps(steps(i, j), 0.99), discount=0.99)
    assert np.isclose(plain.ratio, discounted.ratio) and discounted.saturated == 0.0
    ceiling = run(world, lambda i, j: np.minimum(1.3 * discounted_steps(steps(i, j), 0.95), 20.0), discount=0.95)
    assert ceiling.saturated > 0.1
    assert any("discounting ceiling" in line for line in ceiling.sentences())


def test_undiscounting_inverts_discounting_and_saturates():
    steps = np.array([0.0, 1.0, 10.0, 300.0])
    assert np.allclose(undiscounted_steps(discounted_steps(steps, 0.99), 0.99), steps)
    assert discounted_steps(np.array(1.0), 0.9) == 1.0
    assert np.isinf(undiscounted_steps(np.array([100.0, 120.0]), 0.99)).all()
    with pytest.raises(ChainError, match="discount"):
        undiscounted_steps(steps, 1.0)


def test_asymmetry_is_seen(world):
    positions = world[0]

    def uphill(i, j):
        delta = positions[j] - positions[i]
        return np.abs(delta).max(axis=1) / 0.2 * np.where(delta[:, 0] > 0, 3.0, 1.0)

    assert 0.9 < run(world, uphill).asymmetry < 1.1  # |3 - 1| / 2


def test_the_latent_dynamics_of_a_linear_system_are_recovered():
    generator = np.random.default_rng(3)
    matrix = np.array([[0.9, 0.1], [-0.1, 0.8]])
    control, offset = np.array([[0.5], [1.0]]), np.array([0.2, -0.1])
    states, actions = [], generator.normal(size=(600, 1))
    x = np.zeros(2)
    for row in range(600):
        if row % 60 == 0:
            x = generator.normal(size=2)
        states.append(x)
        x = matrix @ x + control @ actions[row] + offset
    held_out = np.arange(10) >= 8
    found = fit_latent_dynamics(np.array(states), actions, np.arange(11) * 60, held_out, ridge=1e-10)
    assert np.allclose(found.state_matrix, matrix, atol=1e-6)
    assert np.allclose(found.action_matrix, control, atol=1e-6)
    assert np.allclose(found.offset, offset, atol=1e-6)
    assert found.errors.max() < 1e-6 and len(found.errors) == 2 * 59
    radius = np.abs(np.linalg.eigvals(matrix)).max()
    assert np.isclose(found.horizon_factor, 1 / (1 - radius), rtol=1e-4)


def test_the_calibration_table_and_the_horizon_follow_their_definition():
    reference = np.repeat([1.0, 2.0, 4.0, 8.0, 16.0], 50)
    noise = np.random.default_rng(4).normal(0, 0.01, 250)
    table = calibration_table(reference, np.minimum(reference, 4.0) + noise)
    assert [row.high for row in table] == [1, 2, 4, 8, 16]
    assert [row.count for row in table] == [50] * 5
    assert table[1].order == 1.0 and 0.3 < table[3].order < 0.7
    assert trusted_horizon(table) == 4.0
    assert trusted_horizon([]) == 0.0
    # Too few pairs end the table rather than adding a noisy row.
    assert len(calibration_table(np.append(reference, 100.0), np.append(reference, 1.0))) == 5


def test_spearman_ranks_infinities_last():
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, np.inf])) == pytest.approx(1.0)
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))
    with pytest.raises(ChainError, match="NaN"):
        spearman(np.array([np.nan, 1.0]), np.array([1.0, 2.0]))


def test_the_report_is_json_and_english_and_a_picture(world, tmp_path):
    positions = world[0]
    audit = run(world, lambda i, j: np.abs(positions[j] - positions[i]).max(axis=1) / 0.2)
    text = json.dumps(audit.to_dict(), allow_nan=False)
    assert json.loads(text)["spearman_exact"] == pytest.approx(audit.spearman_exact)
    assert all(line.endswith(".") for line in audit.sentences())
    picture = draw_audit(audit, tmp_path / "deep" / "audit.png")
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_same_seed_gives_the_same_audit(world):
    positions = world[0]

    def predicted(i, j):
        return np.linalg.norm(positions[j] - positions[i], axis=1)

    assert run(world, predicted).to_dict() == run(world, predicted).to_dict()


def test_malformed_input_is_refused(world):
    positions, actions, offsets, _ = world

    def call(**changes):
        arguments = {
            "embeddings": positions,
            "actions": actions,
            "offsets": offsets,
            "task": lambda goals: np.ones((len(goals), 2)),
            "predicted": lambda i, j: np.ones(len(i)),
        }
        return audit_embedding(**{**arguments, **changes}, generator=np.random.default_rng(0))

    with pytest.raises(ChainError, match="one row per stored state"):
        call(actions=actions[:-1])
    with pytest.raises(ChainError, match="episode offsets"):
        call(offsets=offsets[:-1])
    with pytest.raises(ChainError, match="not finite"):
        call(embeddings=np.full_like(positions, np.nan))
    with pytest.raises(ChainError, match="one omega per goal index"):
        call(task=lambda goals: np.ones((len(goals), 3)))
    with pytest.raises(ChainError, match="contain NaN"):
        call(predicted=lambda i, j: np.full(len(i), np.nan))
    with pytest.raises(ChainError, match="at least two episodes"):
        call(embeddings=positions[:121], actions=actions[:121], offsets=np.array([0, 121]))
