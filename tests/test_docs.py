"""The documentation: the site builds without warnings and without dead links, and its programs run."""

import hashlib
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import iel
from iel.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
MAZE = "pointmaze-medium-navigate-v0"


# ---------------------------------------------------------------- the site


class Page(HTMLParser):
    """What a page of the site links to, loads and can be linked to."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        known = dict(attributes)
        self.anchors |= {known[name] for name in ("id", "name") if known.get(name)}
        if tag == "a" and known.get("href"):
            self.links.append(known["href"])
        if tag == "img":
            self.pictures.append(known)
        if tag in ("script", "img", "source", "iframe") and known.get("src"):
            self.loads.append(known["src"])
        if tag == "link" and known.get("rel") in ("stylesheet", "preload", "icon", "preconnect") and known.get("href"):
            self.loads.append(known["href"])


def doctrees() -> Path:
    """Where parsed pages are stored between runs; a change of any source file or page name gives another directory."""
    digest = hashlib.sha256(version("sphinx").encode() + version("myst-parser").encode())
    for file in [ROOT / "docs" / "conf.py", *sorted((ROOT / "src").rglob("*.py"))]:
        digest.update(file.read_bytes())
    digest.update(" ".join(sorted(page.name for page in PAGES)).encode())
    return ROOT / ".pytest_cache" / "doctrees" / digest.hexdigest()[:16]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The built site. Only unchanged pages are not parsed again; every page is resolved, checked and written."""
    out, parsed = tmp_path_factory.mktemp("site"), doctrees()
    words = ["-W", "--keep-going", "-q", "-d", parsed, "-c", "docs", ".", out]
    built = subprocess.run([sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True)
    for stored in parsed.parent.glob("*"):
        if built.returncode or stored != parsed:  # a page that was parsed with a warning would not warn again
            shutil.rmtree(stored)
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {file: Page(file) for file in site.rglob("*.html")}


@pytest.mark.slow
def test_no_link_of_the_site_is_dead(site, pages):
    for page in pages.values():
        for link in (link for link in page.links if not urlsplit(link).scheme):
            path, _, anchor = link.partition("#")
            target = (page.file.parent / unquote(path)).resolve() if path else page.file
            assert target.exists(), f"{page.file.relative_to(site)} links to {link}"
            if anchor and target in pages:
                assert unquote(anchor) in pages[target].anchors, f"{page.file.relative_to(site)} links to {link}"


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(pages):
    for page in pages.values():
        outside = [address for address in page.loads if urlsplit(address).scheme not in ("", "data")]
        assert not outside, (page.file.name, outside)


@pytest.mark.slow
def test_every_public_name_is_in_the_reference(pages, site):
    known = {anchor for page in pages.values() for anchor in page.anchors}
    for name in set(iel.__all__) - {"__version__"}:
        assert any(anchor.startswith("iel.") and anchor.endswith(f".{name}") for anchor in known), name


@pytest.mark.slow
def test_every_page_is_found_by_search(site):
    index = (site / "searchindex.js").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f'"docs/{page.stem}"' in index, page


# ---------------------------------------------------------------- pages as they are on GitHub


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not urlsplit(link).scheme and not link.startswith("#"):
            assert (page.parent / link.partition("#")[0]).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_are_described(page):
    for words, file in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text()):
        assert len(words.split()) >= 3, f"{file} needs a description for those who cannot see it"


def test_every_picture_is_shown():
    shown = {name for page in PAGES for name in re.findall(r"images/([\w.-]+)", page.read_text())}
    assert {picture.name for picture in (ROOT / "docs" / "images").iterdir()} <= shown


# ---------------------------------------------------------------- programs


def blocks(page: Path) -> list[tuple[str, str]]:
    """The programs of a page, in their order: (python or console, text)."""
    return re.findall(r"^```(python|console)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def run_blocks(page: Path, smaller: dict[str, str] | None = None) -> dict:
    """Run every block in turn in the current directory, with texts replaced in programs; what they leave behind."""
    found: dict = {}
    programs = blocks(page)
    for old in smaller or {}:
        assert sum(text.count(old) for kind, text in programs if kind == "python") == 1, old
    for kind, text in programs:
        if kind == "python":
            for old, new in (smaller or {}).items():
                text = text.replace(old, new)
            exec(compile(text, page.name, "exec"), found)
            continue
        for line in text.splitlines():
            with pytest.raises(SystemExit) as end:
                main(line.removeprefix("$ iel ").split())
            assert not end.value.code, line
    return found


SHORT = {"steps": 60, "policy": iel.Waypoints(steps=60)}
SMALLER = {
    "in range(100)": "in range(30)",  # episodes of the logs
    "len(route) < 300": "len(route) < 40",
    "step in range(300)": "step in range(10)",
    "trial in range(40)": "trial in range(2)",
}
"""What the short test of the tutorial runs instead of what the page says."""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_the_tutorial_runs(monkeypatch, tmp_path):
    """With few logs, steps and trials: the robot does not get through the gap; `make long` looks at that."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("iel.agent.suited", lambda data: iel.HTP.preset("smoke", **SHORT))
    found = run_blocks(ROOT / "docs" / "tutorial.md", SMALLER)
    assert len(found["route"]) > 1 and (tmp_path / "room" / "plots" / "plan.png").exists()


@pytest.mark.long
@pytest.mark.optimised
def test_the_tutorials_robot_gets_there(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = run_blocks(ROOT / "docs" / "tutorial.md")
    assert len(found["route"]) < 100


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The graph's nodes")
def test_the_first_program_of_the_readme_runs(maze_data, monkeypatch, tmp_path):
    """On other data, with fewer steps and episodes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("iel.load", lambda name, episodes: maze_data, raising=False)
    monkeypatch.setattr("iel.agent.suited", lambda data: iel.HTP.preset("smoke", **SHORT))
    evaluate = iel.Agent.evaluate
    monkeypatch.setattr(iel.Agent, "evaluate", lambda agent, env: evaluate(agent, MAZE, episodes=1))
    run_blocks(ROOT / "README.md")
    assert (tmp_path / "my-agent" / "agent.json").exists()
