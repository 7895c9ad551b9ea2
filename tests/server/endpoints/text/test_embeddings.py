"""Embeddings: what is refused, what the stage gets, and what the SDK reads."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from support.api.doors import ONE_SHOT
from support.api.openai_answers import strict_client
from support.api.openai_spec import assert_valid
from support.faults.hanging_up import hang_up
from support.gateway.serving import EMBEDDING, MODEL, RunningGateway, running_gateway

from omnistage.server.tasks.embeddings import MAX_INPUTS, EmbeddingRequest
from omnistage.stages.messages.body import Embed

URL = "/v1/embeddings"


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    with running_gateway(tmp_path_factory.mktemp("embedding"), EMBEDDING) as running:
        yield running


@pytest.fixture(scope="module")
def vectors(embedding: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=embedding.url, limits=ONE_SHOT) as connected:
        yield connected


@pytest.fixture(scope="module")
def sdk(embedding: RunningGateway) -> Iterator[OpenAI]:
    with strict_client(embedding.url) as connected:
        yield connected


def body_of(given: Any = "abc", **more: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": given, **more}


def test_vectors_come_in_the_order_of_their_inputs(embedding: RunningGateway, sdk: OpenAI) -> None:
    """The stage sends the last first."""
    asked: Any = {"model": MODEL, "input": ["a", "bb", "ccc"]}
    answer = sdk.embeddings.create(**asked, encoding_format="float")
    assert [one.index for one in answer.data] == [0, 1, 2]
    assert [one.embedding for one in answer.data] == [
        [1.0, 0.0, 4.0, 0.0],
        [2.0, 1.0, 4.0, 0.0],
        [3.0, 2.0, 4.0, 0.0],
    ]
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 6
    # By itself the SDK asks for base64, which its own types do not allow before it is decoded.
    closing = {"Connection": "close"}
    with OpenAI(base_url=f"{embedding.url}/v1", api_key="none", default_headers=closing) as lenient:
        assert lenient.embeddings.create(**asked).data == answer.data


def test_numbers_and_base64_are_the_same_vector(vectors: httpx.Client) -> None:
    answers = [
        vectors.post(URL, json=body_of(encoding_format=form)).json() for form in ("float", "base64")
    ]
    assert_valid(answers[0], "CreateEmbeddingResponse", "embeddings")
    numbers, encoded = (answer["data"][0]["embedding"] for answer in answers)
    assert np.frombuffer(base64.b64decode(encoded), "<f4").tolist() == numbers
    assert answers[0]["usage"] == answers[1]["usage"]


def test_the_stage_gets_inputs_and_dimensions(
    embedding: RunningGateway, vectors: httpx.Client
) -> None:
    cases: list[tuple[Any, Any]] = [("x", ["x"]), ([1, 2], [[1, 2]]), ([[1], [2]], [[1], [2]])]
    for given, expected in cases:
        response = vectors.post(URL, json=body_of(given, dimensions=5, user="me"))
        assert len(response.json()["data"][0]["embedding"]) == 5
        request = embedding.stages.stages["embedding"].last_request
        assert request.outputs == ["embedding"]
        assert request.body == Embed(expected, 5)


def test_as_many_inputs_as_openai_s_are_answered(vectors: httpx.Client) -> None:
    answer = vectors.post(URL, json=body_of(["x"] * MAX_INPUTS), timeout=600).json()
    assert [one["index"] for one in answer["data"]] == list(range(MAX_INPUTS))


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        [],
        [""],
        [[]],
        3,
        [3, "x"],
        ["x", [1]],
        [-1],
        [1.5],
        [True],
        ["x"] * (MAX_INPUTS + 1),
        [1] * 300_001,
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_input_is_refused(given: Any, vectors: httpx.Client) -> None:
    response = vectors.post(URL, json=body_of(given))
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "input", "invalid_value")


@pytest.mark.parametrize("name", sorted(EmbeddingRequest.refused))
def test_a_refused_field_is_refused_by_name(name: str, vectors: httpx.Client) -> None:
    error = vectors.post(URL, json=body_of(**{name: "x"})).json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"dimensions": 0}, "dimensions"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"padding": "max_length"}, "padding"),
    ],
)
def test_wrong_values_are_refused(
    fields: dict[str, Any], param: str, vectors: httpx.Client
) -> None:
    error = vectors.post(URL, json=body_of(**fields)).json()["error"]
    assert (error["param"], error["code"]) == (param, "invalid_value")


def test_a_refusal_of_the_stage_names_the_input(sdk: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refusal:
        sdk.embeddings.create(model=MODEL, input="refuse", encoding_format="float")
    assert refusal.value.param == "input[0]"
    assert_valid(refusal.value.response.json(), "ErrorResponse", "embeddings")


def test_a_client_that_hangs_up_ends_its_request(
    embedding: RunningGateway,
) -> None:
    stage = embedding.stages.stages["embedding"]
    hang_up(embedding.url + URL, lambda: stage.tasks, json=body_of("hang"))
    embedding.wait_until_idle()


def test_tokens_are_counted(vectors: httpx.Client) -> None:
    def count() -> float:
        name = 'omnistage_prompt_tokens_total{modality="embedding"}'
        lines = vectors.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    before = count()
    assert vectors.post(URL, json=body_of(["abc", "de"])).status_code == 200
    assert count() - before == 5


def test_a_model_of_texts_makes_no_vectors(client: httpx.Client) -> None:
    response = client.post(URL, json=body_of())
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "unsupported_model")
    assert error["message"] == "This model makes no embeddings; it makes audio, text."


def test_the_examples_of_its_description_run(vectors: httpx.Client) -> None:
    operation = vectors.get("/openapi.json").json()["paths"][URL]["post"]
    examples = operation["requestBody"]["content"]["application/json"]["examples"]
    assert set(examples) == {"two texts"}
    for example in examples.values():
        response = vectors.post(URL, content=json.dumps(example["value"]), headers=JSON)
        assert response.status_code == 200
        assert "x-omnistage-warning" not in response.headers


JSON = {"content-type": "application/json"}
