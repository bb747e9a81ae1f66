"""Count words of this project's old private vocabulary; `make test` allows none in identifiers, help texts and errors.

    python scripts/words.py                # a count per word and kind
    python scripts/words.py --show         # every occurrence, with its line
    python scripts/words.py --show src/iel/data README.md

Kinds: *names* (identifiers and file names of Python files), *text* (string literals: help, errors, what commands
print; and the playground's page) and *prose* (docstrings, comments, Markdown). Words that are fine in one meaning
are looked for in phrases of the other only; ORDINARY lists what may stay although a pattern finds it.
"""

from __future__ import annotations

import argparse
import ast
import functools
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SEARCHED = ("src", "tests", "benchmarks", "examples", "scripts", "docs", "*.md")
SKIPPED = (
    "tests/golden",
    "docs/lab-notes.md",
    "CHANGELOG.md",
    "scripts/words.py",
    "docs/images",
)
PROSE_LIMIT = 20

# What a word is replaced by is told by CONTRIBUTING.md.
WORDS = {
    "way": r"ways?",
    "place": r"places?",
    "told": r"told",
    "asked": r"ask(?:s|ed|ing)?",
    "kept": r"kept",
    "spread": r"spreads?|spreading",
    "body": r"body|bodies|bodied",
    "wish": r"wish(?:es)?",
    "nobody": r"nobody|whoever|somebody|everybody",
    "shipped": r"shipped|ships",
    "foretell": r"foretells?|foretold|bereft",
    "stranger": r"strangers?|company",
    "hears": r"hears?|listens?",
    "arrives": r"arrives?|arrived|arriving|arrivals?",
    "dear": r"dear|dearer|dearest",
    "witness": r"witness(?:es|ed)?|unwitnessed",
    "portal": r"portals?|chance edges?",
    "walker": r"walkers?|skills?",
    "steering": r"steer(?:s|ed|ing)?|steerable",
    "twin": r"twins?",
    "judge": r"judge[sd]?|judging|complaints?|mistakes?",
    "lanes": r"lanes?",
    "so many": r"so many",
    "is no": r"(?:is|are) no",
    "the same of": r"the same of",
    "leads": r"leads everybody|cut out rests|is said|is answered",
}
# Ordinary English, terms of other fields, and names that belong to others.
ORDINARY = {
    "way": r"(?:one|two|three)[- ]way|(?:this|same|either|another|any|that|by the|long|half|all the|in a|no|only) way"
    r"|way back|under way|gateway|in the way",
    "place": r"(?:decimal|first|second|third|in) places?|(?:takes?|took|taken|taking) place|place of",
    "body": r"(?:request|response|http|json|message|error|whole|empty|the|a|same|its|one|request's) body|body of|body=|"
    r"\bbody\b(?=\s*[({])|\[body\]|</?body>|limits\.body|request bodies|[\"']body[\"']|body: '|len\(body\)",
    "spread": r"spread over|spread across",
    "walker": r"skill learning|skill discovery",
    "steering": r"steering wheel",
    "is no": r"(?:is|are) no (?:longer|more|less|better|worse|later|earlier|smaller|larger)|there (?:is|are) no",
    "hears": r"serving[./]listen",
    "leads": r"(?:requests?|messages?|clients?|row|goal|each|HTTP|that sends requests) is answered",
    "arrives": r"time to arrival|"
    r"(?:data|requests?|messages?|frames?|bytes|rows|answers?|samples?|signals?) (?:arrives?|arrived)",
}
# Identifiers of libraries, protocols and file formats.
FOREIGN = {
    "Body",
    "BODY",
    "has_body",
    "on_body",
    "body_mass",
    "test_bad_request_bodies_get_one_sentence",
    "test_request_bodies_are_json_short_and_expected",
    "http_body",
    "more_body",
    "listen",
    "body",
    "request_body",
    "mj_name2id",
    "xbody",
    "get_body_com",
    "body_name",
}


class Occurrence(NamedTuple):
    word: str
    kind: str
    file: str
    line: int
    text: str


def _pattern(expression: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])(?:{expression})(?![\w])", re.IGNORECASE)


