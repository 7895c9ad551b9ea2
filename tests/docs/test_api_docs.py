"""docs/api.md begins with chats that are answered, and its table of endpoints is the server's."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute
from starlette.routing import WebSocketRoute
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.media.pictures import png
from support.media.sounds import tone, wav_of
from support.repository.snippets import SERVER, send

from omnistage.server.app import build_app
from omnistage.server.http.access.keys import Keys
from omnistage.server.options.gateway import GatewayOptions

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
FIRST = PAGE.partition("\n## ")[0]
CHATS = re.findall(r"```sh\n(.*?)```", FIRST, re.DOTALL)
# Writes its arguments, each behind a line of its own, with the standard input in place of `@-`.
CURL = """#!{python}
import sys
words = [sys.stdin.read() if word == "@-" else word for word in sys.argv]
print("\\0".join(["curl", *words[1:]]), end="")
"""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("api"), OMNI) as running:
        yield running


def answer_to(command: str, folder: Path, gateway: RunningGateway) -> httpx.Response:
    """Return the answer to a command of a shell, whose curl is one that needs no curl."""
    (folder / "picture.png").write_bytes(png(8, 8))
    (folder / "question.wav").write_bytes(wav_of(tone(0.5)))
    curl = folder / "curl"
    curl.write_text(CURL.format(python=sys.executable))
    curl.chmod(0o755)
    shell = ["sh", "-c", command.replace("curl ", f"{curl} ").replace(SERVER, gateway.url)]
    printed = subprocess.run(shell, cwd=folder, capture_output=True, text=True, check=True)
    return send(printed.stdout.split("\0"), folder)


def message_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["choices"][0]["message"])


def test_the_page_begins_with_three_chats() -> None:
    assert len(CHATS) == 3


def test_the_first_chat_is_answered_with_text(tmp_path: Path, gateway: RunningGateway) -> None:
    message = message_of(answer_to(CHATS[0], tmp_path, gateway))
    assert message["content"] == "Hello there"


def test_the_second_chat_is_streamed(tmp_path: Path, gateway: RunningGateway) -> None:
    answer = answer_to(CHATS[1], tmp_path, gateway)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.text.endswith("data: [DONE]\n\n")


def test_the_third_chat_has_an_image_and_audio_and_is_spoken(
    tmp_path: Path, gateway: RunningGateway
) -> None:
    message = message_of(answer_to(CHATS[2], tmp_path, gateway))
    assert message["content"] is None
    assert message["audio"]["transcript"] == "Hello there"
    assert message["audio"]["data"]


def listed() -> set[tuple[str, str]]:
    """Return the methods and paths in the first column of the table of endpoints."""
    section = PAGE.partition("## Endpoints\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")][2:]
    calls = re.findall(r"((?:[A-Z]+, )*[A-Z]+) (/[^\], ]*)", " ".join(cells))
    return {(method, path) for methods, path in calls for method in methods.split(", ")}


def served(gateway: RunningGateway) -> set[tuple[str, str]]:
    """Return the methods and paths that a server with an admin key answers."""
    found = set()
    for route in build_app(gateway.runtime, GatewayOptions(admin_keys=Keys(["key"]))).routes:
        if isinstance(route, WebSocketRoute):
            found.add(("WebSocket", route.path))
        elif isinstance(route, APIRoute):
            path = re.sub(r"\{[\w:]+\}", "{id}", route.path)
            found |= {(method, path) for method in route.methods - {"HEAD"}}
    return found


def test_the_table_has_every_endpoint_of_the_server(gateway: RunningGateway) -> None:
    section = PAGE.partition("## Endpoints\n")[2].partition("\n## ")[0]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("|")][2:]
    calls = re.findall(r"((?:\w+, )*\w+) (/[^\], ]*)", " ".join(cells))
    named = {(method, path) for methods, path in calls for method in methods.split(", ")}
    named -= {("GET", "/openapi.json"), ("admin", "/admin/…")}
    assert named == {call for call in served(gateway) if not call[1].startswith("/admin/")}


def test_the_table_of_admin_has_every_command(gateway: RunningGateway) -> None:
    section = PAGE.partition("## Admin\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| ([A-Z]+) (/admin/\S+) \|", section, re.MULTILINE))
    named = {(method, path.replace("REQUEST_ID", "{id}")) for method, path in named}
    assert named == {call for call in served(gateway) if call[1].startswith("/admin/")}
