"""Conversations of the page: events of a session, passed on both ways."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.servers.page import running_page
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> None:
    """Not looked at here: the page keeps its connections to the gateway of this process."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("gateway"), OMNI) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def page(gateway: RunningGateway) -> Iterator[str]:
    with running_page(gateway.url) as url:
        yield url


def talking(page: str, origin: Any = None) -> ClientConnection:
    return connect(f"{page.replace('http', 'ws', 1)}/talk", open_timeout=600, origin=origin)


def test_events_are_passed_on_both_ways(page: str, gateway: RunningGateway) -> None:
    with talking(page, origin=page) as socket:
        assert json.loads(socket.recv(timeout=600))["type"] == "session.created"
        socket.send(json.dumps({"type": "response.create"}))
        kinds = []
        while "response.done" not in kinds:
            kinds.append(json.loads(socket.recv(timeout=600))["type"])
        assert "response.output_audio.delta" in kinds
    gateway.wait_until_idle()


def test_a_browser_that_leaves_ends_the_session(page: str, gateway: RunningGateway) -> None:
    with talking(page) as socket:
        socket.recv(timeout=600)
        content = [{"type": "input_text", "text": "endless"}]
        item = {"type": "message", "role": "user", "content": content}
        socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        socket.send(json.dumps({"type": "response.create"}))
        while json.loads(socket.recv(timeout=600))["type"] != "response.output_audio.delta":
            pass
    gateway.wait_until_idle()


def test_a_page_of_another_site_is_refused(page: str) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        talking(page, origin="http://evil.example")


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with running_page("http://127.0.0.1:9") as page, talking(page) as socket:
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(timeout=600)
        assert closed.value.rcvd is not None
        assert "127.0.0.1:9" in closed.value.rcvd.reason
