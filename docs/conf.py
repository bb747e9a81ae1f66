"""The documentation site: `make docs` writes it to build/site, without warnings.

Pages are plain Markdown that reads well on GitHub too; their order is NAVIGATION below. The reference is made from
docstrings: one page per package of `iel`, with every public name.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal, get_origin

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

import iel.distances  # noqa: E402
import iel.planning.goals  # noqa: E402
import iel.typed  # noqa: E402
from iel.methods import METHODS  # noqa: E402

NAVIGATION = {
    "Start": ["docs/tutorial", "docs/concepts", "docs/playground"],
    "How to": [
        "docs/own-robot",
        "docs/bags",
        "docs/scoring",
        "docs/which-method",
        "docs/training",
        "docs/prompting",
        "docs/comparing",
        "docs/environments",
        "docs/export",
        "docs/serving",
        "docs/sharing",
        "docs/scale",
        "docs/troubleshooting",
    ],
    "Understand": [
        "docs/planning",
        "docs/waypoints",
        "docs/direction",
        "docs/theory",
        "docs/reliability",
        "ARCHITECTURE",
    ],
    "Methods": ["docs/methods", *(f"docs/{name}" for name in METHODS)],
    "Results": ["docs/results", "docs/directed-maze", "docs/performance", "docs/ant-controller", "docs/lab-notes"],
    "Reference": ["docs/reference/index", "docs/formats", "docs/supported", "CONTRIBUTING", "CHANGELOG"],
}
PACKAGES = {
    "agent": "Train, act, plan, save",
    "data": "Read and examine logs",
    "methods": "Sixteen methods and what is common to them",
    "policies": "Policies that go with any geometry",
    "training": "Train, resume and open runs",
    "model": "Trained models in numpy",
    "planning": "Planners, goals and control loops",
    "envs": "Environments by name",
    "evaluation": "Success rates with intervals",
    "export": "Directories for robots, and ONNX",
    "theory": "Exact hitting times and audits",
    "viz": "Pictures",
    "serving.client": "A Python client of the policy server",
    "envs.gym": "DirectedMaze for any agent",
    "learner": "What methods and policies are made of",
    "distances": "Metrics: what a path costs",
    "errors": "Exceptions",
}

project, author, copyright = "iel", "The iel authors", "The iel authors, MIT licence"
version = release = iel.__version__
root_doc = "docs/README"
include_patterns = ["docs/**", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = ["build", "runs", ".*"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
suppress_warnings = ["myst.header"]

myst_heading_anchors = 4
autodoc_typehints_format = "short"
# Names of types that are unions or bounded numbers stay names; what they expand to fills a page.
autodoc_type_aliases = {
    name: name
    for module in (iel.typed, iel.distances, iel.planning.goals)
    for name, value in vars(module).items()
    if get_origin(value) not in (None, Literal)
}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
maximum_signature_line_length = 100
highlight_language = "none"
smartquotes = False
copybutton_exclude = ".linenos, .gp"

html_theme = "furo"
html_title = f"iel {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}


# ---------------------------------------------------------------- the reference, from docstrings


def public_names(package: str) -> list[str]:
    """What a package exports, or what a module defines; constants last, names of `iel` itself first."""
    module = importlib.import_module(f"iel.{package}")
    if not hasattr(module, "__all__"):
        defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        exported = [name for name in iel.__all__ if name in defined]
        return exported + [name for name in defined if name not in exported and not name.startswith("_")]
    return sorted(module.__all__, key=lambda name: name.isupper() and not inspect.isclass(getattr(module, name)))


def described() -> dict[str, list[str]]:
    """The names on each page; what several packages export is described by the first of them."""
    pages: dict[str, list[str]] = {}
    seen: set[int] = set()
    for package in PACKAGES:
        named = {name: id(getattr(importlib.import_module(f"iel.{package}"), name)) for name in public_names(package)}
        pages[package] = [name for name, value in named.items() if value not in seen]
        seen |= set(named.values())
    return pages


def directive(package: str, name: str) -> str:
    """How autodoc shows a public name: a class with its members, a function, or a value."""
    value = getattr(importlib.import_module(f"iel.{package}"), name)
    if inspect.isclass(value):
        ours = any(base.__module__.startswith("iel.") for base in value.__bases__)
        bases = "   :show-inheritance:\n" if ours else ""
        return f".. autoclass:: iel.{package}.{name}\n   :members:\n{bases}"
    if inspect.isfunction(value):
        return f".. autofunction:: iel.{package}.{name}\n"
    return f".. autodata:: iel.{package}.{name}\n   :no-value:\n"


def write_reference(app: Any) -> None:
    """One page per package and one with all names of `iel`, below docs/reference."""
    folder = ROOT / "docs" / "reference"
    folder.mkdir(exist_ok=True)
    rows = [f"| [`iel.{name}`]({name}.md) | {about} |" for name, about in PACKAGES.items()]
    described_on = described()
    homes = {name: package for package, names in reversed(described_on.items()) for name in names}
    names = ", ".join(f"{{any}}`{name} <iel.{homes[name]}.{name}>`" for name in iel.__all__ if name in homes)
    pages = {
        "index": "# Reference\n\nMade from the docstrings of this version.\n\n| package | what for |\n|---|---|\n"
        + "\n".join(rows)
        + f"\n\nThe names of `iel` itself: {names}.\n\n"
        + "Options of commands: `iel COMMAND --help`.\n\n"
        + toctree("", list(PACKAGES)),
    }
    for package, about in PACKAGES.items():
        parts = "\n".join(directive(package, name) for name in described_on[package])
        module = f".. automodule:: iel.{package}\n\n"
        pages[package] = f"# iel.{package}\n\n{about}.\n\n```{{eval-rst}}\n{module}{parts}```\n"
    for name, text in pages.items():
        page = folder / f"{name}.md"
        if not page.exists() or page.read_text() != text:
            page.write_text(text)


def as_restructured(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText: prose with `code`, lists, and blocks of code, equations or tables as they are.

    Docstrings are written for the editor and for `help`. Lines that are indented, or that align columns with spaces,
    are a block; lines that begin with "- " are a list; all else is prose, in which nothing but `code` is markup.
    """
    result: list[str] = []
    for block in re.split(r"\n\s*\n", dedent("\n".join(lines)).strip("\n")):
        for kind, run in runs_of(block.splitlines()):
            if kind == "list":
                for line in run:
                    result.append(("- " if line.startswith("- ") else "  ") + inline(line.removeprefix("- ").strip()))
            elif kind == "block":
                text = dedent("\n".join(run))
                result += [f".. code-block:: {block_language(text)}", "", *(f"   {line}" for line in text.splitlines())]
            else:
                result += [inline(line.strip()) for line in run]
            result.append("")
    return result


