"""Generated parts of the documentation: the page of methods is up to date; only what stands between marks changes."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import pages
from iel.cli import run as iel_command
from iel.commands.methods import facts_of_methods
from iel.compare.grid import GridProtocol
from iel.compare.results import Comparison, Entry
from iel.errors import ConfigError, RunError
from iel.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs"
AUDIT = {
    "algo": "crl",
    "name": "some-maze",
    "against_exact": True,
    "order": {"value": 0.891, "low": 0.8, "high": 0.9},
    "triangle": {"value": 0.123, "low": 0.1, "high": 0.2},
    "asymmetry": 0.26,
}
EMPTY = "<!-- iel report: methods -->\n<!-- end of iel report: methods -->\n"


def test_the_page_is_what_the_registry_says():
    page = DOCS / "methods.md"
    text = page.read_text()
    expected = pages.methods_part(pages.read_measured(page.with_suffix(".json")))
    assert text == pages.replaced(text, "methods", expected), "run `python scripts/pages.py methods docs/methods.md`"


def test_facts_are_the_papers(capsys):
    """Four rows of its table, and one column of all."""
    rows = facts_of_methods()
    assert rows["iel"] == ["hitting time", "hitting time", "directed displacement", *["yes"] * 4]
    assert rows["crl"] == ["successor measure", "density ratio", "inner product", "yes", "no", "no", "no"]
    assert rows["clearning"][1:] == ["reachability", "classifier logit", "yes", "no", "yes", "no"]
    assert rows["hiql"][:3] == ["reachability", "multi-step reachability", "value gap"]
    agnostic = {name for name, entry in METHODS.items() if entry.facts.goal_agnostic_policy}
    assert agnostic == {"htp", "iel", "hilp"}
    assert iel_command(["methods"]) == 0
    assert iel_command(["methods", "--json"]) == 0
    assert '"clearning": {' in capsys.readouterr().out


def test_audits_fill_the_measured_columns(tmp_path):
    page, audit = tmp_path / "methods.md", tmp_path / "audit.json"
    page.write_text(f"before\n{EMPTY}after\n")
    audit.write_text(json.dumps(AUDIT))
    assert pages.main(["methods", str(page), "--audits", str(audit)]) == 0
    text = page.read_text()
    assert "| 0.89 | 12.3 % | 26 % |" in text and "some-maze: order is the rank correlation of costs with exact" in text
    assert text.startswith("before\n") and text.endswith("after\n")
    assert pages.main(["methods", str(page)]) == 0
    assert page.read_text() == text, "figures are stored beside the page"


def test_what_is_not_an_audit_is_refused_and_changes_nothing(tmp_path, capsys):
    page, audit = tmp_path / "methods.md", tmp_path / "audit.json"
    page.write_text(EMPTY)
    for wrong, said in (
        ({"order": 1}, "not what `iel audit RUN --json` prints"),
        ({**AUDIT, "algo": "x"}, "audit of x"),
    ):
        audit.write_text(json.dumps(wrong))
        with pytest.raises(ConfigError, match=said):
            pages.write_methods(page, [audit])
    assert page.read_text() == EMPTY and not page.with_suffix(".json").exists()
    (tmp_path / "empty.md").write_text("nothing")
    with pytest.raises(RunError, match="put the lines `<!-- iel report: methods -->`"):
        pages.write_methods(tmp_path / "empty.md")
    assert pages.main(["methods", str(tmp_path / "absent.md")]) == 2 and "absent.md" in capsys.readouterr().err


def test_a_report_fills_its_position_in_a_document_and_nothing_else(tmp_path, monkeypatch):
    entries = {("maze", ("GCBC", "direct")): Entry((0, 1), np.array([[0.2, 0.4], [0.6, 0.6]]), 10, 50.0)}
    comparison = Comparison("tiny", ("maze",), (("GCBC", "direct"),), entries, {}, protocol=GridProtocol(10, 1))
    monkeypatch.setattr(pages, "collect", lambda sources: comparison)
    document, link = tmp_path / "results.md", tmp_path / "link.md"
    begin, end = pages.marks("tiny")
    document.write_bytes(f"# Mine — ß\r\n\r\n{begin}\r\nold\r\n{end}\r\nafter\r\n".encode())
    link.symlink_to(document)
    pictures = pages.write_report(link, [tmp_path])
    content = document.read_bytes()
    text = content.decode().replace("\r\n", "\n")
    assert text.startswith(f"# Mine — ß\n\n{begin}\n\n## tiny\n") and text.endswith(f"{end}\nafter\n")
    assert content.count(b"\n") == content.count(b"\r\n") > 10  # line ends of another system stay
    assert "### Every result" in text and "\nold\n" not in text
    assert [tmp_path / name for name in re.findall(r"\]\((images/tiny-\w+\.png)\)", text)] == pictures != []
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures) and link.is_symlink()
    pages.write_report(link, [tmp_path])
    assert document.read_bytes() == content
