"""Admin endpoints over fake stages: who may ask, what is told to whom, what happens meanwhile."""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.gateway import MODEL, OMNI, RunningGateway, running_gateway
from support.waiting import wait_until

from omnistage.server.http.access.keys import Keys
from omnistage.stages.messages.to_gateway import CommandResult, Failed, Lora

CHAT = "/v1/chat/completions"
KEY = {"authorization": "Bearer sk-admin"}
STAGES = ["thinker", "talker", "code2wav"]


def chat(script: str = "words", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": script}], **more}


class Guarded:
    """A gateway with an admin key, and a client that has it."""

    def __init__(self, gateway: RunningGateway, client: httpx.Client) -> None:
        self.gateway = gateway
        self.client = client
        self.told: list[tuple[str, str, Mapping[str, Any]]] = []
        stages = gateway.stages
        default = stages.obey

        def obey(stage: str, command: str, arguments: Mapping[str, Any]) -> Any:
            self.told.append((stage, command, arguments))
            return default(stage, command, arguments)

        stages.obey = obey

    def post(self, path: str, /, **body: Any) -> httpx.Response:
        return self.client.post(f"/admin/{path}", json=body)

    def ready_again(self, loras: list[Lora] | None = None, /, **commands: str) -> None:
        """The thinker takes these commands only, and has these adapters as models."""

        def become_ready() -> None:
            self.gateway.stages.commands = commands
            self.gateway.stages.loras = loras
            self.gateway.stages.stages["thinker"].become_ready()

        self.gateway.do(become_ready)

    def all_ready_again(self, **commands: str) -> None:
        """All stages take these commands only."""

        def become_ready() -> None:
            self.gateway.stages.commands = commands
            for stage in self.gateway.stages.stages.values():
                stage.become_ready()

        self.gateway.do(become_ready)


@pytest.fixture
def command_s() -> float:
    """How long a command may take."""
    return 60.0


SOON = pytest.mark.parametrize("command_s", [0.5])


@pytest.fixture
def admin(tmp_path: Path, command_s: float) -> Iterator[Guarded]:
    graph = {**OMNI, "deadlines": {"command_s": command_s}}
    with (
        running_gateway(tmp_path, graph, admin_keys=Keys(["sk-admin"])) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600, headers=KEY) as client,
    ):
        yield Guarded(gateway, client)


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


def until_awake(admin: Guarded) -> None:
    def thinker() -> Any:
        return admin.client.get("/health").json()["stages"]["thinker"]

    wait_until(lambda: thinker()["state"] == "ready")
    assert thinker()["asleep"] == []


# Adapters as models

INK = Lora("ink", "/loras/ink", 8)
LORA_COMMANDS = dict.fromkeys(("add_lora", "remove_lora", "pin_lora", "list_loras"), "")


def with_loras(admin: Guarded) -> None:
    """The thinker has one from its start, and adds and removes others as an engine does."""
    admin.ready_again([INK], **LORA_COMMANDS)
    there = {"ink": msgspec.to_builtins(INK)}

    def obey(stage: str, command: str, arguments: Mapping[str, Any]) -> Any:
        admin.told.append((stage, command, arguments))
        if command == "add_lora":
            there[arguments["name"]] = msgspec.to_builtins(
                Lora(arguments["name"], arguments["path"], 4)
            )
        elif command == "remove_lora" and arguments["name"] not in there:
            return CommandResult(
                error=Failed(400, "unknown", "invalid_request_error", stage, "name")
            )
        elif command == "remove_lora":
            del there[arguments["name"]]
        return CommandResult({"loras": list(there.values())})

    admin.gateway.stages.obey = obey


def names(admin: Guarded) -> list[str]:
    return [card["id"] for card in admin.client.get("/v1/models").json()["data"]]


def last_body(admin: Guarded) -> dict[str, Any]:
    return admin.gateway.stages.stages["thinker"].last_body


