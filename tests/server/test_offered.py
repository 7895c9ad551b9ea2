"""How a server offers itself: the names of its model, its defaults, TLS, other sites, a proxy."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.api.described import assert_described
from support.api.doors import ONE_SHOT
from support.certificates import certificate, trusting
from support.gateway.serving import OMNI, RunningGateway, running_gateway

from omnistage.server.http.access.cors import Cors
from omnistage.server.http.access.keys import Keys
from omnistage.stages.messages.to_stage import Request

KEY, SITE = "sk-ann", "https://page.example"
HEADERS = {"authorization": f"Bearer {KEY}"}
FROM_SITE = {**HEADERS, "origin": SITE}
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "words"}]}
SPOKEN = {**BODY, "modalities": ["text", "audio"], "audio": {"voice": "ethan", "format": "pcm16"}}
CHAT, MODELS = "/v1/chat/completions", "/v1/models"
GRAPH = {
    **OMNI,
    "served_model_name": ["first", "org/second"],
    "stages": {
        "thinker": {
            "kind": "qwen3_omni.thinker",
            "default_sampling_params": {"temperature": 0.25, "max_tokens": 77, "min_tokens": 5},
        },
        "talker": {
            "kind": "qwen3_omni.talker",
            "default_sampling_params": {"temperature": 0.5, "top_k": 9},
        },
        "code2wav": {"kind": "qwen3_omni.code2wav"},
    },
}


@dataclass(frozen=True)
class Offered:
    """A gateway with all of it, and a client that trusts its certificate."""

    gateway: RunningGateway
    client: httpx.Client

    def body(self, **more: Any) -> dict[str, Any]:
        """What the entry stage gets of a chat."""
        return self.request(**more).fields

    def request(self, path: str = CHAT, **more: Any) -> Request:
        """What the entry stage gets."""
        answer = self.client.post(path, json=more, headers=HEADERS)
        assert answer.status_code == 200, answer.text
        seen = self.gateway.stages.stages["thinker"].seen
        return [chunk.message for chunk in seen if isinstance(chunk.message, Request)][-1]


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Offered]:
    folder = tmp_path_factory.mktemp("offered")
    tls = certificate(folder)
    how: dict[str, Any] = {"keys": Keys([KEY]), "admin_keys": Keys(["sk-admin"])}
    how |= {"tls": tls, "root_path": "/models/omni", "cors": Cors((SITE,))}
    with (
        running_gateway(folder, GRAPH, **how) as gateway,
        httpx.Client(
            base_url=gateway.url, timeout=600, verify=trusting(tls), limits=ONE_SHOT
        ) as client,
    ):
        yield Offered(gateway, client)


# Names


def test_every_name_is_listed_and_the_first_is_what_answers_carry(offered: Offered) -> None:
    listed = offered.client.get(MODELS, headers=HEADERS)
    assert_described(offered.client, listed)
    assert [model["id"] for model in listed.json()["data"]] == ["first", "org/second"]
    for model in ("first", "org/second", None):
        body = {**BODY, **({"model": model} if model else {})}
        answer = offered.client.post(CHAT, json=body, headers=HEADERS)
        assert answer.json()["model"] == "first"
        if model:
            card = offered.client.get(f"{MODELS}/{model}", headers=HEADERS)
            assert card.json()["id"] == model


@pytest.mark.parametrize("name", [OMNI["model"], "third"])
def test_another_name_is_refused_with_those_that_there_are(offered: Offered, name: str) -> None:
    for answer in (
        offered.client.post(CHAT, json={**BODY, "model": name}, headers=HEADERS),
        offered.client.get(f"{MODELS}/{name}", headers=HEADERS),
    ):
        assert answer.status_code == 404
        error = answer.json()["error"]
        assert error["code"] == "model_not_found"
        assert "this server has 'first', 'org/second'" in error["message"]


def test_no_answer_is_given_the_model_s_folder_in_place_of_its_name() -> None:
    """Answers and refusals use `served_name` and `served_names` of the graph."""
    server = Path(__file__).parents[2] / "server"
    for folder in ("endpoints", "chat", "images", "audio"):
        for path in sorted((server / folder).glob("*.py")):
            assert not re.search(r"graph\.model\b", path.read_text()), path


# Defaults of sampling


def test_defaults_hold_where_a_request_says_nothing(offered: Offered) -> None:
    request = offered.request(**SPOKEN)
    assert request.fields["temperature"] == 0.25
    assert request.fields["max_completion_tokens"] == 77
    assert "max_tokens" not in request.fields
    assert request.stage_params["talker"] == {"temperature": 0.5, "top_k": 9}


def test_what_a_request_says_wins(offered: Offered) -> None:
    asked: dict[str, Any] = {
        "temperature": 0,
        "max_tokens": 3,
        "stage_params": {"talker": {"temperature": 0}},
    }
    request = offered.request(**SPOKEN, **asked)
    assert request.fields["temperature"] == 0
    assert request.fields["max_completion_tokens"] == 3
    assert request.fields["min_tokens"] == 3  # the default of 5 gives way
    assert request.stage_params["talker"] == {"temperature": 0, "top_k": 9}
    own = {"stage_params": {"thinker": {"temperature": 1, "max_tokens": 8}}}
    body = offered.body(**BODY, **own, temperature=0)
    assert (body["temperature"], body["max_completion_tokens"]) == (1, 8)


def test_defaults_hold_for_other_endpoints_too(offered: Offered) -> None:
    body = offered.body(path="/v1/completions", prompt="words")
    assert (body["temperature"], body["max_tokens"]) == (0.25, 77)
    body = offered.body(path="/v1/completions", prompt="words", max_tokens=2)
    assert (body["max_tokens"], body["min_tokens"]) == (2, 2)
    speech = offered.request(path="/v1/audio/speech", input="words", voice="ethan")
    assert speech.stage_params["talker"] == {"temperature": 0.5, "top_k": 9}


# TLS


def test_answers_are_streamed_over_tls(offered: Offered) -> None:
    streamed = {**SPOKEN, "stream": True}
    with offered.client.stream("POST", CHAT, json=streamed, headers=FROM_SITE) as answer:
        assert answer.http_version == "HTTP/1.1"
        assert answer.headers["access-control-allow-origin"] == SITE
        events = [line for line in answer.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert {chunk["model"] for chunk in chunks} == {"first"}
    assert any("data" in (c["delta"].get("audio") or {}) for k in chunks for c in k["choices"])


def test_a_client_that_leaves_amid_a_stream_over_tls_is_noticed(offered: Offered) -> None:
    body = {"messages": [{"role": "user", "content": "endless"}], "stream": True}
    with offered.client.stream("POST", CHAT, json=body, headers=HEADERS) as answer:
        next(answer.iter_lines())
    offered.gateway.wait_until_idle()


def test_who_does_not_speak_tls_gets_no_answer(offered: Offered) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(offered.gateway.url.replace("https", "http") + "/health")


# Pages of other sites


def preflight(offered: Offered, origin: str) -> httpx.Response:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "x-a"}
    return offered.client.options(CHAT, headers={"origin": origin, **asked})


def test_a_browser_s_question_is_answered_before_a_key_is_asked_for(offered: Offered) -> None:
    answer = preflight(offered, SITE)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == SITE
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert answer.headers["access-control-allow-headers"] == "x-a"
    refused = preflight(offered, "https://other.example")
    assert refused.status_code == 400
    assert "access-control-allow-origin" not in refused.headers


def test_a_page_may_read_refusals_and_the_id_of_a_request(offered: Offered) -> None:
    answer = offered.client.get(MODELS, headers={"origin": SITE})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == SITE
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "x-ratelimit-reset-requests", "location", "content-range"} <= {*exposed}
    other = offered.client.get(MODELS, headers={**HEADERS, "origin": "https://other.example"})
    assert "access-control-allow-origin" not in other.headers


# Below a path of a proxy


@pytest.mark.parametrize("below", ["", "/models/omni", "/models/omni/models/omni"])
def test_a_proxy_may_leave_its_path_or_take_it_away_and_keys_are_needed_either_way(
    offered: Offered, below: str
) -> None:
    assert offered.client.get(f"{below}{MODELS}").status_code == 401
    assert offered.client.get(f"{below}/admin/traces").status_code == 401
    assert offered.client.get(f"{below}{MODELS}", headers=HEADERS).status_code == 200
    assert offered.client.get(f"{below}/health").status_code == 200


def test_the_description_says_where_the_api_is(offered: Offered) -> None:
    assert offered.client.get("/openapi.json").json()["servers"] == [{"url": "/models/omni"}]
    assert "/models/omni/openapi.json" in offered.client.get("/docs").text


def test_nothing_of_it_is_there_unless_asked_for(client: httpx.Client) -> None:
    answer = client.get(MODELS, headers={"origin": SITE})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client.get(f"/models/omni{MODELS}").status_code == 404
    assert "servers" not in client.get("/openapi.json").json()
