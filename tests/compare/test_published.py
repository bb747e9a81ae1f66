"""Published numbers: typed, complete, each with its source and class, and found under the names people use."""

import json

import pytest

from iel.cli import main
from iel.compare import published
from iel.compare.published import best_on, numbers_on, published_tables, published_task
from iel.errors import ConfigError

SIX = {"GCBC", "GCIVL", "GCIQL", "QRL", "CRL", "HIQL"}


def test_ogbench_is_complete_and_every_table_says_where_it_is_from():
    tables = published_tables()
    assert len(tables["ogbench"].rows) == 85
    assert all({column.split("/")[0] for column in row} == SIX for row in tables["ogbench"].rows.values())
    for name, table in tables.items():
        assert table.source and table.rows and "memory" not in table.source + table.note, name


def test_a_search_at_test_time_is_class_b_and_another_protocol_class_c():
    found = {(number.method, number.planner): number for number in numbers_on("antmaze-giant-stitch-v0")}
    assert found["HIQL", "direct"].protocol == "A" and found["HIQL", "direct"].text == "2 ± 2"
    assert found["GAS", "gas-graph"].protocol == "B" and found["CompDiffuser", "search"].protocol == "C"
    best = best_on("antmaze-giant-stitch-v0")
    assert {kind: number.label for kind, number in best.items()} == {
        "A": "LAVL", "B": "GAS/gas-graph", "C": "SCoTS/search",
    }  # fmt: skip
    assert best["B"].mean == 88.3  # not the higher one of a re-run without a review


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"HIQL/direct": [101.0]}, "<= 100"),
        ({"HIQL/direct": []}, "length >= 1"),
        ({"HIQL": [10.0]}, "METHOD/PLANNER"),
        ({"HIQL/direct": ["10"]}, "expected `float`"),
    ],
)
def test_a_damaged_file_is_reported_with_its_position(tmp_path, monkeypatch, row, said):
    cells = ", ".join(f'"{column}" = {json.dumps(numbers)}' for column, numbers in row.items())
    file = tmp_path / "published.toml"
    file.write_text(f'[x]\nsource = "s"\nevidence = "paper"\n[x.rows]\n"task" = {{ {cells} }}\n')
    monkeypatch.setattr(published, "FILE", file)
    published_tables.cache_clear()
    with pytest.raises(Exception, match=f"published.toml, x.*{said}"):
        published_tables()
    published_tables.cache_clear()


def call(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["published", *words])
    output = capsys.readouterr()
    return output.err if stop.value.code else output.out


def test_the_command_prints_a_task_with_its_sources_and_all_tasks_with_the_best(capsys):
    assert published_task("antmaze-large-play") == "antmaze-large-play-v2"
    text = call(capsys, "antmaze-large-navigate")
    assert "93.2 ± 0.5    B  GAS/gas-graph  [gas]" in text and "[ogbench] OGBench (arXiv:2410.20092v2)" in text
    facts = json.loads(call(capsys, "cube-single-play", "--json").splitlines()[-1])
    assert facts["numbers"][0]["mean"] == 98 and facts["sources"]["mctd"]["changed"]
    assert "antmaze-giant-stitch-v0" in call(capsys, "antmaze-giant-stich")
    everything = call(capsys)
    assert len(everything.splitlines()) > 91 and "A S2AW 93 ± 2" in everything
    with pytest.raises(ConfigError, match="lists those"):
        published_task("q")
