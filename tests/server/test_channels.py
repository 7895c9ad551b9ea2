"""The channels of a run: how much they carry."""

from pathlib import Path

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk
from omnistage.server.body_limit import MAX_BODY_BYTES
from omnistage.server.channels import GATEWAY_CONNECTOR, REQUESTS_ARENA_MB


def test_the_largest_body_fits_the_channel_of_requests(run_directory: Path) -> None:
    connector = make_connector(GATEWAY_CONNECTOR, run_directory, {"arena_mb": REQUESTS_ARENA_MB})
    connector.create("requests")
    sender, receiver = connector.sender("requests"), connector.receiver("requests")
    for index in range(3):
        sender.send(Chunk("a", "request", index, {}, {"body": "x" * MAX_BODY_BYTES}))
        got = receiver.receive()
        assert got is not None
        assert len(got.meta["body"]) == MAX_BODY_BYTES
    sender.close()
    receiver.close()
    connector.destroy("requests")
