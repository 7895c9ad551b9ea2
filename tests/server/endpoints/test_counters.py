"""The page of metrics is made in no time, however many requests there are."""

import asyncio
import time
from pathlib import Path

from support.api.bodies import chat_request
from support.fakes.stages import FakeGraph
from support.gateway.serving import OMNI, SharedConnector, outputs_of
from support.waiting import until

from omnistage.connectors.chunk import Chunk
from omnistage.server.endpoints.counters import RequestCounters as Counters
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph
from omnistage.stages.messages.families import MetricFamily
from omnistage.stages.messages.to_gateway import ABOUT_ITSELF, Metrics

NUM_REQUESTS = 1000
MOST_S = 0.01


def as_many_as_an_engine_has(stage: str) -> Metrics:
    """Families and series of one of vLLM's."""
    families = []
    for number in range(45):
        name = f"family_{number}"
        lines = [
            f'{name}{{engine="0",number="{line}",stage="{stage}"}} 1.0\n' for line in range(13)
        ]
        heading = f"# HELP {name} What it is.\n# TYPE {name} gauge\n"
        families.append(MetricFamily(name, heading, "".join(lines)))
    return Metrics(families)


async def test_a_page_at_1000_requests_in_flight_takes_less_than_10_ms(tmp_path: Path) -> None:
    """Of this thread's time on a CPU: what others take of the machine is not the page's."""
    shared = SharedConnector(tmp_path, arena_mb=4)
    stages = FakeGraph(shared.connector)
    graph = StageGraph.model_validate(OMNI)

    async def ask(runtime: Runtime, number: int, script: str) -> None:
        body = {"messages": [{"role": "user", "content": script}]}
        async for _ in outputs_of(runtime, chat_request(f"r{number}", ["text"], body)):
            continue

    async with Runtime(graph, tmp_path, stages.launch, shared, NUM_REQUESTS) as runtime:
        counters = Counters(runtime)
        await until(lambda: not runtime.fleet.unready)
        scripts = ("hang", "pause")
        asking = [
            asyncio.create_task(ask(runtime, number, scripts[number % 2]))
            for number in range(NUM_REQUESTS)
        ]
        await until(lambda: runtime.flights.num_running == NUM_REQUESTS // 2)
        for name, stage in stages.stages.items():
            stage.outputs.send(Chunk(ABOUT_ITSELF, as_many_as_an_engine_has(name)))
        records = [link.record for link in runtime.fleet.stages.values()]
        await until(lambda: all(link.record.families for link in runtime.fleet.stages.values()))
        assert not any(record.families for record in records)
        took_s = []
        for _ in range(10):
            began_s = time.thread_time()
            page = counters.page()
            took_s.append(time.thread_time() - began_s)
        assert "omnistage_num_requests_running 500.0\n" in page
        assert "omnistage_num_requests_waiting 500.0\n" in page
        assert page.count("\nfamily_") == 3 * 45 * 13
        assert min(took_s) < MOST_S, took_s
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
