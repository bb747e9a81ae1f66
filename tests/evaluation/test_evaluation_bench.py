"""The benchmark of an evaluation checks that its cases are equal, and prints their ratios."""

from benchmarks.evaluation import Options, run


def test_ratios_are_those_of_the_seconds():
    result = run(Options(episodes=5, steps=5, workers=2, hidden=(8,), rounds=1))
    one, every, bare = result["busiest_seconds"]
    assert abs(result["busiest_speed_up"] - one / every) < 0.2 and abs(result["busiest_over_bare"] - every / bare) < 2
