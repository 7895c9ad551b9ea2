"""Who may ask: keys from flags and files, and the 401 for everybody else."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import AuthenticationError, OpenAI
from support.gateway.serving import IMAGES, MODEL, OMNI, RunningGateway, running_gateway

from omnistage.server.http.access.keys import Keys

BODY = {"model": MODEL, "messages": [{"role": "user", "content": "words"}]}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "keys"
    file.write_text("# people\nsk-ann\n\n  sk-bob  \n")
    with running_gateway(folder, OMNI, keys=Keys.read(["sk-cleo"], file)) as running:
        yield running


@pytest.mark.parametrize("key", ["sk-ann", "sk-bob", "sk-cleo"])
def test_every_key_opens_the_door(key: str, guarded: RunningGateway) -> None:
    headers = {"authorization": f"bearer {key}"}
    url = f"{guarded.url}/v1/chat/completions"
    assert httpx.post(url, json=BODY, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer sk-an", "Bearer sk-annn", "Bearer # people", "sk-ann",
     "Basic sk-ann", "Bearer sk-ann, Bearer sk-bob", "Bearer \u00e9", "Bearer " + "x" * 20_000],
)  # fmt: skip
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1"), ("GET", "/v1/none")],
)
def test_nothing_below_v1_is_told_to_others(
    header: str | None, method: str, path: str, guarded: RunningGateway
) -> None:
    headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
    response = httpx.request(method, guarded.url + path, headers=headers, content=b"{")
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == "invalid_api_key"
    assert error["param"] is None


def test_a_large_body_without_a_key_gets_the_answer(guarded: RunningGateway) -> None:
    response = httpx.post(f"{guarded.url}/v1/chat/completions", content=b"x" * (8 << 20))
    assert response.status_code == 401


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_need_no_key(path: str, guarded: RunningGateway) -> None:
    assert httpx.get(guarded.url + path).status_code == 200


def test_the_sdk_understands_the_refusal(guarded: RunningGateway) -> None:
    with (
        OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong", max_retries=0) as openai,
        pytest.raises(AuthenticationError) as caught,
    ):
        openai.models.list()
    assert caught.value.code == "invalid_api_key"


def test_without_keys_everybody_may_ask(client: httpx.Client) -> None:
    assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize("key", ["", "with space", "n\u00e4h", "tab\there"])
def test_a_key_that_no_header_carries_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        Keys([key])


def test_a_file_without_a_key_does_not_open_the_door(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# none yet\n\n")
    with pytest.raises(ValueError, match="has no key"):
        Keys.read([], file)


def test_voices_and_pictures_of_a_known_id_are_for_all(
    guarded: RunningGateway, tmp_path: Path
) -> None:
    assert httpx.get(f"{guarded.url}/v1/audio/voices").status_code == 200
    assert httpx.get(f"{guarded.url}/v1/audio/voices/x").status_code == 401
    with running_gateway(tmp_path, IMAGES, keys=Keys(["sk-ann"]), arena_mb=16) as drawing:
        url = f"{drawing.url}/v1/images"
        body = {"prompt": "cat", "response_format": "url"}
        assert httpx.post(f"{url}/generations", json=body).status_code == 401
        headers = {"authorization": "Bearer sk-ann"}
        (made,) = httpx.post(f"{url}/generations", json=body, headers=headers).json()["data"]
        assert httpx.get(made["url"]).headers["content-type"] == "image/png"
        assert httpx.get(f"{url}/files/guess").status_code == 404
        assert httpx.get(f"{url}/files").status_code == 401
