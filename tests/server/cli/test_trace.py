"""`omnistage trace` against a gateway over fake stages."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway.chats import TEXT, URL, spoken
from support.gateway.serving import IMAGES, OMNI, RunningGateway, running_gateway
from support.ports import free_port
from typer.testing import CliRunner, Result

from omnistage.server import cli
from omnistage.server.cli.trace import WIDTH
from omnistage.server.http.access.keys import Keys

KEY = "sk-admin"
HEADERS = {"authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    directory = tmp_path_factory.mktemp("traced")
    with running_gateway(directory, OMNI, admin_keys=Keys([KEY])) as running:
        yield running


def traced(url: str, *arguments: str, key: str | None = KEY, columns: int = 120) -> Result:
    environment = {"OMNISTAGE_ADMIN_KEY": key, "COLUMNS": str(columns)}
    return CliRunner().invoke(cli.app, ["trace", *arguments, "--url", url], env=environment)


def ask(gateway: RunningGateway, body: object, name: str) -> httpx.Response:
    headers = {"x-request-id": name}
    return httpx.post(f"{gateway.url}{URL}", json=body, headers=headers, timeout=600)


def bars(output: str) -> list[tuple[int, int]]:
    """Where each row's bar begins and ends."""
    found = [re.search("▏|█+", line) for line in output.splitlines()]
    return [one.span() for one in found if one is not None]


def lengths_of(rows: list[dict[str, Any]]) -> list[int]:
    """How long the bars of these are, the last to end at the full width."""
    whole_ms = max(row["end_ms"] for row in rows)
    ends = [[round(WIDTH * row[one] / whole_ms) for one in ("start_ms", "end_ms")] for row in rows]
    return [max(1, end - start) for start, end in ends]


def test_the_latest_requests_are_listed(gateway: RunningGateway) -> None:
    ask(gateway, TEXT, "one")
    ask(gateway, spoken("refuse"), "two")
    shown = traced(gateway.url)
    assert shown.exit_code == 0, shown.output
    path = URL.removeprefix("/v1")
    rows = [line.split() for line in shown.output.splitlines() if path in line]
    assert [row[:4] for row in rows[:2]] == [
        ["two", path, "400", "refused"],
        ["one", path, "200", "finished"],
    ]


def test_on_a_narrow_terminal_ids_are_whole_and_each_request_has_one_line(
    gateway: RunningGateway,
) -> None:
    name = "req_" + "5a2884b9" * 4
    ask(gateway, TEXT, name)
    shown = traced(gateway.url, columns=80)
    head, latest, *_ = shown.output.splitlines()
    assert head.split() == ["request", "path", "status", "outcome", "s", "TTFT", "TTFP"]
    assert latest.split()[0] == name
    assert {"200", "finished"} < set(latest.split())
    assert max(map(len, shown.output.splitlines())) <= 80


def test_a_request_is_found_by_how_its_id_begins(gateway: RunningGateway) -> None:
    ask(gateway, TEXT, "ab12cd34")
    ask(gateway, TEXT, "ab12ff00")
    shown = traced(gateway.url, "ab12c")
    assert shown.exit_code == 0, shown.output
    assert "ab12cd34: /v1/chat/completions, finished" in shown.output
    both = traced(gateway.url, "ab12")
    assert both.exit_code == 1
    says = "error: 2 requests begin with ab12, the latest: ab12ff00, ab12cd34.\n"
    assert both.output == says


@pytest.mark.parametrize("by", ["request", "answer"])
def test_a_request_is_drawn_as_a_waterfall(by: str, gateway: RunningGateway) -> None:
    answer = ask(gateway, spoken("words"), "spoken")
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
    told = httpx.get(f"{gateway.url}/admin/traces/spoken", headers=HEADERS).json()
    lengths = [*lengths_of(told["steps"]), *lengths_of(told["stages"])]
    assert [end - start for start, end in drawn] == lengths


def test_what_a_request_is_called_reaches_the_server_as_it_is(gateway: RunningGateway) -> None:
    shown = traced(gateway.url, "a/b?c")
    assert shown.exit_code == 1
    assert "No request a/b?c" in shown.output or "Not Found" in shown.output


def test_who_has_no_key_is_told_so(gateway: RunningGateway, tmp_path: Path) -> None:
    refused = traced(gateway.url, key="wrong")
    assert (refused.exit_code, refused.output.strip()) == (1, "error: Incorrect API key provided.")
    with running_gateway(tmp_path, IMAGES, keys=Keys(["sk-a"])) as closed:
        refused = traced(closed.url)
    assert refused.exit_code == 1
    assert "--admin-key" in refused.output


def test_an_address_without_a_server_is_named_with_what_to_do() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    shown = traced(f"{url}/", columns=200)
    says = f"error: no server answers at {url}; start one, or name another with --url\n"
    assert (shown.exit_code, shown.output) == (1, says)


def test_a_server_without_keys_on_this_machine_needs_none(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as running:
        ask(running, TEXT, "mine")
        listed = traced(running.url, key=None)
        drawn = traced(running.url, "mine", key=None)
    assert (listed.exit_code, drawn.exit_code) == (0, 0)
    assert listed.output.splitlines()[1].split()[0] == "mine"
    assert "mine: /v1/chat/completions, finished" in drawn.output
