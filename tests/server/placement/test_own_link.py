"""The link of a node, as the event loop of its owner hears it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.channels.nodes import PATIENT

from omnistage.connectors.tcp.node_link import NodeLink
from omnistage.server.placement.own_link import OwnLink


@pytest.fixture
async def link(tmp_path: Path) -> AsyncIterator[OwnLink]:
    """One that knows of a peer, where nobody listens."""
    link = OwnLink(NodeLink("one", tmp_path, PATIENT))
    link.meet("two", "127.0.0.1", 1)
    yield link
    link.close()


async def test_a_wait_can_be_cancelled_as_something_is_lost(link: OwnLink) -> None:
    waiting = asyncio.create_task(link.wait(30))
    await asyncio.sleep(0)
    link.restart()
    waiting.cancel()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    assert [loss.peer for loss in link.take()] == ["two"]
