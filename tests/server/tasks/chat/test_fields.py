"""What becomes of fields that are not done: warned of, ignored, refused; and where it is told."""

import ast
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase
from openai.types.responses.response_create_params import ResponseCreateParamsBase
from support.api.prompts import PICTURE, image_part
from support.gateway.serving import MODEL, RunningGateway

from omnistage.server.responses.schema import (
    NOT_DONE,
    NOT_HERE,
    WITHOUT_EFFECT,
    ResponseRequest,
)
from omnistage.server.tasks.chat.completion_fields import COMPLETION_DONE
from omnistage.server.tasks.chat.fields import IGNORED, REFUSED
from omnistage.server.tasks.chat.schema import DONE
from omnistage.server.tasks.chat.token_fields import DetokenizeRequest, TokenizeRequest
from omnistage.server.tasks.embeddings import EmbeddingRequest
from omnistage.server.tasks.images.schema import IGNORED as IMAGES_IGNORED
from omnistage.server.tasks.images.schema import EditRequest, GenerationRequest
from omnistage.server.tasks.speech.speech_fields import SpeechRequest
from omnistage.server.tasks.speech.voice_fields import VoiceRequest
from omnistage.server.tasks.transcripts.transcription_fields import TranscriptionRequest

ROOT = Path(__file__).parents[4]
URL = "/v1/chat/completions"
WARNING = "x-omnistage-warning"


def body_of(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "words"}], **more}


@pytest.mark.parametrize("stream", [False, True])
def test_an_unknown_field_is_answered_with_a_warning(stream: bool, client: httpx.Client) -> None:
    response = client.post(URL, json=body_of(stream=stream, zork=3))
    assert response.status_code == 200
    assert response.headers[WARNING] == "unknown fields without effect: zork"


def test_unknown_keys_below_are_named_by_their_place(client: httpx.Client) -> None:
    body = body_of(
        stream=True,
        stream_options={"include_usage": True, "often": True},
        audio={"voice": "ethan", "format": "wav", "speed": 2},
        messages=[
            {
                "role": "user",
                "mood": "glad",
                "content": [
                    {
                        "type": "text",
                        "text": "words",
                        "font": "bold",
                        "prompt_cache_breakpoint": {},
                    },
                    {**image_part(PICTURE), "uuid": "7", "detail": "low"},
                ],
            }
        ],
    )
    body["messages"][0]["content"][1]["image_url"] |= {"detail": "high", "alt": "noise"}
    warning = client.post(URL, json=body).headers[WARNING]
    assert warning.partition(": ")[2].split(", ") == [
        "audio.speed",
        "stream_options.often",
        "messages[0].mood",
        "messages[0].content[0].font",
        "messages[0].content[1].image_url.alt",
    ]


def test_a_warning_stays_one_short_ascii_line(client: httpx.Client) -> None:
    unknown = {f"{n:02}\r\nset-cookie: é" + "x" * 500: n for n in range(30)}
    response = client.post(URL, json=body_of(**unknown))
    assert response.status_code == 200
    assert "set-cookie" not in response.headers
    assert response.headers[WARNING].isascii()
    assert len(response.headers[WARNING]) < 1000
    assert "and 22 more" in response.headers[WARNING]


def test_an_unknown_field_does_not_reach_a_stage(
    client: httpx.Client, gateway: RunningGateway
) -> None:
    messages = [{"role": "user", "content": "words", "mood": "glad"}]
    client.post(URL, json=body_of(zork=3, store=True, messages=messages))
    seen = gateway.stages.stages["thinker"].last_body
    assert seen["messages"] == [{"role": "user", "content": "words"}]
    assert seen.keys() <= DONE


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_an_ignored_field_is_accepted_in_silence(name: str, client: httpx.Client) -> None:
    response = client.post(URL, json=body_of(**{name: "x"}))
    assert response.status_code == 200
    assert WARNING not in response.headers


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_field_is_refused_by_name(name: str, client: httpx.Client) -> None:
    response = client.post(URL, json=body_of(**{name: "x"}))
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    assert client.post(URL, json=body_of(**{name: None})).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stage_params": {"talker": {"seed": 1}}}, "stage_params.talker"),
        ({"stage_params": {"code2wav": {}}}, "stage_params.code2wav"),
        ({"return_codes": True}, "return_codes"),
        ({"audio": {"voice": "ethan", "format": "vinyl"}}, "audio.format"),
        ({"audio": {"voice": "nobody", "format": "wav"}}, "audio.voice"),
        ({"modalities": []}, "modalities"),
        ({"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"mm_processor_kwargs": {"total_pixels": 2048}}, "mm_processor_kwargs.total_pixels"),
        ({"media_io_kwargs": {"audio": {}}}, "media_io_kwargs.audio"),
        ({"media_io_kwargs": {"video": {"num_frames": 8}}}, "media_io_kwargs.video.num_frames"),
        ({"mm_processor_kwargs": {"min_pixels": 4096, "max_pixels": 2048}}, "mm_processor_kwargs"),
    ],
)
def test_what_would_have_no_effect_is_refused(
    fields: dict[str, Any], param: str, client: httpx.Client
) -> None:
    response = client.post(URL, json=body_of(**fields))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_every_field_of_openai_is_known() -> None:
    fields = CompletionCreateParamsBase.__annotations__.keys() | {"stream"}
    known = DONE | IGNORED | REFUSED.keys()
    assert fields <= known
    assert len(known) == len(DONE) + len(IGNORED) + len(REFUSED)


