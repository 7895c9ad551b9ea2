"""Every file, folder and link that the documentation names exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Without docs/history, whose pages name files as they were then.
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").glob("*.md"))]
# A reader's own files, what a command writes, and what folders of models and other libraries have.
NOT_OURS = {
    "adapter_config.json",
    "all.json",
    "body.json",
    "config.json",
    "config.yaml",
    "graph.yaml",
    "librechat.yaml",
    "model_index.json",
    "modular_config.json",
    "modular_model_index.json",
    "modules.json",
    "omnistage-shout/src/omnistage_shout/shout.yaml",
    "speech.json",
    "unwritten.py",
    # programs of an earlier commit, which the pages name
    "tests/gpu_sharing.py",
}

FILE = re.compile(r"(?<![\w./<>-])((?:[\w-]+/)*[\w-]+\.(?:py|yaml|md|json))\b(?![\w(])")
FOLDER = re.compile(r"(?<![\w./<>-])((?:[\w-]+/)+)(?![\w.<*])")
LINK = re.compile(r"\[[^]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
SEARCHED = (
    "server",
    "stages",
    "stage_configs",
    "connectors",
    "bench",
    "demo",
    "tests",
    "tools",
    "docs",
    "scripts",
)


def is_there(name: str) -> bool:
    """A path from the root or from docs/; a bare name is that of any file of the repository."""
    if (ROOT / name).exists() or (ROOT / "docs" / name).exists():
        return True
    return "/" not in name and any(any((ROOT / folder).rglob(name)) for folder in SEARCHED)


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    titles = HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def links_without_target(text: str, page: Path) -> Iterator[str]:
    for link in LINK.findall(text):
        if not re.match(r"[a-z]+:", link):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                yield link


def missing(text: str, page: Path) -> list[str]:
    """The files, folders and links of a page that do not exist."""
    roots = {path.name for path in ROOT.iterdir() if path.is_dir()}
    words = LINK.sub("", text)
    files = set(FILE.findall(words)) - NOT_OURS
    folders = {name for name in FOLDER.findall(words) if name.split("/")[0] in roots}
    gone = sorted(name for name in files | folders if not is_there(name))
    return [*gone, *links_without_target(text, page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_everything_that_a_page_names_exists(page: Path) -> None:
    assert missing(page.read_text(encoding="utf-8"), page) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("see `server/gone.py`.", "server/gone.py"),
        ("(connectors/gone.py)", "connectors/gone.py"),
        ("`gone_model.py` has it", "gone_model.py"),
        ("all in `stages/gone/`", "stages/gone/"),
        ("[here](../server/gone.py)", "../server/gone.py"),
        ("[here](limits.md#gone)", "limits.md#gone"),
        ("[here](#gone)", "#gone"),
    ],
)
def test_a_wrong_name_is_reported(text: str, name: str) -> None:
    assert missing(text, ROOT / "docs" / "architecture.md") == [name]


def test_every_exception_is_needed() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert set(FILE.findall(text)) >= NOT_OURS
