"""The audit on worlds whose answer is known: exact geometries come out exact, shuffled ones as not to be trusted."""

from __future__ import annotations

import json

import numpy as np
import pytest

from iel.distances import discounted_steps, longest_steps, undiscounted_steps
from iel.errors import ChainError
from iel.theory import audit_costs, audit_embedding, hitting_time_matrix
from iel.theory.builders import random_process
from iel.theory.calibration import (
    bootstrap,
    calibration_table,
    fit_latent_dynamics,
    spearman,
    trusted_horizon,
)
from iel.theory.chains import simulate
from iel.viz.audit import draw_audit


def wanderer(generator: np.random.Generator, episodes: int = 40, steps: int = 150):
    """Point-mass trajectories with momentum on the open plane: positions (S, 2), actions (S, 2), offsets."""
    positions, actions = [], []
    for _ in range(episodes):
        xy, heading = generator.uniform(0, 20, 2), generator.normal(size=2)
        for step in range(steps + 1):
            heading = 0.9 * heading + 0.4 * generator.normal(size=2)
            action = np.clip(heading, -1, 1) if step < steps else np.full(2, np.nan)
            positions.append(xy)
            actions.append(action)
            xy = xy + 0.2 * np.nan_to_num(action)
    return np.array(positions), np.array(actions), np.arange(episodes + 1) * (steps + 1)


WORLD = wanderer(np.random.default_rng(0))
POSITIONS, ACTIONS, OFFSETS = WORLD


def chebyshev(i, j):
    """Fewest steps on the open plane, where a step moves at most 0.2 along each axis."""
    return np.abs(POSITIONS[j] - POSITIONS[i]).max(axis=1) / 0.2


def run(predicted=chebyshev, *, exact=chebyshev, seed=1, embeddings=POSITIONS, **more):
    return audit_embedding(
        OFFSETS,
        predicted=predicted,
        exact=exact,
        embeddings=embeddings,
        actions=ACTIONS,
        pairs=1500,
        generator=np.random.default_rng(seed),
        **more,
    )


def test_an_exact_geometry_is_exact_in_all_seven_figures():
    audit = run(discount=0.999)
    assert audit.figures() == dict.fromkeys(
        ("order", "calibration", "progress", "horizon", "triangle", "saturation", "closure"), True
    )
    assert audit.verdict == "exact" and audit.sentences()[-1].endswith("predictions are exact.")
    assert audit.order.value == pytest.approx(1.0) and audit.ratio.value == pytest.approx(1.0)
    assert audit.progress.slope.value == pytest.approx(1.0)
    assert audit.horizon.low == audit.horizon.value == audit.reach >= 64
    assert audit.triangle.value == audit.saturated.value == 0.0
    assert audit.dynamics.epsilon.value < 1e-6 * audit.dynamics.step


def test_a_shuffled_geometry_cannot_be_trusted():
    shuffle = np.random.default_rng(2).permutation(len(POSITIONS))
    audit = run(lambda i, j: chebyshev(shuffle[i], shuffle[j]), embeddings=POSITIONS[shuffle])
    assert audit.verdict == "cannot be trusted" and audit.horizon.high == 0.0
    assert "cannot be trusted from the shortest distances on" in audit.sentences()[-1]
    failed = {name for name, exact in audit.figures().items() if not exact}
    # A shuffled metric is still a metric, nothing is discounted, and a next embedding that nothing predicts counts as
    # noise (epsilon is "at least"): three figures cannot see it, four do.
    assert failed == {"order", "calibration", "progress", "horizon"}
    assert audit.dynamics.noise.value > 0.5 * audit.dynamics.step
    assert abs(audit.progress.slope.value) < 20 and not audit.progress.slope.within(0.9, 1.1)


def test_a_geometry_that_flattens_is_trusted_up_to_where_it_flattens():
    audit = run(lambda i, j: np.minimum(chebyshev(i, j), 20.0))
    assert audit.verdict.startswith("trusted up to") and 16 <= audit.horizon.value <= 32
    assert audit.horizon.low <= audit.horizon.value <= audit.horizon.high < audit.reach
    assert audit.figures()["triangle"] and not audit.figures()["progress"]
    assert 0.03 < audit.progress.slope.value < 0.9


