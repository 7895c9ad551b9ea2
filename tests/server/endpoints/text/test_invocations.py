"""POST /invocations answers as the endpoint whose fields a body has."""

from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway.serving import EMBEDDING, MODEL, OMNI, running_gateway

from omnistage.server.http.access.keys import Keys

URL = "/invocations"
TURN = [{"role": "user", "content": "words"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURN, "seed": 3},
    "/v1/completions": {"prompt": "words", "logprobs": 1},
}


def without_names(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer but for its id and its time."""
    return {name: value for name, value in answer.items() if name not in ("id", "created")}


@pytest.mark.parametrize("path", BODIES)
def test_a_body_says_whose_answer_it_wants(path: str, client: httpx.Client) -> None:
    body = {"model": MODEL, **BODIES[path]}
    answer, expected = client.post(URL, json=body), client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    assert without_names(answer.json()) == without_names(expected.json())
    streams = [client.post(url, json={**body, "stream": True}).text for url in (URL, path)]
    assert streams[0].count("data: ") == streams[1].count("data: ") > 3


def test_an_embedding_model_answers_with_vectors(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, EMBEDDING) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        answers = [client.post(url, json={"input": "a"}).json() for url in (URL, "/v1/embeddings")]
    assert answers[0] == answers[1]
    assert answers[0]["data"][0]["embedding"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"text": "words"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": TURN, "temperature": 9}, "temperature"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "words", "suffix": "x"}, "suffix"),
    ],
)
def test_a_refusal_is_the_endpoint_s(
    body: dict[str, Any], param: str, client: httpx.Client
) -> None:
    response = client.post(URL, json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


def test_it_wants_a_key_where_there_are_keys(tmp_path: Path) -> None:
    with (
        running_gateway(tmp_path, OMNI, keys=Keys(["secret"])) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        body = {"messages": TURN}
        assert client.post(URL, json=body).status_code == 401
        allowed = {"Authorization": "Bearer secret"}
        assert client.post(URL, json=body, headers=allowed).status_code == 200
