"""A comparison as one HTML file that needs nothing else: report.md in the frame of page.html, every picture inside, a
bar beside every interval, and the rollouts.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

from iel.compare.results import Comparison, label_of
from iel.compare.tables import markdown

INTERVAL = re.compile(r"(?<=<td>)(\d+\.\d)([^<]*</td>\s*<td>)\[(\d+\.\d), (\d+\.\d)\]")
"""A mean and its interval in per cent, in two cells of a table."""


def html_page(comparison: Comparison, pictures: Mapping[str, Path]) -> str:
    """The whole page; `pictures` are titles and PNG files, which are put into it."""
    text = markdown(comparison, {title: _data(path) for title, path in pictures.items()})
    tables = MarkdownIt("commonmark", {"html": False}).enable("table").render(text).replace("&lt;br&gt;", "<br>")
    page = Path(__file__).with_suffix(".html").read_text().replace("[title]", escape(comparison.title))
    return page.replace("[content]", INTERVAL.sub(_with_bar, tables) + "".join(_rollouts(comparison)))


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