def test_an_adapter_is_listed_with_its_parent_and_asked_by_its_name(admin: Guarded) -> None:
    with_loras(admin)
    assert names(admin) == [MODEL, "ink"]
    card = admin.client.get("/v1/models/ink").json()
    assert (card["parent"], card["root"]) == (MODEL, "/loras/ink")
    assert "parent" not in admin.client.get(f"/v1/models/{MODEL}").json()
    answer = admin.client.post(CHAT, json=chat(model="ink"))
    assert answer.json()["model"] == "ink"
    assert last_body(admin)["model"] == "ink"
    answer = admin.client.post("/v1/completions", json={"model": "ink", "prompt": "a"})
    assert answer.json()["model"] == "ink"
    assert last_body(admin)["model"] == "ink"
    answer = admin.client.post("/v1/responses", json={"model": "ink", "input": "words"})
    assert answer.json()["model"] == "ink"
    assert last_body(admin)["model"] == "ink"
    assert admin.client.post(CHAT, json=chat()).json()["model"] == MODEL
    assert "model" not in last_body(admin)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "Hi."}),
        ("/tokenize", {"messages": [{"role": "user", "content": "Hi."}]}),
        ("/detokenize", {"tokens": [72, 105, 46]}),
    ],
)
def test_tokens_of_an_adapter_are_those_of_its_model(
    path: str, body: dict[str, Any], admin: Guarded
) -> None:
    with_loras(admin)
    answers = [admin.client.post(path, json={**body, "model": name}) for name in (MODEL, "ink")]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    refused = admin.client.post(path, json={**body, "model": "oil"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


def test_adapters_that_are_added_and_removed_come_and_go_as_models(admin: Guarded) -> None:
    with_loras(admin)
    admin.post("lora/add", name="oil", path="/loras/oil")
    assert names(admin) == [MODEL, "ink", "oil"]
    assert admin.client.post(CHAT, json=chat(model="oil")).status_code == 200
    admin.post("lora/remove", name="oil")
    assert names(admin) == [MODEL, "ink"]
    refused = admin.client.post(CHAT, json=chat(model="oil"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


def test_vllms_own_requests_add_and_remove_adapters(admin: Guarded) -> None:
    with_loras(admin)
    body = {"lora_name": "oil", "lora_path": "/loras/oil"}
    added = admin.client.post("/v1/load_lora_adapter", json=body)
    assert (added.status_code, added.text) == (
        200,
        "Success: LoRA adapter 'oil' added successfully.",
    )
    told = {"name": "oil", "path": "/loras/oil", "weight_name": None, "pinned": False}
    assert admin.told == [("thinker", "add_lora", told)]
    assert names(admin) == [MODEL, "ink", "oil"]
    removed = admin.client.post("/v1/unload_lora_adapter", json={"lora_name": "oil"})
    assert removed.text == "Success: LoRA adapter 'oil' removed successfully."
    assert names(admin) == [MODEL, "ink"]
    unknown = admin.client.post("/v1/unload_lora_adapter", json={"lora_name": "oil"})
    assert unknown.json()["error"]["param"] == "lora_name"
    for more in ({"load_inplace": True}, {"is_3d_lora_weight": True}, {"rank": 8}):
        refused = admin.client.post("/v1/load_lora_adapter", json={**body, **more})
        assert refused.json()["error"]["param"] == next(iter(more))
    without = httpx.post(f"{admin.gateway.url}/v1/load_lora_adapter", json=body)
    assert without.status_code == 401


def test_vllms_own_requests_want_the_admin_key_alone(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"keys": Keys(["sk-user"]), "admin_keys": Keys(["sk-admin"])}
    with running_gateway(tmp_path, OMNI, **keys) as gateway:
        url, body = f"{gateway.url}/v1/unload_lora_adapter", {"lora_name": "ink"}
        user = {"authorization": "Bearer sk-user"}
        assert httpx.post(url, json=body, headers=user).status_code == 401
        asked = httpx.post(url, json=body, headers=KEY)
        assert asked.json()["error"]["code"] == "unsupported_command"


def test_adapters_of_a_pipeline_are_no_models(admin: Guarded) -> None:
    admin.ready_again(None, **LORA_COMMANDS)
    there = CommandResult({"loras": [{"name": "ink", "path": "ink.safetensors", "pinned": False}]})
    admin.gateway.stages.obey = lambda *_: there
    admin.post("lora/add", name="ink", path="ink.safetensors", stages=["thinker"])
    assert names(admin) == [MODEL]


def test_adapters_are_forgotten_with_the_process_that_had_them(admin: Guarded) -> None:
    with_loras(admin)
    admin.post("lora/add", name="oil", path="/loras/oil")
    admin.gateway.do(lambda: admin.gateway.stages.stages["thinker"].die("signal SIGKILL"))
    until_awake(admin)
    assert names(admin) == [MODEL, "ink"]


def test_of_a_model_with_several_names_each_is_the_model_and_the_first_an_adapter_s_parent(
    tmp_path: Path,
) -> None:
    graph = {**OMNI, "served_model_name": ["first", "second"]}
    with (
        running_gateway(tmp_path, graph, admin_keys=Keys(["sk-admin"])) as gateway,
        httpx.Client(base_url=gateway.url, timeout=600, headers=KEY) as client,
    ):
        admin = Guarded(gateway, client)
        with_loras(admin)
        assert names(admin) == ["first", "second", "ink"]
        assert client.get("/v1/models/ink").json()["parent"] == "first"
        for name, answered in (("second", "first"), ("ink", "ink")):
            answer = client.post(CHAT, json=chat(model=name))
            assert answer.json()["model"] == answered
            assert last_body(admin).get("model") == (name if name == "ink" else None)
