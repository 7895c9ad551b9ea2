"""So many requests at once, and no more."""

import contextlib
from pathlib import Path

import httpx
import pytest
from support.api.bodies import chat_request
from support.fakes.stages import FakeGraph
from support.gateway.serving import MODEL, OMNI, SharedConnector, running_gateway
from support.waiting import wait_until

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.graph import StageGraph

URL = "/v1/chat/completions"


def asked(script: str, stream: bool = False) -> dict[str, object]:
    messages = [{"role": "user", "content": script}]
    return {"model": MODEL, "messages": messages, "stream": stream}


def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, max_requests=2) as gateway,
        httpx.Client(base_url=gateway.url) as client,
        contextlib.ExitStack() as streams,
    ):
        for _ in range(2):
            streams.enter_context(client.stream("POST", URL, json=asked("endless", stream=True)))
        for stream in (False, True):
            refused = client.post(URL, json=asked("words", stream))
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            error = refused.json()["error"]
            assert (error["type"], error["code"]) == ("server_error", "server_overloaded")
        # What is wrong is wrong also when there is no room.
        assert client.post(URL, json={"messages": []}).status_code == 400
        assert client.get("/v1/models").status_code == 200
        streams.close()
        wait_until(lambda: client.post(URL, json=asked("words")).status_code == 200)


async def test_a_request_that_is_prepared_has_its_place(tmp_path: Path) -> None:
    shared = SharedConnector(tmp_path)
    stages = FakeGraph(shared.connector)
    graph = StageGraph.model_validate(OMNI)
    async with Runtime(graph, tmp_path, stages.launch, shared, 1) as runtime:
        await runtime.fleet.loaded()
        with runtime.flights.admit(["text"]), pytest.raises(ApiError) as caught:
            runtime.flights.admit(["text"])
        assert caught.value.code == "server_overloaded"
        with contextlib.suppress(ZeroDivisionError), runtime.flights.admit(["text"]):
            raise ZeroDivisionError
        with runtime.flights.admit(["text"]) as ticket:
            assert (runtime.flights.num_waiting, runtime.flights.num_running) == (1, 0)
        assert (runtime.flights.num_waiting, runtime.flights.num_running) == (0, 0)
        with pytest.raises(AssertionError, match="given back"):
            ticket.run(chat_request("late", ["text"], {}))
