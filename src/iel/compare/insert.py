"""A report inside a document that holds other things too, between two comments that say where it belongs."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from iel.compare.results import Comparison
from iel.compare.tables import markdown
from iel.errors import RunError
from iel.files import write_text

LEVEL = 2
"""Of the report's own heading: a document has one title."""


def name_of(comparison: Comparison) -> str:
    """What the marks call a report: the grid's title and, where it has scales, the one that was run."""
    return comparison.title + (f", {comparison.scale}" if comparison.scale else "")


def marks(name: str) -> tuple[str, str]:
    """The lines between which the report of this name is written."""
    return f"<!-- iel report: {name} -->", f"<!-- end of iel report: {name} -->"


def require_place(document: Path, name: str) -> str:
    """The text of the document, its line ends as they are, if it has one place for the report of this name."""
    begin, end = marks(name)
    try:
        text = document.read_bytes().decode()
    except OSError as error:
        raise RunError(f"{document} cannot be read ({error.strerror}); --into needs a file that is there.") from error
    except UnicodeDecodeError as error:
        raise RunError(f"{document} is not UTF-8 text; --into needs a Markdown file.") from error
    if (text.count(begin), text.count(end)) != (1, 1) or text.index(end) < text.index(begin):
        raise RunError(
            f"{document} has no place for this report; put the lines `{begin}` and `{end}` once each, in this order, "
            "where it should stand."
        )
    return text


def replaced(text: str, name: str, report: str) -> str:
    """A document's text with another report of this name between its marks."""
    begin, end = marks(name)
    between = f"\n\n{report}\n"
    if "\r\n" in text:
        between = between.replace("\n", "\r\n")
    return text[: text.index(begin)] + begin + between + text[text.index(end) :]


def insert(document: Path, comparison: Comparison, pictures: Mapping[str, Path]) -> list[Path]:
    """Replace what stands between the marks, copy the pictures to `images` beside it, and return what was written."""
    name = name_of(comparison)
    text = require_place(document, name)
    folder, slug = document.parent / "images", re.sub(r"\W+", "-", name.lower()).strip("-")
    copies = {title: folder / f"{slug}-{path.name}" for title, path in pictures.items()}
    relative = {title: f"images/{path.name}" for title, path in copies.items()}
    try:
        folder.mkdir(exist_ok=True)
        for title, path in pictures.items():
            shutil.copyfile(path, copies[title])
        write_text(document.resolve(), replaced(text, name, markdown(comparison, relative, LEVEL)))
    except OSError as error:
        raise RunError(f"{document} or its images cannot be written ({error.strerror}); change --into.") from error
    return [document, *copies.values()]
