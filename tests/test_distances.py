"""The geometry of the directed distance: what the paper claims of it, and what the planner relies on."""

import jax.numpy as jnp
import numpy as np
import pytest

from iel.distances import directed, discounted_steps, euclidean, projection, undiscounted_steps


def random_points(seed: int, count: int, dimension: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    omega = rng.standard_normal(dimension)
    return *rng.standard_normal((3, count, dimension)), omega / np.linalg.norm(omega)


def by_hand(source: np.ndarray, target: np.ndarray, omega: np.ndarray, beta: float) -> np.ndarray:
    """The paper's formula in float64, written differently: with an angle."""
    delta = target - source
    length = np.linalg.norm(delta, axis=-1)
    angle = np.arccos(np.clip(delta @ omega / length, -1, 1))
    return length * np.exp(beta * (1 - np.cos(angle)))


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.3, 1.0])
def test_directed_distance_is_the_papers_formula(beta):
    source, target, _, omega = random_points(0, 500, 32)
    np.testing.assert_allclose(directed(source, target, omega, beta), by_hand(source, target, omega, beta), rtol=2e-5)


def test_beta_zero_is_the_value_of_hilp():
    source, target, _, omega = map(jnp.asarray, random_points(1, 500, 32))
    hilp = jnp.sqrt(jnp.maximum(jnp.square(source - target).sum(-1), 1e-6))
    assert np.array_equal(directed(source, target, omega, 0.0), hilp)
    assert np.array_equal(euclidean(source, target), hilp)


def test_moving_along_omega_is_cheap_and_against_it_expensive():
    origin, omega = np.zeros(3), np.array([1.0, 0.0, 0.0])
    forward = directed(origin, 2.0 * omega, omega, 0.5)
    backward = directed(origin, -2.0 * omega, omega, 0.5)
    assert forward == pytest.approx(2.0)
    assert backward == pytest.approx(2.0 * np.exp(1.0))
    assert projection(origin, 2.0 * omega, omega) == pytest.approx(2.0)


def test_the_path_back_costs_exp_two_beta_cosine_times_as_much():
    source, target, _, omega = random_points(2, 500, 8)
    cosine = ((target - source) @ omega) / np.linalg.norm(target - source, axis=-1)
    ratio = directed(target, source, omega, 0.3) / directed(source, target, omega, 0.3)
    np.testing.assert_allclose(ratio, np.exp(2 * 0.3 * cosine), rtol=1e-4)


@pytest.mark.parametrize("dimension", [2, 3, 32])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 1.0])
def test_triangle_inequality_holds_up_to_beta_one(beta, dimension):
    a, b, c, omega = random_points(3, 20_000, dimension)
    detour = by_hand(a, b, omega, beta) + by_hand(b, c, omega, beta)
    assert (by_hand(a, c, omega, beta) <= detour * (1 + 1e-12)).all()
    ours = directed(a, b, omega, beta) + directed(b, c, omega, beta)
    assert (directed(a, c, omega, beta) <= ours * (1 + 1e-5)).all()


def test_triangle_inequality_fails_for_beta_above_one():
    # Straight back against omega costs more than a zigzag: the unit ball is not convex any more.
    omega, end = np.array([1.0, 0.0]), np.array([-2.0, 0.0])
    middle = np.array([-1.0, 0.35])
    straight = directed(np.zeros(2), end, omega, 1.2)
    detour = directed(np.zeros(2), middle, omega, 1.2) + directed(middle, end, omega, 1.2)
    assert detour < straight
    assert directed(np.zeros(2), middle, omega, 1.0) + directed(middle, end, omega, 1.0) > directed(
        np.zeros(2), end, omega, 1.0
    )


def test_distance_to_itself_is_small_and_has_a_gradient():
    import jax

    point, omega = jnp.ones(4), jnp.array([1.0, 0, 0, 0])
    assert directed(point, point, omega, 0.1) == pytest.approx(1e-3 * np.exp(0.1))
    assert jnp.isfinite(jax.grad(lambda p: directed(point, p, omega, 0.1))(point)).all()


def test_discounted_steps_count_from_one_to_the_horizon():
    steps = jnp.array([1.0, 2.0, 10.0, 1e6])
    expected = [1.0, 1.99, sum(0.99**k for k in range(10)), 100.0]
    np.testing.assert_allclose(discounted_steps(steps, 0.99), expected, rtol=1e-4)


def test_undiscounting_inverts_discounting_and_never_overflows():
    steps = jnp.arange(1.0, 400.0)
    np.testing.assert_allclose(undiscounted_steps(discounted_steps(steps, 0.99), 0.99), steps, rtol=1e-3)
    assert np.isfinite(undiscounted_steps(jnp.array([100.0, 150.0, 1e9]), 0.99)).all()
    assert undiscounted_steps(jnp.array([0.0]), 0.99) == 0.0
