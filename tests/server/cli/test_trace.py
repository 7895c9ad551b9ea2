"""`omnistage trace` against a gateway over fake stages."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.chats import TEXT, URL, spoken
from support.gateway import IMAGES, OMNI, RunningGateway, running_gateway
from typer.testing import CliRunner, Result

from omnistage.server import cli
from omnistage.server.http.keys import Keys

KEY = "sk-admin"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    directory = tmp_path_factory.mktemp("traced")
    with running_gateway(directory, OMNI, admin_keys=Keys([KEY])) as running:
        yield running


def traced(url: str, *arguments: str, key: str = KEY) -> Result:
    environment = {"OMNISTAGE_ADMIN_KEY": key, "COLUMNS": "120"}
    return CliRunner().invoke(cli.app, ["trace", *arguments, "--url", url], env=environment)


def ask(gateway: RunningGateway, body: object, name: str) -> httpx.Response:
    headers = {"x-request-id": name}
    return httpx.post(f"{gateway.url}{URL}", json=body, headers=headers, timeout=10)


def bars(output: str) -> list[tuple[int, int]]:
    """Where each row's bar begins and ends."""
    found = [re.search("▏|█+", line) for line in output.splitlines()]
    return [one.span() for one in found if one is not None]


def test_the_latest_requests_are_listed(gateway: RunningGateway) -> None:
    ask(gateway, TEXT, "one")
    ask(gateway, spoken("refuse"), "two")
    shown = traced(gateway.url)
    assert shown.exit_code == 0, shown.output
    rows = [line for line in shown.output.splitlines() if URL in line]
    assert [re.split(r"\s*│\s*", row)[1:5] for row in rows[:2]] == [
        ["two", URL, "400", "refused"],
        ["one", URL, "200", "finished"],
    ]


@pytest.mark.parametrize("by", ["request", "answer"])
def test_a_request_is_drawn_as_a_waterfall(by: str, gateway: RunningGateway) -> None:
    answer = ask(gateway, spoken("slow"), "spoken")
    shown = traced(gateway.url, "spoken" if by == "request" else answer.json()["id"])
    assert shown.exit_code == 0, shown.output
    assert "spoken: /v1/chat/completions, finished" in shown.output
    rows = [line for line in shown.output.splitlines() if "│" in line]
    cells = [tuple(re.split(r"\s*│\s*", row)[1:3]) for row in rows]
    assert cells[:2] == [("gateway", "admitted"), ("gateway", "sent")]
    assert {("thinker", "first_output"), ("gateway", "first_audio")} < set(cells)
    assert set(cells[-2:]) == {("thinker", "whole"), ("code2wav", "whole")}
    drawn = bars(shown.output)
    assert len(drawn) == len(rows)
    starts = [start for start, _ in drawn[:-2]]
    assert starts == sorted(starts)
    assert max(end - start for start, end in drawn) > 20  # the thinker was slow


def test_what_a_request_is_called_reaches_the_server_as_it_is(gateway: RunningGateway) -> None:
    shown = traced(gateway.url, "a/b?c")
    assert shown.exit_code == 1
    assert "No request a/b?c" in shown.output or "Not Found" in shown.output


def test_who_has_no_key_is_told_so(gateway: RunningGateway, tmp_path: Path) -> None:
    refused = traced(gateway.url, key="wrong")
    assert (refused.exit_code, refused.output.strip()) == (1, "error: Incorrect API key provided.")
    with running_gateway(tmp_path, IMAGES) as closed:
        refused = traced(closed.url)
    assert refused.exit_code == 1
    assert "--admin-key" in refused.output


def test_a_server_that_is_not_there_is_named() -> None:
    shown = traced("http://127.0.0.1:1")
    assert shown.exit_code == 1
    assert shown.output.startswith("error: http://127.0.0.1:1/admin/traces: ")
    assert "Traceback" not in shown.output
