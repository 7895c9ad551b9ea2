"""GET /health: its schema, and what its status says of stages that ended."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from support.api.described import assert_described
from support.gateway.serving import OMNI, running_gateway
from support.waiting import wait_until

SPOKEN = {
    "messages": [{"role": "user", "content": "words"}],
    "modalities": ["text", "audio"],
    "audio": {"voice": "ethan", "format": "wav"},
}


def health(client: httpx.Client) -> httpx.Response:
    """The answer, which is as it is described."""
    response = client.get("/health")
    assert_described(client, response)
    return response


def state_of(client: httpx.Client, stage: str) -> tuple[int, str]:
    response = health(client)
    return response.status_code, response.json()["stages"][stage]["state"]


def test_health_matches_its_schema(client: httpx.Client) -> None:
    assert client.post("/v1/chat/completions", json=SPOKEN).status_code == 200
    response = health(client)
    assert response.status_code == 200
    assert any(stage["held"] for stage in response.json()["stages"].values())


@pytest.mark.parametrize("change", ["a key more", "a key less", "another type"])
def test_health_has_all_keys_and_no_others(client: httpx.Client, change: str) -> None:
    response = health(client)
    stages: dict[str, Any] = response.json()["stages"]
    changes: dict[str, Callable[[dict[str, Any]], Any]] = {
        "a key more": lambda stage: stage.update(more=1),
        "a key less": lambda stage: stage.pop("asleep"),
        "another type": lambda stage: stage.update(waiting="none"),
    }
    changes[change](stages["talker"])
    other = httpx.Response(200, json={"stages": stages}, request=response.request)
    with pytest.raises(jsonschema.ValidationError):
        assert_described(client, other)


def test_a_stage_that_loads_or_comes_back_is_no_failure_of_the_server(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, frozenset({"talker"})) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        assert state_of(client, "talker") == (200, "loading")
        gateway.stages.is_loading = {"code2wav"}  # it will not come up again
        for generation in (1, 2):
            wait_until(lambda count=generation: len(gateway.stages.launched) == 2 + count)  # type: ignore[misc]
            code2wav = gateway.stages.stages["code2wav"]
            gateway.do(lambda stage=code2wav: stage.die("exit code 1"))  # type: ignore[misc]
        wait_until(lambda: state_of(client, "code2wav") == (200, "dead"))


def test_a_stage_that_was_never_ready_and_ended_is_a_503(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, frozenset({"talker"})) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        gateway.do(lambda: gateway.stages.stages["talker"].die("exit code 1"))
        wait_until(lambda: state_of(client, "talker") == (503, "dead"))
        assert set(health(client).json()["stages"]) == set(OMNI["stages"])


def test_a_stage_that_cannot_be_started_again_is_a_503_and_the_server_still_stops(
    tmp_path: Path,
) -> None:
    with (
        running_gateway(tmp_path, OMNI) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        gateway.stages.unlaunchable = {"talker"}
        gateway.do(lambda: gateway.stages.stages["talker"].die("signal SIGKILL"))
        wait_until(lambda: state_of(client, "talker") == (503, "dead"))
        ended_by = health(client).json()["stages"]["talker"]["ended_by"]
        assert ended_by == "could not be started again: no more processes"
        refused = client.post("/v1/chat/completions", json=SPOKEN)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "stage_unavailable"
        text = {"messages": SPOKEN["messages"]}
        assert client.post("/v1/chat/completions", json=text).status_code == 200
