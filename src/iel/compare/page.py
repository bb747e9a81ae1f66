"""A comparison as one HTML file that needs nothing else: styles, a few lines of JavaScript and all pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from iel.compare.results import Comparison, label_of
from iel.compare.tables import (
    BEST_NOTE,
    best_in,
    interval_text,
    machine_facts,
    number,
    ordered,
    protocol_text,
    session_lines,
)
from iel.evaluation.stats import mean_and_deviation

STYLE = """
:root { --ink: #22262e; --floor: #f7f5f0; --line: #dcd7cb; --blue: #1c7ed6; --grey: #7a8699; --red: #e03131; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--floor); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 1400px; margin: 0 auto; padding: 2.2rem 1.4rem 4rem; }
h1 { font-size: 1.9rem; margin: 0 0 .4rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .7rem; }
p.note { color: #4b5260; max-width: 60rem; margin: .3rem 0; }
.card { background: white; border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1.1rem;
  overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .34rem .55rem; border-bottom: 1px solid #eeeae0; white-space: nowrap; }
th { position: sticky; top: 0; background: white; cursor: pointer; user-select: none; }
th:hover { color: var(--blue); } th[data-way="1"]::after { content: " ▲"; } th[data-way="-1"]::after { content: " ▼"; }
tbody tr:hover { background: #faf8f3; }
tr.best td.score { font-weight: 700; } td.published { color: var(--grey); font-style: italic; }
svg.range { vertical-align: middle; } img { max-width: 100%; display: block; margin: 0 auto; }
details { margin: .5rem 0; } summary { cursor: pointer; font-weight: 600; }
.failed { color: var(--red); } code { background: #f0ede4; padding: .1rem .35rem; border-radius: 4px; }
"""
SCRIPT = """
for (const table of document.querySelectorAll("table.sortable")) {
  table.querySelectorAll("th").forEach((head, column) => head.addEventListener("click", () => {
    const way = head.dataset.way === "1" ? -1 : 1;
    table.querySelectorAll("th").forEach(other => delete other.dataset.way);
    head.dataset.way = way;
    const body = table.tBodies[0];
    const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    [...body.rows].sort((a, b) => {
      const x = key(a), y = key(b), numeric = x !== "" && y !== "" && !isNaN(x) && !isNaN(y);
      if ((x === "") !== (y === "")) return x === "" ? 1 : -1;
      return way * (numeric ? x - y : x.localeCompare(y));
    }).forEach(row => body.append(row));
  }));
}
"""


def html_page(comparison: Comparison, pictures: Mapping[str, Path]) -> str:
    """The whole page; `pictures` are titles and PNG files, which are put into it."""
    sections = [
        f"<h1>{escape(comparison.title)}</h1><p class='note'>{escape(protocol_text(comparison))}</p>",
        _failures(comparison),
        "<h2>Results</h2><p class='note'>A click on a heading sorts. Bars: mean and 95 % interval, from 0 to 100 %."
        + (f" {BEST_NOTE}" if any(entry.best is not None for entry in comparison.entries.values()) else "")
        + (f" <em>Published</em>: {escape(comparison.published_source)}." if comparison.published else "")
        + "</p>",
        _card("\n".join(_result_rows(comparison))),
        _aggregates(comparison),
        *(f"<h2>{escape(title)}</h2>{_card(_image(path, title))}" for title, path in pictures.items()),
        _rollouts(comparison),
        "<h2>How it was made</h2>" + _card(_making(comparison)),
    ]
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(comparison.title)}</title><style>{STYLE}</style></head>\n<body><main>"
        + "\n".join(section for section in sections if section)
        + f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _result_rows(comparison: Comparison) -> Iterator[str]:
    names = ["data set", "method", "planner", "seeds", "mean ± std", "95 % interval", "", "per task", "steps"]
    with_best = any(entry.best is not None for entry in comparison.entries.values())
    names += ["best checkpoint"] * with_best + ["published"] * bool(comparison.published)
    heads = "".join(f"<th>{name}</th>" for name in names)
    yield f"<table class='sortable'><thead><tr>{heads}</tr></thead><tbody>"
    for (env, column), entry in ordered(comparison):
        mean, deviation = mean_and_deviation(entry.scores)
        low, high = entry.interval
        best = " class='best'" if mean >= best_in(comparison, env) - 1e-12 else ""
        tasks = " ".join(f"{100 * rate:.0f}" for rate in entry.rates.mean(0))
        cells = [f"<td>{escape(text)}</td>" for text in (env, *column)]
        cells += [
            f"<td>{len(entry.seeds)}</td>",
            f"<td class='score' data-value='{mean:.6f}'>{escape(number(mean, deviation))}</td>",
            f"<td data-value='{low:.6f}'>{interval_text(entry.interval)}</td>",
            f"<td data-value='{mean:.6f}'>{_range(mean, low, high)}</td>",
            f"<td>{tasks}</td><td data-value='{entry.steps:.1f}'>{entry.steps:.0f}</td>",
        ]
        if with_best:
            top = mean_and_deviation(entry.best) if entry.best is not None else None
            cells.append(f"<td data-value='{top[0]:.6f}'>{number(*top)}</td>" if top else "<td data-value=''></td>")
        if comparison.published:
            theirs = comparison.published.get((env, column))
            value, text = ("", "") if theirs is None else (theirs[0], number(theirs[0] / 100, (theirs[1] or 0) / 100))
            cells.append(f"<td class='published' data-value='{value}'>{text}</td>")
        yield f"<tr{best}>{''.join(cells)}</tr>"
    yield "</tbody></table>"


def _range(mean: float, low: float, high: float) -> str:
    """A bar of the mean with its interval, 160 pixels for 0 to 100 %."""
    return (
        "<svg class='range' width='164' height='14' role='img'>"
        "<rect x='2' y='4' width='160' height='6' rx='3' fill='#eeeae0'/>"
        f"<rect x='2' y='4' width='{160 * mean:.1f}' height='6' rx='3' fill='#1c7ed6' opacity='.55'/>"
        f"<line x1='{2 + 160 * low:.1f}' x2='{2 + 160 * high:.1f}' y1='7' y2='7' stroke='#22262e' stroke-width='1.6'/>"
        f"<circle cx='{2 + 160 * mean:.1f}' cy='7' r='3' fill='#22262e'/></svg>"
    )


def _aggregates(comparison: Comparison) -> str:
    reference = comparison.reference
    if reference is None or len(comparison.environments) < 2:
        return ""
    heads = (
        "method",
        "planner",
        "IQM",
        "95 % interval",
        "",
        "mean",
        f"P({label_of(reference)} is better)",
        "95 % interval",
    )
    rows = []
    for column, numbers in comparison.aggregates().items():
        interval, better = numbers["iqm_interval"], numbers.get("improvement")
        shares = numbers.get("improvement_interval")
        rows.append(
            f"<tr><td>{escape(column[0])}</td><td>{escape(column[1])}</td>"
            f"<td data-value='{numbers['iqm']:.6f}'>{100 * numbers['iqm']:.1f}</td><td>{interval_text(interval)}</td>"
            f"<td data-value='{numbers['iqm']:.6f}'>{_range(numbers['iqm'], *(interval or [numbers['iqm']] * 2))}</td>"
            f"<td data-value='{numbers['mean']:.6f}'>{100 * numbers['mean']:.1f}</td>"
            + (f"<td data-value='{better:.6f}'>{better:.2f}</td>" if better is not None else "<td data-value=''>–</td>")
            + (f"<td>[{shares[0]:.2f}, {shares[1]:.2f}]</td></tr>" if shares else "<td>–</td></tr>")
        )
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    table = f"<table class='sortable'><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<h2>All environments together</h2>{_card(table)}"


def _rollouts(comparison: Comparison) -> str:
    if not comparison.pictures:
        return ""
    parts = [
        f"<details><summary>{escape(f'{env}: {label_of(column)}')}</summary>{_image(path, label_of(column))}</details>"
        for env in comparison.environments
        for column in comparison.columns
        if (path := comparison.pictures.get((env, column)))
    ]
    note = "<p class='note'>Every episode of the first seed: blue arrived, red did not.</p>"
    return f"<h2>Rollouts</h2>{note}{_card(''.join(parts))}"


def _failures(comparison: Comparison) -> str:
    if not comparison.unfinished:
        return ""
    rows = "".join(f"<li>{escape(cell)}: {escape(error)}</li>" for cell, error in comparison.errors.items())
    return f"<p class='failed'><b>{comparison.unfinished} cells are not finished.</b></p><ul class='failed'>{rows}</ul>"


def _making(comparison: Comparison) -> str:
    lines = []
    for line in (*session_lines(comparison), *machine_facts()):
        text = escape(line)
        if text.startswith("`"):
            command, rest = text[1:].split("`", 1)
            text = f"<code>{command}</code>{rest}"
        lines.append(f"<li>{text}</li>")
    return f"<ul>{''.join(lines)}</ul>"


def _image(path: Path, title: str) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    return f"<img alt='{escape(title, quote=True)}' src='data:image/png;base64,{content}'>"


def _card(content: str) -> str:
    return f"<div class='card'>{content}</div>"
