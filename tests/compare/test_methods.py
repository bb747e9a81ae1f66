"""The paper's first table from the registry: the page is up to date, and audits fill its measured columns."""

import json
from pathlib import Path

import pytest

from iel.cli import run as iel_command
from iel.compare.insert import replaced
from iel.compare.methods import NAME, read_measured, table
from iel.errors import ConfigError, RunError
from iel.methods import ALGOS

DOCS = Path(__file__).parents[2] / "docs"
AUDIT = {
    "algo": "crl",
    "name": "some-maze",
    "against_exact": True,
    "order": {"value": 0.891, "low": 0.8, "high": 0.9},
    "triangle": {"value": 0.123, "low": 0.1, "high": 0.2},
    "asymmetry": 0.26,
}


def test_the_page_is_what_the_registry_says():
    page = DOCS / "methods.md"
    text = page.read_text()
    expected = replaced(text, NAME, table(read_measured(page.with_suffix(".json"))))
    assert text == expected, "run `iel methods --page docs/methods.md`"


def test_facts_are_the_papers():
    """Four rows of its table, and one column of all."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table({}).splitlines()]
    rows = {name: facts[:7] for name, *facts in cells}
    assert rows["[IEL](iel.md)"] == ["hitting time", "hitting time", "directed displacement", *["yes"] * 4]
    assert rows["[CRL](crl.md)"] == ["successor measure", "density ratio", "inner product", "yes", "no", "no", "no"]
    assert rows["[C-Learning](clearning.md)"][1:] == ["reachability", "classifier logit", "yes", "no", "yes", "no"]
    assert rows["[HIQL](hiql.md)"][:3] == ["reachability", "multi-step reachability", "value gap"]
    agnostic = {name for name, entry in ALGOS.items() if entry.facts.goal_agnostic_policy}
    assert agnostic == {"htp", "iel", "hilp"}


def test_audits_fill_the_measured_columns(tmp_path, capsys):
    page, audit = tmp_path / "methods.md", tmp_path / "audit.json"
    page.write_text("before\n<!-- iel report: methods -->\n<!-- end of iel report: methods -->\nafter\n")
    audit.write_text(json.dumps(AUDIT))
    assert iel_command(["methods", "--page", str(page), "--audits", str(audit), "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])["methods"]
    assert said["crl"]["measured"]["order"] == 0.891 and said["iel"]["measured"] is None
    text = page.read_text()
    assert "| 0.89 | 12.3 % | 26 % |" in text and "some-maze: order is the rank correlation of costs with exact" in text
    assert text.startswith("before\n") and text.endswith("after\n")
    assert iel_command(["methods", "--page", str(page)]) == 0
    assert page.read_text() == text, "figures are kept beside the page"


def test_what_is_no_audit_is_refused_and_changes_nothing(tmp_path):
    page, audit = tmp_path / "methods.md", tmp_path / "audit.json"
    page.write_text("<!-- iel report: methods -->\n<!-- end of iel report: methods -->\n")
    for wrong, said in (
        ({"order": 1}, "not what `iel audit RUN --json` prints"),
        ({**AUDIT, "algo": "x"}, "audit of x"),
    ):
        audit.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match=said):
            iel_command(["methods", "--page", str(page), "--audits", str(audit)])
    assert page.read_text().count("\n") == 2 and not page.with_suffix(".json").exists()
    with pytest.raises(ConfigError, match="--page"):
        iel_command(["methods", "--audits", str(audit)])
    (tmp_path / "empty.md").write_text("nothing")
    with pytest.raises(RunError, match="has no place"):
        iel_command(["methods", "--page", str(tmp_path / "empty.md")])
