"""The site of docs/ has every page, and its hook changes what mkdocs would read otherwise."""

import types
from pathlib import Path

import pytest
import yaml
from docs_hook import on_page_markdown, with_lists_apart, without_links_out

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


class Loader(yaml.SafeLoader):
    """mkdocs.yml names a Python function, which is not looked for here."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)
SITE = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def test_the_site_loads_no_fonts_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False


@pytest.mark.parametrize(
    ("link", "wanted"),
    [
        ("[server/app.py](../server/app.py)", "`server/app.py`"),
        ("[app.py](../server/app.py)", "`server/app.py`"),
        ("[the record](../CHANGELOG.md#changelog)", "the record (`CHANGELOG.md`)"),
        ("[API](api.md#errors)", "[API](api.md#errors)"),
        ("[API](../docs/api.md)", "[API](../docs/api.md)"),
    ],
)
def test_a_link_out_of_the_folder_becomes_a_name(link: str, wanted: str) -> None:
    assert without_links_out(f"See {link}.", DOCS) == f"See {wanted}."


def test_a_link_to_nothing_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.py"):
        without_links_out("[gone](../server/gone.py)", DOCS)


def test_a_list_below_text_is_a_list() -> None:
    lines = [
        "It has:",
        "- one",
        "  more of it",
        "- two",
        "",
        "1. three",
        "```",
        "text",
        "- code",
        "```",
    ]
    wanted = ["It has:", "", *lines[1:]]
    assert with_lists_apart(lines) == wanted


def test_the_hook_is_what_mkdocs_calls() -> None:
    (path,) = SITE["hooks"]
    assert (ROOT / path).is_file()
    page = types.SimpleNamespace(file=types.SimpleNamespace(abs_src_path=str(DOCS / "a.md")))
    text = on_page_markdown("So:\n- [x](../Makefile)", page=page, config=None, files=None)
    assert text == "So:\n\n- x (`Makefile`)"
