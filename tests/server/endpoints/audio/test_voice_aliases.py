"""Voices by other names, such as OpenAI's, at every door that takes one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.gateway.serving import MODEL, OMNI, RunningGateway, running_gateway

ALIASES = {"Alloy": "ethan", "nova": "chelsie", "lost": "nobody"}


@pytest.fixture(scope="module")
def aliased(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    graph = {**OMNI, "voice_aliases": ALIASES}
    with running_gateway(tmp_path_factory.mktemp("aliases"), graph) as gateway:
        yield gateway


def chat(voice: str) -> tuple[str, dict[str, Any]]:
    message = {"role": "user", "content": "Hi"}
    audio = {"voice": voice, "format": "wav"}
    body = {"messages": [message], "modalities": ["text", "audio"], "audio": audio}
    return "/v1/chat/completions", body


def speech(voice: str) -> tuple[str, dict[str, Any]]:
    return "/v1/audio/speech", {"model": MODEL, "input": "Hi", "voice": voice}


DOORS = pytest.mark.parametrize("door", [chat, speech])


def post(gateway: RunningGateway, request: tuple[str, dict[str, Any]]) -> httpx.Response:
    path, body = request
    return httpx.post(f"{gateway.url}{path}", json=body)


@DOORS
@pytest.mark.parametrize(
    ("called", "wanted"),
    [("alloy", "ethan"), ("ALLOY", "ethan"), ("nova", "chelsie"), ("Ethan", "ethan")],
)
def test_an_alias_is_spoken_by_its_voice(
    aliased: RunningGateway, door: Any, called: str, wanted: str
) -> None:
    assert post(aliased, door(called)).status_code == 200
    assert aliased.stages.stages["thinker"].last_request.speaker == wanted


@DOORS
@pytest.mark.parametrize("called", ["default", "Default"])
def test_the_default_voice_is_the_model_s_own(
    aliased: RunningGateway, door: Any, called: str
) -> None:
    assert post(aliased, door("ethan")).status_code == 200
    assert aliased.stages.stages["thinker"].last_request.speaker == "ethan"
    assert post(aliased, door(called)).status_code == 200
    assert aliased.stages.stages["thinker"].last_request.speaker is None


@DOORS
@pytest.mark.parametrize(("called", "named"), [("shimmer", "shimmer"), ("lost", "nobody")])
def test_a_voice_that_nobody_has_is_refused_by_name(
    aliased: RunningGateway, door: Any, called: str, named: str
) -> None:
    answer = post(aliased, door(called))
    assert answer.status_code == 400
    assert (
        f"'{named}' is unknown; allowed: chelsie, ethan, default."
        in answer.json()["error"]["message"]
    )


def test_without_aliases_openai_s_voices_are_refused(tmp_path: Path) -> None:
    with running_gateway(tmp_path, OMNI) as gateway:
        assert post(gateway, speech("alloy")).status_code == 400
