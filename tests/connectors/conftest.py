"""Folders for channels, with one pair of links for all tests that need any."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.channels.channel_ends import NAMES, Ends, Folder
from support.channels.notes import NOTES
from support.channels.settled import settled_connector

from omnistage.connectors import make_connector
from omnistage.connectors.sweep import make_run_directory
from omnistage.connectors.tcp.connector import TcpConnector

KEEPER = "keeper"


@pytest.fixture(scope="session")
def linked_directory() -> Iterator[Path]:
    """A folder whose links run as long as the session."""
    run = make_run_directory()
    keeper = TcpConnector(run.path)
    keeper.create(KEEPER)
    yield run.path
    keeper.destroy(KEEPER)
    run.remove()


@pytest.fixture
def folder_for(tmp_path: Path, linked_directory: Path) -> Iterator[Callable[[str], Path]]:
    """A function from a connector's name to the folder of its channels, none of which may stay."""
    before: dict[Path, set[Path]] = {}

    def folder(name: str) -> Path:
        path = tmp_path / "channels"
        if name == "tcp":
            path = linked_directory
        else:
            path.mkdir(exist_ok=True)
        before.setdefault(path, set(path.iterdir()))
        return path

    yield folder
    for path, files in before.items():
        assert set(path.iterdir()) == files


@pytest.fixture(params=NAMES)
def open_ends(request: pytest.FixtureRequest, folder_for: Folder) -> Iterator[Callable[..., Ends]]:
    """A function that makes a channel with options and opens both ends."""
    opened: list[tuple[str, Ends]] = []
    folder = folder_for(request.param)
    connector = make_connector(request.param, folder, {})

    def make(**options: int) -> Ends:
        address = f"c{len(opened)}"
        connector = settled_connector(request.param, folder, {"arena_mb": 1, **options})
        connector.create(address)
        ends = connector.sender(address), connector.receiver(address, NOTES)
        opened.append((address, ends))  # type: ignore[arg-type]
        return ends  # type: ignore[return-value]

    yield make
    for address, (sender, receiver) in opened:
        sender.close()
        receiver.close()
        connector.destroy(address)