def test_order_without_calibration_is_not_trust():
    """1000 d^0.1 ranks every pair rightly and is off by a factor of hundreds."""
    audit = run(lambda i, j: 1000 * chebyshev(i, j) ** 0.1)
    assert audit.order.value > 0.99 and audit.horizon.high == 0.0 and audit.verdict == "cannot be trusted"


def test_a_geometry_that_is_right_only_far_away_is_reported_to_be():
    audit = run(lambda i, j: np.where(chebyshev(i, j) < 16, 0.1, 1.0) * chebyshev(i, j))
    assert audit.verdict == "cannot be trusted" and audit.horizon.high == 0.0
    assert "It is so at 16 to 32, 32 to 64" in audit.sentences()[-1]


def test_progress_at_independent_goals_is_one_for_the_policys_own_times_and_hindsight_goals_would_not_be():
    """E[V(x, g) - V(x', g) | x, g] = 1 (Poisson), whatever the chain; a goal the walk then reached is another law."""
    generator = np.random.default_rng(3)
    chain = random_process(12, 1, generator, concentration=0.3).transitions[0]
    times = hitting_time_matrix(chain)
    walks = np.concatenate([simulate(chain, int(generator.integers(12)), 200, generator) for _ in range(60)])
    offsets = np.arange(61) * 201
    audit = audit_embedding(
        offsets,
        predicted=lambda i, j: times[walks[i], walks[j]],
        exact=lambda i, j: times[walks[i], walks[j]],
        embeddings=np.eye(12)[walks],
        actions=np.zeros((len(walks), 1)),
        pairs=20_000,
        generator=generator,
    )
    assert audit.verdict == "exact" and all(audit.figures().values())
    assert audit.progress.mean.low <= 1.0 <= audit.progress.mean.high
    assert audit.progress.mean.high - audit.progress.mean.low < 0.5
    # The chain is noisy, so single errors are large; the mean next embedding is met all the same.
    assert audit.dynamics.noise.value > 20 * audit.dynamics.epsilon.value
    now = np.setdiff1d(np.arange(len(walks)), offsets[1:] - 1)
    now = now[walks[now + 1] != walks[now]]
    hindsight = times[walks[now], walks[now + 1]].mean()  # the goal is where the step led
    assert hindsight > 2.0


def test_predictions_that_shrink_faster_than_time_passes_are_called_out():
    audit = run(lambda i, j: 40.0 * chebyshev(i, j) ** 1.5, exact=None)
    calm = run(exact=None)
    assert calm.progress.fastest.low <= 1.0 and not any("faster than time" in line for line in calm.sentences())
    drifting = np.cumsum(np.ones((100, 1)), axis=0)  # everything moves towards the goals at one step per step
    ahead = audit_embedding(
        np.array([0, 50, 100]),
        predicted=lambda i, j: 3.0 * np.abs(1000.0 - drifting[i, 0]),
        generator=np.random.default_rng(0),
    )
    assert ahead.progress.fastest.low == pytest.approx(3.0)
    assert any("faster than time passes" in line for line in ahead.sentences())
    assert audit.progress.slope is None


def test_without_exact_steps_observed_gaps_bound_predictions_from_above():
    audit = run(exact=None)
    assert not audit.against_exact and audit.verdict != "exact"
    assert audit.ratio.high <= 1.0 and all(row.above < 0.01 for row in audit.calibration)
    assert any("bounds the fewest steps only from above" in line for line in audit.sentences())
    # Predictions above observed gaps are a fault even so.
    assert run(lambda i, j: 5 * chebyshev(i, j), exact=None).horizon.value < audit.horizon.value


def test_saturation_is_seen_through_the_ceiling_and_triangles_are_validated_on_costs():
    discount = 0.95  # the ceiling is at 135 steps

    def cost(i, j):
        return np.minimum(1.3 * discounted_steps(chebyshev(i, j), discount), 1.0 / (1.0 - discount))

    def steps(i, j):
        return undiscounted_steps(cost(i, j), discount)

    audit = run(steps, cost=cost, discount=discount)
    assert audit.ceiling == pytest.approx(longest_steps(discount))
    at_ceiling = steps(*np.random.default_rng(0).integers(len(POSITIONS), size=(2, 4000))) >= audit.ceiling * (1 - 1e-5)
    assert 0.1 < audit.saturated.value < at_ceiling.mean() + 0.1
    assert any("cannot predict more than 135 steps" in line for line in audit.sentences())
    assert audit.triangle.value == 0.0  # a concave function of a metric is a metric
    assert run(steps, discount=discount).triangle.value > 0.01  # undiscounting is convex and breaks it


