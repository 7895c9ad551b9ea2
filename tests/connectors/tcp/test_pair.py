"""Both links of one machine: a loss is told once, links are started again, nothing is left."""

import os
import select
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.channels.nodes import chunk, received
from support.channels.notes import NOTES
from support.waiting import wait_until

from omnistage.connectors import connector_type, make_connector
from omnistage.connectors.tcp.connector import pair_of
from omnistage.connectors.tcp.node_link import NodeLink
from omnistage.connectors.tcp.orders import LinkEnded, PeerLost, PeerUp


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("name", ["near", "far"])
def test_a_lost_link_is_told_once_and_started_again(
    name: str, blow: signal.Signals, tmp_path: Path
) -> None:
    connector = make_connector("tcp", tmp_path, {})
    for address in ("a.b.open", "a.b.rows"):
        connector.create(address)
    sender, receiver = connector.sender("a.b.rows"), connector.receiver("a.b.rows", NOTES)
    sender.send(chunk("old"))
    assert received(receiver).request_id == "old"
    tells = connector_type("tcp").losses
    assert tells is not None
    losses = tells(tmp_path)
    assert losses is not None
    assert losses.losses() == ()

    pair = pair_of(tmp_path)
    assert pair is not None
    link = pair.near if name == "near" else pair.far
    struck = link.pid
    os.kill(struck, blow)
    lost: Sequence[str] = ()
    while not lost:
        assert select.select([losses.fileno()], [], [], 60)[0]
        lost = losses.losses()  # which starts a link
    assert list(lost) == ["a.b.open", "a.b.rows"]
    assert sender.flush() == 0
    assert sender.num_requests == 0
    assert receiver.receive() is None
    assert receiver.num_requests == 0

    sender.send(chunk("new", 1))
    assert received(receiver).request_id == "new"
    assert losses.losses() == ()
    assert link.pid != struck
    assert not Path("/proc", str(struck)).exists()
    pids = pair.near.pid, pair.far.pid
    sender.close()
    receiver.close()
    for address in ("a.b.open", "a.b.rows"):
        connector.destroy(address)
    assert tells(tmp_path) is None
    assert not list(tmp_path.iterdir())
    wait_until(lambda: not any(Path("/proc", str(pid)).exists() for pid in pids))


class Told:
    """Holds back what a link has told until somebody hears it."""

    def __init__(self, link: NodeLink, patch: pytest.MonkeyPatch) -> None:
        self._events: list[PeerUp | PeerLost | LinkEnded] = []
        patch.setattr(link, "events", self._hear)

    def add(self, *events: PeerUp | PeerLost | LinkEnded) -> None:
        self._events += events

    def _hear(self) -> list[PeerUp | PeerLost | LinkEnded]:
        heard, self._events = self._events, []
        return heard


@pytest.mark.parametrize("is_near", [True, False])
def test_a_loss_counts_once_though_a_link_is_up_before_the_other_tells_of_it(
    is_near: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connector = make_connector("tcp", tmp_path, {})
    connector.create("c")
    pair = pair_of(tmp_path)
    assert pair is not None
    killed, late = (
        Told(link, monkeypatch) for link in (pair.near, pair.far)[:: 1 if is_near else -1]
    )
    up, ended, lost = PeerUp("peer", 0), LinkEnded("signal 9"), PeerLost("peer", "it ended")
    for link in (killed, late):
        link.add(up)
    assert pair.losses() == ()
    for _ in range(2):
        killed.add(ended)
        assert pair.losses() == ["c"]
        killed.add(up)
        assert pair.losses() == ()
        late.add(lost)
        assert pair.losses() == ()
        late.add(up)
        assert pair.losses() == ()
    killed.add(ended, up)
    assert pair.losses() == ["c"]
    killed.add(ended)  # and once more, of which the other has not yet told at all
    assert pair.losses() == ["c"]
    connector.destroy("c")


def test_who_only_opens_an_end_starts_no_link(tmp_path: Path) -> None:
    owner = make_connector("tcp", tmp_path, {})
    owner.create("c")
    pair = pair_of(tmp_path)
    other = make_connector("tcp", tmp_path, {})
    for end in (other.sender("c"), other.receiver("c", NOTES)):
        end.close()
    assert pair_of(tmp_path) is pair
    owner.destroy("c")
    owner.destroy("c")
    assert pair_of(tmp_path) is None
