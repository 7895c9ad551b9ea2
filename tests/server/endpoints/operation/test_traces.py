"""GET /admin/traces without an admin key: who gets an answer, and by which names of a request."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request as HttpRequest
from support.gateway.chats import TEXT, URL
from support.gateway.serving import OMNI, RunningGateway, running_gateway

from omnistage.server.common.errors import ApiError
from omnistage.server.endpoints.operation.traces import refuse_others
from omnistage.server.http.access.keys import Keys


def test_a_server_with_api_keys_alone_tells_nobody(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI, keys=Keys(["sk-a"])) as gateway:
        for key in ({}, {"authorization": "Bearer sk-a"}):
            answer = httpx.get(f"{gateway.url}/admin/traces", headers=key)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_disabled")


@pytest.fixture(scope="module")
def open_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A server without any keys."""
    with running_gateway(tmp_path_factory.mktemp("open"), OMNI) as running:
        yield running


def test_a_server_without_keys_tells_programs_on_its_own_machine(
    open_gateway: RunningGateway,
) -> None:
    port = open_gateway.url.rpartition(":")[2]
    for host in ("127.0.0.1", "localhost"):
        answer = httpx.get(f"http://127.0.0.1:{port}/admin/traces", headers={"host": host})
        assert answer.status_code == 200
        assert list(answer.json()) == ["traces"]


@pytest.mark.parametrize(
    "header",
    [
        ("host", "page.example"),  # a page whose name leads here (DNS rebinding)
        ("host", "192.168.1.2"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-host", "api.example"),
        ("x-real-ip", "192.0.2.1"),
        ("forwarded", "for=192.0.2.1"),
        ("via", "1.1 proxy"),
    ],
    ids=" ".join,
)
def test_what_a_page_or_a_proxy_may_have_sent_is_told_nothing(
    header: tuple[str, str], open_gateway: RunningGateway
) -> None:
    for path in ("/admin/traces", "/admin/traces/x"):
        answer = httpx.get(f"{open_gateway.url}{path}", headers=dict([header]))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_disabled")


def test_another_machine_is_told_nothing(tmp_path: Path) -> None:
    request = {"type": "http", "headers": [(b"host", b"127.0.0.1:8000")], "path": "/admin/traces"}
    server = {"server": ("0.0.0.0", 8000), "scheme": "http", "query_string": b"", "root_path": ""}
    for client in (("192.0.2.7", 5000), None):
        with pytest.raises(ApiError):
            asyncio.run(refuse_others(HttpRequest({**request, **server, "client": client})))
    here = {**request, **server, "client": ("127.0.0.1", 5000)}
    asyncio.run(refuse_others(HttpRequest(here)))
    with pytest.raises(ApiError):  # a proxy is before a server that has a root path
        asyncio.run(refuse_others(HttpRequest({**here, "root_path": "/models"})))


def test_no_other_part_of_admin_is_open_without_a_key(open_gateway: RunningGateway) -> None:
    answer = httpx.post(f"{open_gateway.url}/admin/sleep", json={})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_disabled")


def test_the_beginning_of_an_id_means_the_only_request_that_has_it(
    open_gateway: RunningGateway,
) -> None:
    def ask(name: str) -> str:
        headers = {"x-request-id": name}
        answer = httpx.post(f"{open_gateway.url}{URL}", json=TEXT, headers=headers)
        return str(answer.json()["id"])

    def asked(name: str) -> httpx.Response:
        return httpx.get(f"{open_gateway.url}/admin/traces/{name}")

    answer_id = ask("alpha-1")
    ask("alpha-12")
    ask("beta")
    assert asked("be").json()["request_id"] == "beta"
    assert asked("alpha-1").json()["request_id"] == "alpha-1"  # whole, though another begins so
    assert asked(answer_id[:-2]).json()["request_id"] == "alpha-1"
    many = asked("alpha")
    assert many.status_code == 400
    message = "2 requests begin with alpha, the latest: alpha-12, alpha-1."
    assert many.json()["error"]["message"] == message
    assert asked("gamma").status_code == 404