def test_asymmetry_is_seen():
    def uphill(i, j):
        return chebyshev(i, j) * np.where(POSITIONS[j, 0] > POSITIONS[i, 0], 3.0, 1.0)

    assert 0.9 < run(uphill).asymmetry < 1.1  # |3 - 1| / 2


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_transition_noise_is_reported_apart_from_misfit(noise):
    """A linear system has epsilon 0 however noisy; a curved one has epsilon > 0 however quiet."""
    generator = np.random.default_rng(4)
    matrix, control = np.array([[0.9, 0.1], [-0.1, 0.8]]), np.array([0.5, 1.0])

    def collect(curve: float):
        states, actions = np.empty((12_000, 2)), generator.normal(size=(12_000, 1))
        x = np.zeros(2)
        for row in range(12_000):
            if row % 60 == 0:
                x = generator.normal(size=2)
            states[row] = x
            x = matrix @ x + control * actions[row] + curve * np.sin(2 * x) + noise * generator.normal(size=2)
        return fit_latent_dynamics(states, actions, np.arange(201) * 60, generator)

    straight, curved = collect(0.0), collect(0.5)
    assert straight.epsilon.value < 0.3 * noise + 1e-6
    assert straight.noise.value == pytest.approx(np.sqrt(2) * noise, rel=0.1, abs=1e-6)
    assert curved.epsilon.value > 0.25 and curved.noise.value < np.sqrt(2) * noise + 0.15
    assert curved.epsilon.low < curved.epsilon.value < curved.epsilon.high


def test_every_action_has_its_own_operator():
    """phi' = K_a phi with two different matrices: no sum A phi + B a fits that, products do."""
    generator = np.random.default_rng(5)
    turn = np.array([[[0.0, -1.0], [1.0, 0.0]], [[0.0, 1.0], [-1.0, 0.0]]])
    chosen = generator.integers(2, size=2000)
    states = np.empty((2000, 2))
    for row in range(2000):
        states[row] = generator.normal(size=2) if row % 50 == 0 else turn[chosen[row - 1]] @ states[row - 1]
    found = fit_latent_dynamics(states, np.eye(2)[chosen], np.arange(41) * 50, generator)
    assert found.errors.max() < 1e-4 * found.step
    assert np.allclose(found.predict(np.eye(2), np.eye(2)), [turn[0][:, 0], turn[1][:, 1]], atol=1e-4)


def test_the_calibration_table_and_the_horizon_follow_their_definition():
    generator = np.random.default_rng(4)
    reference = np.repeat([1.0, 2.0, 4.0, 8.0, 16.0], 50)
    predicted = np.minimum(reference, 4.0) + generator.normal(0, 0.01, 250)
    table = calibration_table(reference, predicted, np.arange(250), generator)
    assert [row.high for row in table] == [1, 2, 4, 8, 16]
    assert [row.count for row in table] == [50] * 5
    assert table[1].order.value == 1.0 and 0.3 < table[3].order.value < 0.7
    assert table[3].ratio.value == pytest.approx(0.5, abs=0.01)
    assert trusted_horizon(table).value == trusted_horizon(table).low == 4.0
    assert trusted_horizon([]).value == 0.0
    # Too few pairs end the table rather than adding a noisy row.
    rows = np.arange(251)
    assert len(calibration_table(np.append(reference, 100.0), np.append(reference, 1.0), rows, generator)) == 5
    # Against upper bounds predictions may be too small, never too large.
    short = calibration_table(reference, 0.3 * reference, np.arange(250), generator)
    long = calibration_table(reference, 3.0 * reference, np.arange(250), generator)
    assert trusted_horizon(short).value == 0.0 and trusted_horizon(short, upper_only=True).value == 16.0
    assert trusted_horizon(long, upper_only=True).value == 0.0


