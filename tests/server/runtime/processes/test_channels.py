"""The channels of a run: how much they carry."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.channels.notes import NOTES, Note
from support.gateway.serving import OMNI

from omnistage.connectors import make_connector
from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.connectors.contract import ChannelUsage
from omnistage.server.endpoints.present import by_ends
from omnistage.server.http.body_limit import MAX_BODY_BYTES
from omnistage.server.runtime.processes.channels import (
    GATEWAY_CONNECTOR,
    REQUESTS_ARENA_MB,
    Channels,
)
from omnistage.server.tasks.images.schema import MAX_SIDE
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.kinds import Kind
from omnistage.stages.messages.body import Chat
from omnistage.stages.messages.to_stage import TO_STAGE, Request


def test_the_largest_body_fits_the_channel_of_requests(run_directory: Path) -> None:
    connector = make_connector(GATEWAY_CONNECTOR, run_directory, {"arena_mb": REQUESTS_ARENA_MB})
    connector.create("requests")
    sender, receiver = connector.sender("requests"), connector.receiver("requests", TO_STAGE)
    for index in range(3):
        sender.send(Chunk("a", Request(Chat({"text": "x" * MAX_BODY_BYTES}), ["text"]), index))
        got = receiver.receive()
        assert got is not None
        assert isinstance(got.message, Request)
        assert len(got.message.fields["text"]) == MAX_BODY_BYTES
    sender.close()
    receiver.close()
    connector.destroy("requests")


def test_channels_are_counted_as_long_as_they_are_there(run_directory: Path) -> None:
    graph = StageGraph.model_validate(OMNI)
    channels = Channels(graph, run_directory, make_connector)
    assert dict(channels.usages()) == {}
    channels.create()
    assert len(dict(channels.usages())) == 2 * len(graph.stages) + 3 * len(graph.edges)
    sender = channels.gateway.sender("gateway.thinker")
    sender.send(Chunk("a", Note()))
    counts = {address: usage.num_sent for address, usage in channels.usages() if usage.num_sent}
    assert counts == {"gateway.thinker": 1}
    channels.renew("thinker")
    assert not any(usage.num_sent for _, usage in channels.usages())
    sender.close()
    channels.destroy()
    assert dict(channels.usages()) == {}


def test_stages_with_several_engines_have_a_channel_for_each_pair(run_directory: Path) -> None:
    told: Any = OMNI
    stages = {name: dict(stage) for name, stage in told["stages"].items()}
    stages["thinker"]["engine"] = {"data_parallel_size": 2}
    stages["talker"]["engine"] = {"data_parallel_size": 3, "tensor_parallel_size": 2}
    graph = StageGraph.model_validate({**told, "stages": stages})
    channels = Channels(graph, run_directory, make_connector)
    channels.create()
    made = {address for address, _ in channels.usages()}
    pairs = {f"thinker.talker.rows.{a}.{b}" for a in range(2) for b in range(3)}
    assert pairs == {one for one in made if one.startswith("thinker.talker.rows")}
    feeds = {f"thinker.talker.feed.0.{lane}" for lane in range(3)}
    assert feeds == {one for one in made if one.startswith("thinker.talker.feed")}
    codes = {f"talker.code2wav.rows.{lane}.0" for lane in range(3)}
    assert codes == {one for one in made if one.startswith("talker.code2wav.rows")}
    assert "thinker.talker.open" in made
    channels.destroy()


def test_the_channels_of_lanes_are_one_for_who_measures() -> None:
    one, other = ChannelUsage(*range(1, 9)), ChannelUsage(*range(10, 18))
    usages = {"a.b.rows.0.0": one, "a.b.rows.1.0": other, "a.b.open": one}
    assert by_ends(usages) == {
        ("a", "b", "rows", "0"): ChannelUsage(11, 13, 15, 17, 19, 21, 23, 25),
        ("a", "b", "open", "0"): one,
    }


def test_a_stage_that_feeds_itself_has_a_channel_for_it_that_is_renewed_with_it(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "vllm.text", Kind("a:B", frozenset({"text"}), feeds_itself=True))
    alone = {"stages": {"one": {"kind": "vllm.text"}}, "outputs": {"text": "one"}}
    graph = StageGraph.model_validate({"model": "a", **alone})
    channels = Channels(graph, run_directory, make_connector)
    channels.create()
    sender = channels.gateway.sender("one.one.feed")
    receiver = channels.gateway.receiver("one.one.feed", NOTES)
    sender.send(Chunk("a", Note()))
    channels.renew("one")
    assert receiver.receive() is None
    sender.send(Chunk("b", Note(), last=True))
    got = receiver.receive()
    assert got is not None
    assert got.request_id == "b"
    sender.close()
    receiver.close()
    channels.destroy()
    assert not list(run_directory.glob("one.one.feed*"))


@pytest.mark.parametrize("address", ["dit.gateway", "gateway.dit"])
def test_the_largest_picture_fits_the_channels_of_its_stage(
    run_directory: Path, address: str
) -> None:
    graph = StageGraph.model_validate(
        {"model": "a", "stages": {"dit": {"kind": "diffusers"}}, "outputs": {"image": "dit"}}
    )
    channels = Channels(graph, run_directory, make_connector)
    channels.create()
    sender = channels.gateway.sender(address)
    receiver = channels.gateway.receiver(address, NOTES)
    pixels = Tensor.from_numpy(np.zeros((MAX_SIDE, MAX_SIDE, 4), np.uint8))
    for index in range(2):
        sender.send(Chunk("a", Note(), index, {"pixels": pixels}))
        got = receiver.receive()
        assert got is not None
        assert got.tensors["pixels"].num_bytes == pixels.num_bytes
        receiver.grant("a")
    sender.close()
    receiver.close()
    channels.destroy()
