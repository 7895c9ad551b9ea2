"""Admin endpoints over fake stages: who may ask, what is told to whom, what happens meanwhile."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.gateway.admin import CHAT, KEY, Guarded, chat, until_awake

from omnistage.stages.messages.to_gateway import CommandResult, Failed

STAGES = ["thinker", "talker", "code2wav"]
SOON = pytest.mark.parametrize("command_s", [0.5])


def test_without_an_admin_key_nothing_is_open(client: httpx.Client) -> None:
    for method, path in (("POST", "sleep"), ("GET", "sleeping"), ("GET", "nothing")):
        refused = client.request(method, f"/admin/{path}", headers=KEY, json={})
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "admin_disabled"


@pytest.mark.parametrize("header", [{}, {"authorization": "Bearer sk-adm"}])
def test_only_the_key_opens(header: dict[str, str], admin: Guarded) -> None:
    url = f"{admin.gateway.url}/admin/sleep"
    refused = httpx.post(url, json={}, headers=header)
    assert refused.status_code == 401
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert not admin.told


def test_a_whole_graph_sleeps_and_wakes(admin: Guarded) -> None:
    asleep = {"stages": {name: {"asleep": ["weights"]} for name in STAGES}}
    assert admin.post("sleep", level=2).json() == asleep
    assert admin.client.get("/admin/sleeping").json() == asleep
    assert admin.told == [(name, "sleep", {"level": 2, "tags": None}) for name in STAGES]
    refused = admin.client.post(CHAT, json=chat())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "sleeping")
    assert int(refused.headers["Retry-After"]) > 0
    assert admin.client.get("/ready").status_code == 503
    assert admin.client.get("/health").json()["stages"]["talker"]["asleep"] == ["weights"]
    woken = admin.post("wake", tags=["weights"])
    assert woken.json() == {"stages": {name: {"asleep": []} for name in STAGES}}
    assert admin.client.post(CHAT, json=chat()).status_code == 200
    assert admin.client.get("/ready").status_code == 200


def test_one_stage_sleeps_and_the_others_serve(admin: Guarded) -> None:
    assert admin.post("sleep", stages=["code2wav"]).status_code == 200
    assert admin.told == [("code2wav", "sleep", {"level": 1, "tags": None})]
    assert admin.client.post(CHAT, json=chat()).status_code == 200
    spoken = chat(modalities=["text", "audio"], audio={"voice": "ethan", "format": "wav"})
    assert admin.client.post(CHAT, json=spoken).json()["error"]["code"] == "sleeping"


def test_requests_in_flight_finish_before_their_stage_sleeps(admin: Guarded) -> None:
    with ThreadPoolExecutor() as pool:
        body = chat("endless", stream=True)
        with admin.client.stream("POST", CHAT, json=body) as response:
            lines = response.iter_lines()
            next(lines)
            sleeping = pool.submit(admin.post, "sleep")
            while (refused := httpx.post(admin.gateway.url + CHAT, json=chat())).is_success:
                continue
            assert refused.json()["error"]["code"] == "sleeping"
            assert not admin.told
            next(lines)
        assert sleeping.result(600).status_code == 200
    assert len(admin.told) == len(STAGES)


@SOON
def test_a_request_that_does_not_end_keeps_its_stage_awake(admin: Guarded) -> None:
    with admin.client.stream("POST", CHAT, json=chat("endless", stream=True)) as response:
        lines = response.iter_lines()
        next(lines)
        refused = httpx.post(f"{admin.gateway.url}/admin/sleep", json={}, headers=KEY)
        next(lines)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
    assert not admin.told
    assert admin.client.post(CHAT, json=chat()).status_code == 200


def test_what_one_stage_cannot_is_refused_for_all(admin: Guarded) -> None:
    admin.ready_again(sleep="start it with enable_sleep_mode")
    refused = admin.post("sleep")
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "unsupported_command")
    assert error["message"] == "Stage thinker refuses sleep: start it with enable_sleep_mode."
    assert not admin.told
    assert admin.client.post(CHAT, json=chat()).status_code == 200
    assert "does not know" in admin.post("wake").json()["error"]["message"]


def test_a_command_goes_to_the_stages_that_take_it(admin: Guarded) -> None:
    admin.ready_again()
    lora = {"name": "ink", "path": "ink.safetensors"}
    told = {**lora, "weight_name": None, "pinned": False}
    answer = admin.post("lora/add", **lora).json()
    assert answer == {"stages": {name: told for name in STAGES if name != "thinker"}}
    assert set(admin.client.get("/admin/lora").json()["stages"]) == {"talker", "code2wav"}
    refused = admin.post("profile/start", prefix="a").json()["error"]
    assert refused["code"] == "unsupported_command"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("sleep", {"stages": ["thinker", "dit"]}, "stages[1]"),
        ("sleep", {"stages": []}, "stages"),
        ("sleep", {"level": 3}, "level"),
        ("sleep", {"tags": ["a/b"]}, "tags[0]"),
        ("wake", {"level": 1}, "level"),
        ("lora/add", {"name": "a"}, "path"),
        ("lora/remove", {"name": "../a"}, "name"),
        ("profile/start", {"prefix": "../a"}, "prefix"),
    ],
)
def test_a_wrong_field_is_named(
    path: str, body: dict[str, Any], param: str, admin: Guarded
) -> None:
    refused = admin.post(path, **body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == param
    assert not admin.told


def test_a_refusal_of_a_stage_is_passed_on(admin: Guarded) -> None:
    failed = Failed(400, "no such file", "invalid_request_error", "thinker")
    admin.gateway.stages.obey = lambda *_: CommandResult(error=failed)
    refused = admin.post("lora/add", name="a", path="b")
    assert (refused.status_code, refused.json()["error"]["message"]) == (400, "no such file")


def test_a_stage_without_a_profile_leaves_the_others_their_files(admin: Guarded) -> None:
    none = Failed(409, "no profile runs", "invalid_request_error", "a", code="not_profiling")
    idle = {"talker"}

    def obey(stage: str, command: str, arguments: Mapping[str, Any]) -> CommandResult:
        return CommandResult(error=none) if stage in idle else CommandResult({"file": f"/{stage}"})

    admin.all_ready_again(stop_profile="")
    admin.gateway.stages.obey = obey
    files = {"thinker": {"file": "/thinker"}, "code2wav": {"file": "/code2wav"}}
    answer = admin.post("profile/stop")
    assert answer.json() == {"stages": {**files, "talker": {"files": []}}}
    idle |= set(STAGES)
    for named in ({}, {"stages": ["talker"]}):
        refused = admin.post("profile/stop", **named)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_profiling")


@SOON
def test_a_stage_that_says_nothing_is_late(admin: Guarded) -> None:
    admin.gateway.stages.obey = lambda *_: None
    refused = admin.post("sleep", stages=["thinker"])
    assert (refused.status_code, refused.json()["error"]["code"]) == (504, "stage_timeout")
    assert admin.client.post(CHAT, json=chat()).status_code == 200


def test_a_stage_that_dies_answers_for_its_command_and_wakes_up(admin: Guarded) -> None:
    assert admin.post("sleep").status_code == 200
    thinker = admin.gateway.stages.stages["thinker"]

    def die(*_: Any) -> None:
        thinker.die("signal SIGKILL")

    admin.gateway.stages.obey = die
    refused = admin.post("wake", stages=["thinker"])
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (503, "stage_unavailable")
    assert "thinker" in error["message"]
    assert "SIGKILL" in error["message"]
    until_awake(admin)
    assert admin.client.post(CHAT, json=chat()).status_code == 200
