"""The snippets of docs/realtime.md run against a gateway and print an answer; its limits hold."""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.gateway.serving import OMNI, RunningGateway, running_gateway

from omnistage.server.endpoints.realtime import realtime
from omnistage.server.options.gateway import GatewayOptions
from omnistage.server.realtime import conversation
from omnistage.server.realtime.answering import answer
from omnistage.server.realtime.voice import listening

BOUNDS = GatewayOptions().sessions

PAGE = (Path(__file__).parents[2] / "docs" / "realtime.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("realtime")
    with running_gateway(folder, {**OMNI, "served_model_name": "tiny"}) as running:
        yield running


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_a_snippet_prints_an_answer(gateway: RunningGateway, number: int) -> None:
    address = gateway.url.removeprefix("http://")
    code = SNIPPETS[number].replace("localhost:8000", address)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/realtime.md", "exec"), {"__name__": "snippet"})
    assert printed.getvalue().splitlines()[-1] == "Hello there"


def test_there_are_snippets_for_the_sdk_and_without() -> None:
    assert len(SNIPPETS) == 2
    assert "openai" in SNIPPETS[0]
    assert "openai" not in SNIPPETS[1]


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("length", f"`--session-timeout` ({BOUNDS.length_s} s)"),
        ("no event", f"`--session-idle-timeout` ({BOUNDS.idle_s:.0f} s)"),
        ("an event without", f"{realtime.MAX_EVENT >> 20} MiB"),
        ("audio that waits", f"{listening.MAX_BUFFER_S / 60:.0f} min"),
        (
            "the conversation",
            f"{conversation.MAX_ITEMS} items, `--session-memory-mb` ({BOUNDS.max_bytes >> 20})",
        ),
        ("refused events", str(realtime.MAX_ERRORS)),
        ("a client that", f"{answer.SLOW_S:.0f} s"),
        ("sessions of a server", f"`--max-sessions` ({BOUNDS.max_sessions})"),
    ],
)
def test_a_limit_is_the_codes(row: str, value: str) -> None:
    (line,) = [one for one in PAGE.splitlines() if one.startswith(f"| {row}")]
    assert value in line.split("|")[2]
