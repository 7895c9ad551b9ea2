"""By when a request must be answered, and under which id."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.gateway.serving import MODEL, OMNI, RunningGateway, running_gateway

URL = "/v1/chat/completions"
HANG = {"model": MODEL, "messages": [{"role": "user", "content": "hang"}]}
WORDS = {"model": MODEL, "messages": [{"role": "user", "content": "words"}]}
ENDLESS = {"model": MODEL, "messages": [{"role": "user", "content": "endless"}], "stream": True}
SOON, LATE = {"x-request-timeout": "0.2"}, {"x-request-timeout": "60"}


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("hurried"), OMNI, timeout_s=0.3) as running:
        yield running


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_may_ask_for_its_own_deadline(
    stream: bool, client: httpx.Client, gateway: RunningGateway
) -> None:
    response = client.post(URL, json={**HANG, "stream": stream}, headers=SOON)
    assert response.status_code == 504
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "timeout")
    assert client.post(URL, json=WORDS, headers=LATE).status_code == 200
    gateway.wait_until_idle()


def test_the_servers_deadline_binds_who_asks_for_more(hurried: RunningGateway) -> None:
    headers = {"x-request-timeout": "1000"}
    response = httpx.post(hurried.url + URL, json=HANG, headers=headers, timeout=600)
    assert response.status_code == 504


def test_a_stream_that_is_overdue_ends_with_the_error(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as gateway:
        check_overdue(gateway)


def check_overdue(gateway: RunningGateway) -> None:
    with httpx.stream("POST", gateway.url + URL, json=ENDLESS, headers=LATE) as response:
        assert response.status_code == 200
        gateway.pass_over(60)
        *_, last, done = [line for line in response.iter_lines() if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "timeout"
    assert done == "data: [DONE]"


@pytest.mark.parametrize("asked", ["", "soon", "0", "-1", "nan", "inf", "1e9", "1, 2"])
def test_a_deadline_that_is_none_is_refused(asked: str, client: httpx.Client) -> None:
    response = client.post(URL, json=WORDS, headers={"x-request-timeout": asked})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-request-timeout"


def test_a_client_may_name_its_request(client: httpx.Client) -> None:
    for name in ("abc-1", "A.b_c:d", "x" * 128):
        response = client.post(URL, json=WORDS, headers={"x-request-id": name})
        assert response.headers["x-request-id"] == name


@pytest.mark.parametrize("name", ["", "a b", "x" * 129, "a\tb", "a/b", "<script>", '"a"', "a,b"])
def test_a_name_that_would_break_a_log_is_refused(name: str, client: httpx.Client) -> None:
    response = client.get("/health", headers={"x-request-id": name})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-request-id"
    assert response.headers["x-request-id"].startswith("req_")
