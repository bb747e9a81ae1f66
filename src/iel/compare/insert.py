"""A report inside a document that holds other things too, between two comments that say where it belongs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from iel.compare.results import Comparison
from iel.compare.tables import markdown
from iel.errors import RunError
from iel.training.files import write_text

LEVEL = 2
"""Of the report's own heading: a document has one title."""


def marks(title: str) -> tuple[str, str]:
    """The lines between which a report of this title is written."""
    return f"<!-- iel report: {title} -->", f"<!-- end of iel report: {title} -->"


def require_place(document: Path, title: str) -> str:
    """The text of the document, if it has one place for this report."""
    begin, end = marks(title)
    try:
        text = document.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{document} cannot be read ({error}); --into needs a Markdown file that is there.") from error
    if (text.count(begin), text.count(end)) != (1, 1) or text.index(end) < text.index(begin):
        raise RunError(
            f"{document} has no place for this report; put the lines `{begin}` and `{end}` once each, in this order, "
            "where it should stand."
        )
    return text


def insert(document: Path, comparison: Comparison, pictures: Mapping[str, Path]) -> list[Path]:
    """Replace what stands between the marks, copy the pictures to `images` beside it, and return what was written."""
    begin, end = marks(comparison.title)
    text = require_place(document, comparison.title)
    folder, slug = document.parent / "images", re.sub(r"[^a-z0-9]+", "-", comparison.title.lower()).strip("-")
    folder.mkdir(exist_ok=True)
    copies = {title: folder / f"{slug}-{path.name}" for title, path in pictures.items()}
    for title, path in pictures.items():
        shutil.copyfile(path, copies[title])
    relative = {title: f"images/{path.name}" for title, path in copies.items()}
    before, after = text[: text.index(begin)], text[text.index(end) :]
    write_text(document, f"{before}{begin}\n\n{markdown(comparison, relative, LEVEL)}\n{after}")
    return [document, *copies.values()]
