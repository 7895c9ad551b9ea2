"""Adapters over fake stages: listed, added, removed, forgotten, named as models."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from support.gateway.admin import CHAT, KEY, Guarded, chat, until_awake
from support.gateway.serving import MODEL, OMNI, running_gateway

from omnistage.server.http.access.keys import Keys
from omnistage.stages.messages.to_gateway import CommandResult, Failed, Lora

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
