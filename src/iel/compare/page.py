"""A comparison as one HTML file that needs nothing else: report.md with styles, a few lines of JavaScript and every
picture inside, a bar beside every interval, and the rollouts.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

from iel.compare.results import Comparison, label_of
from iel.compare.tables import markdown

STYLE = """
:root { --ink: #22262e; --floor: #f7f5f0; --line: #dcd7cb; --blue: #1c7ed6; --grey: #7a8699; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--floor); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 1400px; margin: 0 auto; padding: 2.2rem 1.4rem 4rem; }
h1 { font-size: 1.9rem; margin: 0 0 .4rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .7rem; }
p { color: #4b5260; max-width: 60rem; margin: .3rem 0; }
table, ul, img { background: white; border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1.1rem; }
ul { padding-left: 2.2rem; }
table { display: block; overflow-x: auto; border-spacing: 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .34rem .55rem; border-bottom: 1px solid #eeeae0; white-space: nowrap; }
th { position: sticky; top: 0; background: white; cursor: pointer; user-select: none; }
th:hover { color: var(--blue); } th[data-way="1"]::after { content: " ▲"; } th[data-way="-1"]::after { content: " ▼"; }
tbody tr:hover { background: #faf8f3; }
em { color: var(--grey); }
svg { vertical-align: middle; margin-left: .6rem; } img { max-width: 100%; display: block; margin: 0 auto; }
details { margin: .5rem 0; } summary { cursor: pointer; font-weight: 600; }
code { background: #f0ede4; padding: .1rem .35rem; border-radius: 4px; }
"""
SCRIPT = """
const key = cell => { const text = cell.textContent.trim(), found = text.match(/^\\[?(-?[\\d.]+)( |,|$)/);
  return found ? Number(found[1]) : text === "–" ? "" : text; };
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("th").forEach((head, column) => head.addEventListener("click", () => {
    const way = head.dataset.way === "1" ? -1 : 1;
    table.querySelectorAll("th").forEach(other => delete other.dataset.way);
    head.dataset.way = way;
    [...table.tBodies[0].rows].sort((a, b) => {
      const x = key(a.cells[column]), y = key(b.cells[column]);
      if ((x === "") !== (y === "")) return x === "" ? 1 : -1;
      return way * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y)));
    }).forEach(row => table.tBodies[0].append(row));
  }));
}
"""
INTERVAL = re.compile(r"(?<=<td>)(\d+\.\d)([^<]*</td>\s*<td>)\[(\d+\.\d), (\d+\.\d)\]")
"""A mean and its interval in per cent, in two cells of a table."""


def html_page(comparison: Comparison, pictures: Mapping[str, Path]) -> str:
    """The whole page; `pictures` are titles and PNG files, which are put into it."""
    text = markdown(comparison, {title: _data(path) for title, path in pictures.items()})
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text).replace("&lt;br&gt;", "<br>")
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(comparison.title)}</title><style>{STYLE}</style></head>\n"
        f"<body><main>{INTERVAL.sub(_with_bar, body)}{''.join(_rollouts(comparison))}"
        "<p>A click on a heading sorts a table. Bars: mean and 95 % interval, from 0 to 100 %.</p>"
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _with_bar(found: re.Match[str]) -> str:
    """The two cells, and in the second one a drawing: 160 pixels for 0 to 100 %."""
    middle, low, high = (1.6 * float(found[number]) for number in (1, 3, 4))
    return (
        f"{found[0]}<svg width='164' height='14' role='img'>"
        "<rect x='2' y='4' width='160' height='6' rx='3' fill='#eeeae0'/>"
        f"<rect x='2' y='4' width='{middle:.1f}' height='6' rx='3' fill='#1c7ed6' opacity='.55'/>"
        f"<line x1='{2 + low:.1f}' x2='{2 + high:.1f}' y1='7' y2='7' stroke='#22262e' stroke-width='1.6'/>"
        f"<circle cx='{2 + middle:.1f}' cy='7' r='3' fill='#22262e'/></svg>"
    )


def _rollouts(comparison: Comparison) -> Iterator[str]:
    if comparison.pictures:
        yield "<h2>Rollouts</h2><p>Every episode of the first seed: blue succeeded, red did not.</p>"
    for env in comparison.environments:
        for column in comparison.columns:
            if path := comparison.pictures.get((env, column)):
                title = escape(f"{env}: {label_of(column)}")
                yield f"<details><summary>{title}</summary><img alt='{title}' src='{_data(path)}'></details>"


def _data(path: Path) -> str:
    """A picture as an address that contains it."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
