"""The snippets of docs/clients.md are answered as it shows.

Those in Python run as they are. Of a command in a shell the request is sent that curl would send.
Those in JavaScript, and curl itself, are run by `make snippets`, because node and curl need not be
here.
"""

import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.repository.snippets import (
    LANGUAGES,
    PLAYED,
    SERVER,
    Section,
    check_json,
    sections,
    send,
    servers,
    without_what_differs,
    words_of,
)

SECTIONS = {section.title: section for section in sections()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


@pytest.fixture(scope="module")
def urls(folder: Path) -> Iterator[dict[str, str]]:
    with servers(folder) as running:
        yield running


def test_every_section_has_every_language_and_what_is_printed() -> None:
    assert len(SECTIONS) == 9
    for section in SECTIONS.values():
        assert section.blocks.keys() - {"json"} == {*LANGUAGES, "text"}, section.title
        assert "openai" in section.blocks["js"], section.title


@pytest.mark.parametrize("title", SECTIONS)
def test_a_snippet_in_python_prints_what_is_shown(
    title: str, folder: Path, urls: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(folder / "bin"), prepend=os.pathsep)
    (folder / "played.pcm").unlink(missing_ok=True)
    section, printed = SECTIONS[title], io.StringIO()
    names: dict[str, Any] = {"__name__": "snippet"}
    with contextlib.redirect_stdout(printed):
        exec(at(section, "python", urls), names)
    names["client"].close()
    assert printed.getvalue() == section.blocks["text"]
    if title == PLAYED:
        assert (folder / "played.pcm").stat().st_size > 0


@pytest.mark.parametrize("title", SECTIONS)
def test_a_command_of_curl_is_answered_as_is_shown(
    title: str, folder: Path, urls: dict[str, str]
) -> None:
    section = SECTIONS[title]
    answer = send(words_of(at(section, "sh", urls)), folder)
    assert answer.status_code == (400 if title == "Errors" else 200), answer.text
    if "json" in section.blocks:
        check_json(answer.text, section.blocks["json"])


def at(section: Section, language: str, urls: dict[str, str]) -> str:
    """A snippet that asks the test's server in place of the documentation's."""
    assert SERVER in section.blocks[language]
    return section.blocks[language].replace(SERVER, urls[section.title])


@pytest.mark.parametrize(
    ("answer", "shown", "is_same"),
    [
        ({"id": "a7"}, {"id": "a…"}, True),
        ({"id": "b7"}, {"id": "a…"}, False),
        ({"id": ""}, {"id": "…"}, False),
        ({"created": 3}, {"created": "…"}, True),
        ({"id": "a", "more": 1}, {"id": "a"}, False),
        ({"list": [1, 2]}, {"list": [1]}, False),
    ],
)
def test_only_what_is_shown_as_differing_may_differ(answer: Any, shown: Any, is_same: bool) -> None:
    assert (without_what_differs(answer, shown) == shown) == is_same
    if not is_same:
        with pytest.raises(AssertionError):
            check_json(json.dumps(answer), json.dumps(shown))
