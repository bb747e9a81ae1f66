"""The benchmark's rows have the promised keys, and its plot can be drawn."""

from pathlib import Path

import pytest

from benchmarks import planning

ROW = {
    "nodes",
    "dimension",
    "neighbours",
    "beta",
    "dense_seconds",
    "seconds_per_goal",
    "prepare_seconds",
    "peak_mb",
    "identical",
}


@pytest.mark.slow
def test_the_benchmark_reports_identical_graphs(
    tmp_path: Path, drawn: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = planning.in_own_process

    def here(module: str, case: str, **settings: int) -> planning.Row:
        """One case in a process of its own, all others here: starting Python is most of their time."""
        return apart(module, case, **settings) if case == "dense" else planning.CASES[case](**settings)

    monkeypatch.setattr(planning, "in_own_process", here)
    lines: list[str] = []
    result = planning.run(nodes=[128], beta=[0.1], quick=True, progress=lines.append)
    assert len(lines) == 4
    for row in result["rows"]:
        assert set(row) >= ROW
        assert row["identical"] is True or (row["data"] == "maze" and row["exact_rows"] == 1.0)
        assert row["peak_mb"] > 0.0
    for row in result["coreset"]:
        assert set(row) >= {"points", "picks", "method", "seconds", "peak_mb"}
    planning.plot(result, tmp_path / "time.png")
    assert (tmp_path / "time.png").exists() and min(drawn[-1]) > 0