# docs/api.md


def rows(heading: str, page: str = "api") -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    below = text.partition(f"# {heading}\n")[2]
    lines = below[below.index("\n|") :].partition("\n\n")[0].strip().splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_documentation_lists_every_field() -> None:
    listed: dict[str, list[str]] = {"done": [], "accepted without effect": [], "refused": []}
    for fields, state, _ in rows("Fields"):
        listed[state] += names(fields)
    assert sorted(listed["done"]) == sorted(DONE)
    assert sorted(listed["accepted without effect"]) == sorted(IGNORED)
    assert sorted(listed["refused"]) == sorted(REFUSED)


@pytest.mark.parametrize(
    ("heading", "fields"),
    [
        (
            "POST /v1/audio/speech",
            SpeechRequest.model_fields.keys()
            | SpeechRequest.ignored
            | SpeechRequest.refused.keys(),
        ),
        ("Voices", VoiceRequest.model_fields.keys() | VoiceRequest.refused.keys()),
        (
            "POST /v1/audio/transcriptions, /v1/audio/translations",
            TranscriptionRequest.model_fields.keys(),
        ),
    ],
)
def test_the_documentation_lists_every_field_of_sound(heading: str, fields: set[str]) -> None:
    cells = [cell for cell, *_ in rows(heading)]
    listed = {re.split(r"[^a-z_]", name)[0] for cell in cells for name in names(cell)}
    assert listed - {"vtt", "diarized_json"} == {*fields}


def test_the_documentation_lists_every_field_of_responses() -> None:
    listed: dict[str, list[str]] = {"done": [], "accepted without effect": [], "refused": []}
    for fields, state, _ in rows("POST /v1/responses"):
        listed[state] += names(fields)
    assert sorted(listed["done"]) == sorted(ResponseRequest.model_fields.keys() - {*NOT_HERE})
    assert sorted(listed["accepted without effect"]) == sorted(WITHOUT_EFFECT)
    assert sorted(listed["refused"]) == sorted({*NOT_DONE, *NOT_HERE})


def test_every_field_of_openai_s_responses_is_known() -> None:
    fields = ResponseCreateParamsBase.__annotations__.keys() | {"stream"}
    known = ResponseRequest.model_fields.keys() | WITHOUT_EFFECT | ResponseRequest.refused.keys()
    assert fields <= known


def test_the_documentation_lists_every_field_of_embeddings() -> None:
    listed = {name for fields, *_ in rows("POST /v1/embeddings") for name in names(fields)}
    known = EmbeddingRequest.model_fields.keys() | EmbeddingRequest.ignored
    assert listed == known | EmbeddingRequest.refused.keys()


def test_the_documentation_lists_every_field_of_tokens() -> None:
    (tokens, text) = (set(names(fields)) for _, fields, _ in rows("Tokens"))
    assert tokens == TokenizeRequest.model_fields.keys()
    assert text == DetokenizeRequest.model_fields.keys()


def test_the_documentation_lists_every_field_of_text_completions() -> None:
    listed = [name for fields, *_ in rows("POST /v1/completions") for name in names(fields)]
    assert sorted(listed) == sorted(COMPLETION_DONE | {"suffix"})


def codes_in(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        pairs: list[tuple[str | None, ast.expr]] = []
        if isinstance(node, ast.Call):
            pairs = [(keyword.arg, keyword.value) for keyword in node.keywords]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            pairs = [(node.targets[0].id, node.value)]
        found |= {
            value.value
            for name, value in pairs
            if name == "code" and isinstance(value, ast.Constant) and isinstance(value.value, str)
        }
    return found


def test_the_documentation_lists_every_error_code() -> None:
    files = [path for folder in ("server", "stages") for path in (ROOT / folder).rglob("*.py")]
    files = [path for path in files if path.parent.name != "offline"]  # docs/offline.md has those
    listed = [
        name
        for page in ("api", "realtime")
        for code, *_ in rows("Errors", page)
        for name in names(code)
    ]
    assert sorted(listed) == sorted(set().union(*map(codes_in, files)))


def test_the_documentation_lists_every_field_of_images() -> None:
    listed = {name for fields, *_ in rows("Images") for name in names(fields)}
    known = {*EditRequest.model_fields, *IMAGES_IGNORED, "image", "image[]", "mask"}
    assert known | GenerationRequest.model_fields.keys() <= listed
