"""Everything beside chat: models, health, readiness, errors of routing."""

from pathlib import Path

import httpx
import pytest
from openai import OpenAI
from support.api.described import assert_described
from support.api.openai_answers import strict_client
from support.fakes.stages import LENGTHS
from support.gateway.serving import MODEL, OMNI, TEXT_ONLY, RunningGateway, running_gateway
from support.waiting import wait_until

from omnistage.stages.vllm.family import TEXT_ONLY as NOTE


def test_models(openai: OpenAI, client: httpx.Client) -> None:
    (model,) = openai.models.list().data
    assert model.id == MODEL
    assert openai.models.retrieve(MODEL).id == MODEL
    card = client.get(f"/v1/models/{MODEL}")
    assert_described(client, card, "/v1/models/{name}")
    assert card.json()["output_modalities"] == ["text", "audio"]
    assert card.json()["max_model_len"] == LENGTHS["thinker"]
    assert "note" not in card.json()
    response = client.get("/v1/models/other/one")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


def test_a_model_that_is_served_in_part_says_so(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, {**TEXT_ONLY, "note": NOTE}) as gateway,
        httpx.Client(base_url=gateway.url) as client,
        strict_client(gateway.url) as openai,
    ):
        assert_described(client, client.get("/v1/models"))
        (model,) = openai.models.list().data
        more = {"output_modalities": ["text"], "max_model_len": LENGTHS["thinker"]}
        assert model.model_extra == {**more, "note": NOTE}


def test_a_length_is_unknown_until_the_stage_has_loaded_and_of_pictures_there_is_none(
    tmp_path: Path, images_client: httpx.Client
) -> None:
    with (
        running_gateway(tmp_path, TEXT_ONLY, loading=frozenset({"thinker"})) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        (model,) = client.get("/v1/models").json()["data"]
        assert model["max_model_len"] is None
        assert client.get("/ping").status_code == 503
    (model,) = images_client.get("/v1/models").json()["data"]
    assert "max_model_len" not in model


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_ping_is_answered_when_all_is_ready(method: str, client: httpx.Client) -> None:
    assert client.request(method, "/ping").status_code == 200


def test_the_load_is_how_many_requests_have_a_place(
    gateway: RunningGateway, client: httpx.Client
) -> None:
    gateway.wait_until_idle()
    wait_until(lambda: client.get("/load").json() == {"server_load": 0})
    body = {"model": MODEL, "messages": [{"role": "user", "content": "endless"}], "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.iter_lines()  # which ends the stream when it is given up
        next(lines)
        told = client.get("/load")
        assert_described(client, told)
        assert told.json() == {"server_load": 1}
    gateway.wait_until_idle()


def test_health_lists_the_stages(client: httpx.Client) -> None:
    stages = client.get("/health").json()["stages"]
    assert set(stages) == {"thinker", "talker", "code2wav"}
    assert {stage["state"] for stage in stages.values()} == {"ready"}


def test_unknown_paths_and_methods_get_the_envelope(client: httpx.Client) -> None:
    for method, path, status in (("GET", "/nothing", 404), ("GET", "/v1/chat/completions", 405)):
        response = client.request(method, path)
        assert response.status_code == status
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert response.headers["x-request-id"]


def test_a_loading_stage_is_not_ready_and_refuses_with_a_time_to_retry(tmp_path: Path) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "words"}]}
    speech = {**body, "modalities": ["text", "audio"], "audio": {"voice": "x", "format": "wav"}}
    with (
        running_gateway(tmp_path, OMNI, loading=frozenset({"talker"})) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        assert client.get("/health").status_code == 200
        ready = client.get("/ready")
        assert ready.status_code == 503
        assert "talker" in ready.json()["error"]["message"]
        refused = client.post("/v1/chat/completions", json=speech)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "server_error"
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        gateway.do(gateway.stages.stages["talker"].become_ready)
        assert client.get("/ready").status_code == 200
