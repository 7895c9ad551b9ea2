"""The snippets of docs/clients.md, the answers that it shows, and servers for them to ask."""

import contextlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from support.gateway.serving import IMAGES, OMNI, running_gateway
from support.media.pictures import png

ROOT = Path(__file__).parents[3]
SERVER = "http://localhost:8000"
LANGUAGES = ("sh", "python", "js")
SPEAKER = {**OMNI, "model": "Qwen/Qwen3-Omni-30B-A3B-Instruct"}
PAINTER = {**IMAGES, "model": "Qwen/Qwen-Image"}
PICTURES = "An image from text"  # the section that calls an image server
PLAYED = "Speech, played as it arrives"  # the section whose snippets start a player
DIFFERS = "…"


@dataclass(frozen=True, slots=True)
class Section:
    """One thing to ask, in each language: `json` is what curl prints, `text` what the others do."""

    title: str
    blocks: dict[str, str]


def sections() -> list[Section]:
    """The sections of docs/clients.md, in its order: some need what an earlier one has written."""
    _, *parts = (ROOT / "docs" / "clients.md").read_text().split("\n## ")
    found = []
    for part in parts:
        blocks = re.findall(r"```(\w+)\n(.*?)```", part, re.DOTALL)
        assert len(blocks) == len(dict(blocks)), part.splitlines()[0]
        found.append(Section(part.splitlines()[0], dict(blocks)))
    return found


@contextlib.contextmanager
def servers(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the address of a server for each section, over fake stages.

    The folder gets what snippets read, and below bin/ a player that saves what it should play.
    """
    (folder / "picture.png").write_bytes(png(8, 8))
    (folder / "bin").mkdir()
    player = folder / "bin" / "aplay"
    player.write_text("#!/bin/sh\nexec cat > played.pcm\n")
    player.chmod(0o755)
    (folder / "speaker").mkdir()
    (folder / "painter").mkdir()
    with (
        running_gateway(folder / "speaker", SPEAKER) as speaker,
        running_gateway(folder / "painter", PAINTER, arena_mb=16) as painter,
    ):
        urls = {section.title: speaker.url for section in sections()}
        yield urls | {PICTURES: painter.url}


def without_what_differs(answer: Any, shown: Any) -> Any:
    """An answer with … wherever the documentation shows … for a value, or for the end of a text."""
    if isinstance(shown, dict) and isinstance(answer, dict):
        return {key: without_what_differs(answer[key], shown.get(key)) for key in answer}
    if isinstance(shown, list) and isinstance(answer, list) and len(shown) == len(answer):
        return [without_what_differs(one, other) for one, other in zip(answer, shown, strict=True)]
    if isinstance(shown, str) and shown.endswith(DIFFERS):
        start = shown.removesuffix(DIFFERS)
        return shown if str(answer).startswith(start) and answer != start else answer
    return answer


def check_json(printed: str, shown: str) -> None:
    """Fails unless an answer is what the documentation shows."""
    wanted = json.loads(shown)
    assert without_what_differs(json.loads(printed), wanted) == wanted


def words_of(command: str) -> list[str]:
    """Split a command as a shell does, also where a line ends with a backslash."""
    return shlex.split(command.replace("\\\n", ""))


def send(words: list[str], folder: Path) -> httpx.Response:
    """What curl sends for the few options that the documentation uses; others are an error."""
    assert words.pop(0) == "curl"
    request: dict[str, Any] = {"headers": {"connection": "close"}}
    output, url = None, ""
    while words:
        word = words.pop(0)
        if word == "-d":
            request["content"] = words.pop(0)
        elif word == "-H":
            name, value = words.pop(0).split(": ")
            request["headers"][name] = value
        elif word == "-F":
            field, _, path = words.pop(0).partition("=@")
            request["files"] = {field: (path, (folder / path).read_bytes())}
        elif word == "-o":
            output = folder / words.pop(0)
        elif word == "|":  # what follows is the player's
            output, words = folder / "played.pcm", []
        elif word not in ("-N", "-sN"):
            assert word.startswith("http"), word
            url = word
    answer = httpx.post(url, **request, timeout=600)
    if output is not None:
        output.write_bytes(answer.content)
    return answer
