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
def test_the_benchmark_reports_identical_graphs(tmp_path: Path, drawn: list[list[int]]) -> None:
    lines: list[str] = []
    result = planning.run(nodes=[128], beta=[0.0, 0.1], quick=True, progress=lines.append)
    assert len(lines) == 5
    for row in result["rows"]:
        assert set(row) >= ROW
        assert row["identical"] is True or (row["data"] == "maze" and row["exact_rows"] == 1.0)
        assert row["peak_mb"] > 0.0
    for row in result["coreset"]:
        assert set(row) >= {"points", "picks", "method", "seconds", "peak_mb"}
    planning.plot(result, tmp_path / "time.png")
    assert (tmp_path / "time.png").exists() and min(drawn[-1]) > 0
