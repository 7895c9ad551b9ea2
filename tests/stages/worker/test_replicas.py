"""Workers of replicas, with the channels that they have between them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api.bodies import chat_request
from support.gateway.serving import outputs_of
from support.stages.in_process import served
from support.waiting import until

from omnistage.server.runtime.request import TextOutput
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.kinds import Kind, Payload, payloads
from omnistage.stages.worker.stage import StagePorts

TEXT = payloads(Payload.TEXT)
WRITES = Kind("support.stages.worker_stage:WritingStage", frozenset(), makes=TEXT, takes=(TEXT,))
JOINS = Kind(
    "support.stages.worker_stage:JoiningStage",
    frozenset({"text"}),
    takes=(TEXT,),
    joins=True,
    is_entry=False,
)
GRAPH: dict[str, Any] = {
    "stages": {
        "a": {"kind": "test.writes"},
        "b": {"kind": "test.writes", "replicas": 2},
        "c": {"kind": "test.writes"},
        "d": {"kind": "test.joins", "replicas": 2},
    },
    "edges": [
        {"from": "a", "to": "b"},
        {"from": "a", "to": "c"},
        {"from": "b", "to": "d"},
        {"from": "c", "to": "d"},
    ],
    "outputs": {"text": "d"},
    "deadlines": {"first_chunk_s": 20},
}


@pytest.fixture
async def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Runtime]:
    monkeypatch.setitem(KINDS, "test.writes", WRITES)
    monkeypatch.setitem(KINDS, "test.joins", JOINS)
    monkeypatch.setattr("omnistage.stages.worker.reports.STATUS_INTERVAL_S", 0.01)
    monkeypatch.setattr("omnistage.stages.worker.stage_worker.visible_gpus", list)
    async with served(StageGraph.model_validate(GRAPH), tmp_path) as running:
        yield running


async def answer(runtime: Runtime, name: str) -> dict[str, str]:
    """What each stage before the last wrote of a request."""
    request = chat_request(name, ["text"], {})
    [output] = [output async for output in outputs_of(runtime, request)]
    assert isinstance(output, TextOutput)
    return dict(output.chunk)


async def test_a_request_meets_one_replica_of_each_stage_also_where_edges_join(
    runtime: Runtime,
) -> None:
    """The stage that joins waits for its stages, not for every replica of them."""
    wrote = await asyncio.gather(*(answer(runtime, f"request-{n}") for n in range(8)))
    assert sorted(one["b"] for one in wrote) == ["b@0"] * 4 + ["b@1"] * 4
    assert {one["c"] for one in wrote} == {"c"}
    records = {name: link.record for name, link in runtime.fleet.stages.items()}
    assert set(records) == {"a", "b@0", "b@1", "c", "d@0", "d@1"}
    links = runtime.fleet.stages
    served = {name: 8 if name in "ac" else 4 for name in links}
    await until(lambda: {n: links[n].record.counters["requests_total"] for n in links} == served)
    await until(lambda: not any(sum(link.record.held.values()) for link in links.values()))


async def test_every_pair_of_replicas_has_channels_of_its_own(runtime: Runtime) -> None:
    await asyncio.gather(*(answer(runtime, f"request-{n}") for n in range(4)))
    usages = runtime.fleet.channel_usages
    fed = {address: use.num_sent for address, use in usages.items() if address.endswith(".feed")}
    assert fed.keys() == {
        *(f"a.{end}.feed" for end in ("b@0", "b@1", "c")),
        *(f"{start}.{end}.feed" for start in ("b@0", "b@1", "c") for end in ("d@0", "d@1")),
    }
    assert fed["a.b@0.feed"] == fed["a.b@1.feed"] == 2
    assert sum(count for address, count in fed.items() if address.startswith("b@")) == 4


def test_replicas_share_what_goes_by_their_stages_name() -> None:
    ports = [StagePorts(name, "", {}, {}, None) for name in ("talker", "talker@3")]  # type: ignore[arg-type]
    assert [one.stage for one in ports] == ["talker", "talker"]