def test_intervals_keep_their_promise_when_rows_of_a_cluster_agree():
    """20 clusters of 50 equal rows: the interval of the mean contains 0 in about 95 % of worlds, not in 30 %."""
    generator = np.random.default_rng(6)
    clusters = np.repeat(np.arange(20), 50)
    inside = 0
    for _ in range(100):
        rows = generator.normal(size=20)[clusters]
        found = bootstrap(lambda picked, rows=rows: rows[picked].mean(), clusters, generator)[0]
        inside += found.low <= 0.0 <= found.high
    assert 85 <= inside <= 99


def test_spearman_ranks_infinities_last():
    assert spearman(np.array([1.0, 2.0, 3.0]), np.array([5.0, 6.0, np.inf])) == pytest.approx(1.0)
    assert np.isnan(spearman(np.ones(3), np.arange(3.0)))
    with pytest.raises(ChainError, match="NaN"):
        spearman(np.array([np.nan, 1.0]), np.array([1.0, 2.0]))


def test_the_report_is_json_and_english_and_a_picture(tmp_path):
    audit = run(data="40 episodes drawn for this test")
    found = json.loads(json.dumps(audit.to_dict(), allow_nan=False))
    assert found["order"]["value"] == pytest.approx(1.0) and found["verdict"] == "exact"
    assert all(line.endswith(".") for line in audit.sentences())
    assert "40 episodes drawn for this test" in audit.sentences()[0]
    assert not any("amplified" in line or "spectral" in line for line in audit.sentences())
    for name, shown in (("a.png", audit), ("b.png", run(embeddings=None, discount=0.99))):
        assert draw_audit(shown, tmp_path / "deep" / name).read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_model_without_an_embedding_has_no_closure_and_no_word_about_it():
    audit = run(embeddings=None)
    assert audit.dynamics is None and "closure" not in audit.figures() and audit.to_dict()["closure"] is None
    assert not any("linear latent model" in line for line in audit.sentences())


def test_the_same_seed_gives_the_same_audit():
    assert run().to_dict() == run().to_dict()


def test_malformed_input_is_refused():
    def call(offsets=OFFSETS, **changes):
        arguments = {"predicted": chebyshev, "embeddings": POSITIONS, "actions": ACTIONS, **changes}
        return audit_embedding(offsets, **arguments, pairs=200, generator=np.random.default_rng(0))

    with pytest.raises(ChainError, match="one row per stored state"):
        call(actions=ACTIONS[:-1])
    with pytest.raises(ChainError, match="episode offsets"):
        call(offsets=np.array([0, 0, 10]))
    with pytest.raises(ChainError, match="at least two episodes"):
        call(offsets=np.array([0, 121]))
    with pytest.raises(ChainError, match="No episode has two states"):
        call(offsets=np.arange(10))
    with pytest.raises(ChainError, match="not finite"):
        call(embeddings=np.full_like(POSITIONS, np.nan))
    with pytest.raises(ChainError, match="contains NaN"):
        call(predicted=lambda i, j: np.full(len(i), np.nan))
    with pytest.raises(ChainError, match="one per pair"):
        call(predicted=lambda i, j: np.ones(3))
    with pytest.raises(ChainError, match="does not tell states apart"):
        call(predicted=lambda i, j: np.zeros(len(i)))


def test_costs_that_are_no_steps_have_an_order_triangles_and_an_asymmetry_and_nothing_else():
    """The square of exact steps is in perfect order, symmetric, and breaks triangles; minus it is in reverse."""

    def audited(cost, **more):
        return audit_costs(OFFSETS, cost=cost, generator=np.random.default_rng(1), pairs=1500, **more)

    squared = audited(lambda i, j: chebyshev(i, j) ** 2, exact=chebyshev)
    assert squared.order.value == pytest.approx(1.0) and squared.asymmetry == 0.0
    assert squared.triangle.value > 0.2 and squared.triangle_excess > 0.0
    plain, steps = run(), audited(chebyshev, exact=chebyshev)
    assert (steps.order, steps.triangle) == (plain.order, plain.triangle), "the same pairs and triples are drawn"
    reverse = audited(lambda i, j: 1e3 - chebyshev(i, j), exact=chebyshev)
    assert reverse.order.value == pytest.approx(-1.0, abs=1e-3)
    assert "not in steps" in squared.sentences()[-1] and "horizon" not in squared.to_dict()
    assert json.loads(json.dumps(squared.to_dict()))["verdict"] == "orders states like exact steps to 1.00"
    seen = audited(chebyshev)
    assert not seen.against_exact and seen.order.value > 0.3