PATTERNS = {word: _pattern(expression) for word, expression in WORDS.items()}
ANY = _pattern("|".join(WORDS.values()))
"""Finds a word of WORDS wherever one of PATTERNS does: most texts hold none and need no second pass."""
EXCEPT = {word: re.compile(expression, re.IGNORECASE) for word, expression in ORDINARY.items() if expression}


def in_text(text: str) -> Iterator[tuple[str, int]]:
    """Every word of WORDS in `text` and the offset at which it stands."""
    if not ANY.search(text):
        return
    for word, pattern in PATTERNS.items():
        ordinary = [match.span() for match in EXCEPT[word].finditer(text)] if word in EXCEPT else []
        for found in pattern.finditer(text):
            if not any(first <= found.start() and found.end() <= last for first, last in ordinary):
                yield word, found.start()


@functools.cache
def in_name(name: str) -> tuple[str, ...]:
    """Every word of WORDS among the parts of an identifier: `find_ways`, `FindWays`."""
    if name in FOREIGN:
        return ()
    parts = " ".join(re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name))
    return tuple(word for word, _ in in_text(parts) if word not in ("is no", "so many", "hears"))


def _line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset)


def python_file(path: Path) -> Iterator[tuple[str, str, int, str]]:
    """(word, kind, line, text) of one Python file."""
    source = path.read_text()
    tree = ast.parse(source)
    docstrings = {
        node.value.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    lines = source.splitlines()
    for word in in_name(path.stem):
        yield word, "names", 1, path.name
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.NAME:
            for word in in_name(token.string):
                yield word, "names", line, lines[line - 1].strip()
        elif token.type == tokenize.COMMENT:
            for word, _ in in_text(token.string):
                yield word, "prose", line, token.string.strip()
        elif token.type == tokenize.STRING:
            kind = "prose" if line in docstrings else "text"
            for word, at in in_text(token.string):
                row = line + _line_of(token.string, at)
                yield word, kind, row, lines[row - 1].strip()


def plain_file(path: Path, kind: str) -> Iterator[tuple[str, str, int, str]]:
    text = path.read_text()
    lines = text.splitlines()
    for word, at in in_text(text):
        row = _line_of(text, at)
        yield word, kind, row + 1, lines[row].strip()


def files(roots: list[str]) -> Iterator[Path]:
    for root in roots:
        for path in sorted(ROOT.glob(root)):
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                name = file.relative_to(ROOT).as_posix()
                if file.suffix in (".py", ".md", ".html", ".js", ".toml", ".c") and not name.startswith(SKIPPED):
                    yield file


def occurrences(roots: list[str]) -> Iterator[Occurrence]:
    for path in files(roots):
        name = path.relative_to(ROOT).as_posix()
        found = (
            python_file(path) if path.suffix == ".py" else plain_file(path, "prose" if path.suffix == ".md" else "text")
        )
        for word, kind, line, text in found:
            # What tests, benchmarks and scripts print is prose; only their names are names.
            if kind == "text" and not name.startswith("src/"):
                kind = "prose"
            yield Occurrence(word, kind, name, line, text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="*", default=list(SEARCHED), help="files and directories (default: all)")
    parser.add_argument("--show", action="store_true", help="print every occurrence")
    options = parser.parse_args()
    found = list(occurrences(options.roots))
    if options.show:
        for each in found:
            print(f"{each.file}:{each.line}: {each.word} ({each.kind}): {each.text[:140]}")
    counts = Counter((each.word, each.kind) for each in found)
    totals = Counter(each.kind for each in found)
    for word in WORDS:
        if any(counts[word, kind] for kind in ("names", "text", "prose")):
            print(f"{word:12} " + "  ".join(f"{kind} {counts[word, kind]:4}" for kind in ("names", "text", "prose")))
    print(f"{'all':12} " + "  ".join(f"{kind} {totals[kind]:4}" for kind in ("names", "text", "prose")))
    good = totals["names"] == totals["text"] == 0 and totals["prose"] < PROSE_LIMIT
    if not good:
        print(f"wanted: names 0, text 0, prose fewer than {PROSE_LIMIT}", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