def runs_of(lines: list[str]) -> list[tuple[str, list[str]]]:
    """The lines of a block, cut where prose, list and code meet."""
    found: list[tuple[str, list[str]]] = []
    plain = "block" if any(re.search(r"^\S.* {3,}\S|^>>> |^\|", line) for line in lines) else "prose"
    for line in lines:
        if line.startswith("- "):
            kind = "list"
        elif line.startswith(" "):
            kind = "list" if found and found[-1][0] == "list" else "block"
        else:
            kind = plain
        if found and found[-1][0] == kind:
            found[-1][1].append(line)
        else:
            found.append((kind, [line]))
    return found


def inline(text: str) -> str:
    """Prose with `code` marked for reStructuredText and everything else escaped."""
    parts = re.split(r"`+([^`]+)`+", text)
    marked = [
        f"\\ ``{part}``\\ " if odd % 2 else re.sub(r"([\\*`|_])", r"\\\1", part) for odd, part in enumerate(parts)
    ]
    return "".join(marked)


def block_language(text: str) -> str:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return "none"
    return "python"


def docstring(app: Any, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    inherited = what == "data" and lines == [*(inspect.getdoc(type(obj)) or "").splitlines(), ""]
    lines[:] = [] if inherited else as_restructured(lines)


# ---------------------------------------------------------------- navigation


def toctree(caption: str, pages: list[str]) -> str:
    head = f":hidden:\n:caption: {caption}\n" if caption else ":hidden:\n"
    return f"```{{toctree}}\n{head}\n" + "\n".join(pages) + "\n```\n"


def add_navigation(app: Any, name: str, source: list[str]) -> None:
    """The home page carries the order of all pages; on GitHub it is a plain page."""
    if name == root_doc:
        for caption, pages in NAVIGATION.items():
            source[0] += "\n\n" + toctree(caption, [f"/{page}" for page in pages])


def add_index(app: Any, error: Exception | None) -> None:
    """The site's address without a page leads to the home page."""
    if error is None and app.builder.name == "html":
        refresh = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
        page = f'<!doctype html><title>iel</title>{refresh}<a href="{root_doc}.html">iel</a>\n'
        (Path(app.outdir) / "index.html").write_text(page)


def setup(app: Any) -> None:
    app.connect("builder-inited", write_reference)
    app.connect("source-read", add_navigation)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("build-finished", add_index)
