"""A comparison as one HTML file that needs nothing else: report.md with styles, a few lines of JavaScript and every
picture inside, a bar beside every interval, and the rollouts.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from html import escape
from itertools import groupby
from pathlib import Path

from iel.compare.results import Comparison, label_of
from iel.compare.tables import markdown

STYLE = """
:root { --ink: #22262e; --floor: #f7f5f0; --line: #dcd7cb; --blue: #1c7ed6; --grey: #7a8699; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--floor); color: var(--ink); font: 15px/1.55 system-ui, sans-serif; }
main { max-width: 1400px; margin: 0 auto; padding: 2.2rem 1.4rem 4rem; }
h1 { font-size: 1.9rem; margin: 0 0 .4rem; } h2 { font-size: 1.2rem; margin: 2.4rem 0 .7rem; }
p { color: #4b5260; max-width: 60rem; margin: .3rem 0; }
.card { background: white; border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1.1rem;
  overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
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
INTERVAL = re.compile(r"\[(\d+\.\d), (\d+\.\d)\]")
"""In per cent, as `tables.interval_text` writes it."""


def html_page(comparison: Comparison, pictures: Mapping[str, Path]) -> str:
    """The whole page; `pictures` are titles and PNG files, which are put into it."""
    text = markdown(comparison, {title: title for title in pictures})
    body = "\n".join((*_blocks(text, pictures), *_rollouts(comparison)))
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{escape(comparison.title)}</title><style>{STYLE}</style></head>\n<body><main>{body}"
        "<p>A click on a heading sorts a table. Bars: mean and 95 % interval, from 0 to 100 %.</p>"
        f"</main><script>{SCRIPT}</script></body></html>\n"
    )


def _blocks(text: str, pictures: Mapping[str, Path]) -> Iterator[str]:
    """The Markdown of `tables.markdown` as HTML: headings, tables, lists, pictures and paragraphs, block by block."""
    for filled, group in groupby(text.splitlines(), key=bool):
        lines = list(group)
        first = lines[0]
        if not filled:
            continue
        if heading := re.match("#+ ", first):
            yield f"<h{heading.end() - 1}>{_inline(first[heading.end() :])}</h{heading.end() - 1}>"
        elif first.startswith("|"):
            yield _card(_table([[cell.strip() for cell in line.strip("|").split("|")] for line in lines]))
        elif first.startswith("- "):
            yield _card(f"<ul>{''.join(f'<li>{_inline(line[2:])}</li>' for line in lines)}</ul>")
        elif picture := re.fullmatch(r"!\[(.*)\]\(.*\)", first):
            yield f"<h2>{escape(picture[1])}</h2>{_card(_image(pictures[picture[1]], picture[1]))}"
        else:
            yield f"<p>{_inline(' '.join(lines))}</p>"


def _inline(text: str) -> str:
    text = escape(text, quote=False).replace("&lt;br&gt;", "<br>")
    for mark, tag in ((r"\*\*", "b"), (r"\*", "em"), ("`", "code")):
        text = re.sub(f"{mark}(.+?){mark}", rf"<{tag}>\1</{tag}>", text)
    return text


def _table(rows: list[list[str]]) -> str:
    heads, _, *body = rows
    lines = []
    for row in body:
        pairs = zip(row, ["", *row[:-1]], strict=True)
        lines.append("".join(f"<td>{_inline(cell)}{_bar(cell, before)}</td>" for cell, before in pairs))
    head = "".join(f"<th>{_inline(cell)}</th>" for cell in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody><tr>{'</tr><tr>'.join(lines)}</tr></tbody></table>"


def _bar(cell: str, before: str) -> str:
    """An interval in per cent, drawn with the mean that stands before it: 160 pixels for 0 to 100 %."""
    interval, mean = INTERVAL.fullmatch(cell), re.match(r"\d+\.\d", before)
    if interval is None or mean is None:
        return ""
    low, high, middle = (1.6 * float(number) for number in (*interval.groups(), mean[0]))
    return (
        "<svg width='164' height='14' role='img'><rect x='2' y='4' width='160' height='6' rx='3' fill='#eeeae0'/>"
        f"<rect x='2' y='4' width='{middle:.1f}' height='6' rx='3' fill='#1c7ed6' opacity='.55'/>"
        f"<line x1='{2 + low:.1f}' x2='{2 + high:.1f}' y1='7' y2='7' stroke='#22262e' stroke-width='1.6'/>"
        f"<circle cx='{2 + middle:.1f}' cy='7' r='3' fill='#22262e'/></svg>"
    )


def _rollouts(comparison: Comparison) -> Iterator[str]:
    parts = [
        f"<details><summary>{escape(f'{env}: {label_of(column)}')}</summary>{_image(path, label_of(column))}</details>"
        for env in comparison.environments
        for column in comparison.columns
        if (path := comparison.pictures.get((env, column)))
    ]
    if parts:
        yield "<h2>Rollouts</h2><p>Every episode of the first seed: blue arrived, red did not.</p>"
        yield _card("".join(parts))


def _image(path: Path, title: str) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    return f"<img alt='{escape(title, quote=True)}' src='data:image/png;base64,{content}'>"


def _card(content: str) -> str:
    return f"<div class='card'>{content}</div>"
