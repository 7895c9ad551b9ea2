"""A session's settings: defaults, updates, beta's flat fields, and what is refused."""

from typing import Any

import pytest

from omnistage.server.common.errors import ApiError
from omnistage.server.realtime.audio_settings import SemanticVad, ServerVad
from omnistage.server.realtime.beta import without_flat
from omnistage.server.realtime.settings import (
    RealtimeSettings,
    TranscriptionSettings,
    session_object,
)
from omnistage.server.realtime.updates import response_settings, updated

Json = dict[str, Any]


def retention(**fields: Any) -> Json:
    return {"type": "retention_ratio", **fields}


def told(settings: Any) -> Json:
    return session_object(settings, "sess_1", "omni", 1)


def after(*updates: Json) -> Any:
    settings: Any = RealtimeSettings()
    for one in updates:
        settings = updated(settings, without_flat(one))
    return settings


def detection(**fields: Any) -> Json:
    return {"audio": {"input": {"turn_detection": fields or None}}}


def test_every_default_is_spelled_out() -> None:
    session = told(RealtimeSettings())
    assert session["audio"]["input"]["turn_detection"] == {
        "type": "server_vad",
        "threshold": 0.5,
        "prefix_padding_ms": 300,
        "silence_duration_ms": 500,
        "create_response": True,
        "interrupt_response": True,
        "idle_timeout_ms": None,
    }
    assert session["audio"]["input"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert (session["tracing"], session["object"]) == (None, "realtime.session")
    semantic = told(after(detection(type="semantic_vad")))
    assert semantic["audio"]["input"]["turn_detection"] == {
        "type": "semantic_vad",
        "eagerness": "auto",
        "create_response": True,
        "interrupt_response": True,
    }


def test_only_given_fields_change() -> None:
    settings = after({"instructions": "Be short."}, {"audio": {"output": {"speed": 1.5}}})
    assert settings.instructions == "Be short."
    assert (settings.audio.output.voice, settings.audio.output.speed) == ("alloy", 1.5)
    assert isinstance(settings.audio.input.turn_detection, ServerVad)


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([detection()], None),
        ([detection(), detection(type="server_vad")], ServerVad()),
        ([detection(threshold=0.8)], ServerVad(threshold=0.8)),
        ([detection(), detection(threshold=0.8)], ServerVad(threshold=0.8)),
        (
            [detection(type="semantic_vad", create_response=False), detection(eagerness="low")],
            SemanticVad(eagerness="low", create_response=False),
        ),
        (
            [detection(threshold=0.8), detection(type="server_vad", prefix_padding_ms=0)],
            ServerVad(prefix_padding_ms=0),
        ),
        ([detection(threshold=0.8), {"instructions": "x"}], ServerVad(threshold=0.8)),
        ([{"turn_detection": None}], None),
        ([{"turn_detection": {"type": "server_vad", "threshold": 0.1}}], ServerVad(threshold=0.1)),
    ],
)
def test_turn_detection_is_replaced_by_its_type_and_changed_without(
    updates: list[Json], expected: Any
) -> None:
    assert after(*updates).audio.input.turn_detection == expected


@pytest.mark.parametrize(
    "nothing",
    [
        {"instructions": None},
        {"audio": None},
        {"audio": {"output": None}},
        {"audio": {"output": {"voice": None, "speed": None}}},
        {"tools": None, "tool_choice": None},
        {"max_output_tokens": None, "output_modalities": None},
        {"model": None, "truncation": None, "type": "realtime"},
        {"tracing": None, "prompt": None},
        {"audio": {"input": {"noise_reduction": None, "transcription": None}}},
    ],
)
def test_null_is_nothing_where_it_clears_nothing(nothing: Json) -> None:
    assert after(nothing) == RealtimeSettings()


@pytest.mark.parametrize(
    "given",
    [
        {"audio": {"output": {"voice": "marin"}}, "tracing": "auto"},
        {"audio": {"input": {"transcription": {"model": "gpt-4o-mini-transcribe"}}}},
        {"audio": {"input": {"noise_reduction": {"type": "far_field"}}}},
        {"reasoning": {"effort": "low"}, "prompt": {"id": "p"}},
        {"include": ["item.input_audio_transcription.logprobs"], "of the future": {"a": 1}},
        {"tracing": {"workflow_name": "w", "metadata": {"a": "b"}}},
        {"truncation": {"type": "retention_ratio", "retention_ratio": 0.8}},
        {"tool_choice": {"type": "function", "name": "look"}},
    ],
)
def test_what_clients_send_by_default_is_taken(given: Json) -> None:
    told(after(given))


def test_tools_and_transcription_are_replaced_whole() -> None:
    tool = {"type": "function", "name": "look"}
    settings = after({"tools": [tool]}, {"tools": []})
    assert settings.tools == []
    transcription = {"model": "a", "language": "de"}
    update = {"audio": {"input": {"transcription": transcription}}}
    again = {"audio": {"input": {"transcription": {"model": "b"}}}}
    session = told(after(update, again))
    assert session["audio"]["input"]["transcription"] == {"model": "b"}


def test_flat_fields_of_the_beta_are_understood() -> None:
    flat = {
        "modalities": ["audio", "text"],
        "voice": "echo",
        "input_audio_format": "g711_ulaw",
        "output_audio_format": "g711_alaw",
        "input_audio_transcription": {"model": "whisper-1"},
        "max_response_output_tokens": 100,
        "temperature": 0.8,
    }
    settings = after(flat)
    audio = settings.audio
    assert settings.output_modalities == ["audio"]
    assert (audio.input.format.type, audio.output.format.type) == ("audio/pcmu", "audio/pcma")
    assert told(settings)["audio"]["input"]["format"] == {"type": "audio/pcmu"}
    assert (audio.output.voice, audio.input.transcription.model) == ("echo", "whisper-1")
    assert (settings.max_output_tokens, settings.temperature) == (100, 0.8)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"audio": 5}, "session.audio"),
        ({"output_modalities": ["video"]}, "session.output_modalities[0]"),
        ({"output_modalities": []}, "session.output_modalities"),
        *[
            ({"max_output_tokens": bad}, "session.max_output_tokens")
            for bad in (0, 5000, "x", True)
        ],
        ({"tool_choice": 5}, "session.tool_choice"),
        ({"truncation": "never"}, "session.truncation"),
        ({"truncation": {}}, "session.truncation"),
        ({"truncation": {"type": "auto"}}, "session.truncation"),
        ({"truncation": retention()}, "session.truncation"),
        ({"truncation": retention(retention_ratio=1.1)}, "session.truncation"),
        ({"truncation": retention(retention_ratio=True)}, "session.truncation"),
        ({"truncation": retention(retention_ratio=1, token_limits=5)}, "session.truncation"),
        (
            {"truncation": retention(retention_ratio=1, token_limits={"post_instructions": -1})},
            "session.truncation",
        ),
        ({"tracing": 5}, "session.tracing"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "session.tools[0].type"),
        ({"tools": [{}]}, "session.tools[0].type"),
        ({"audio": {"output": {"speed": 9}}}, "session.audio.output.speed"),
        (detection(type="server_vad", idle_timeout_ms=1), "idle_timeout_ms"),
        (detection(type="server_vad", threshold=2), "threshold"),
        (detection(type="other"), "turn_detection"),
        ({"audio": {"input": {"format": {"type": "audio/pcm", "rate": 8000}}}}, "format"),
        ({"audio": {"input": {"format": {"type": "audio/mp3"}}}}, "format.type"),
        ({"instructions": "x" * (1 << 19)}, "session.instructions"),
    ],
)
def test_what_cannot_be_is_refused_by_its_place(given: Json, place: str) -> None:
    with pytest.raises(ApiError) as refused:
        after(given)
    assert refused.value.param is not None
    assert place in refused.value.param
    assert not refused.value.param.endswith((".int", ".str", "constrained-int", "]'inf'"))
    assert refused.value.param.startswith("session")


def test_a_session_becomes_one_that_only_transcribes() -> None:
    settings = after({"type": "transcription", "audio": {"input": {"turn_detection": None}}})
    assert isinstance(settings, TranscriptionSettings)
    session = told(settings)
    assert (session["type"], session["object"]) == (
        "transcription",
        "realtime.transcription_session",
    )
    assert set(session["audio"]) == {"input"}


def test_a_response_has_its_sessions_settings_and_its_own() -> None:
    session = after({"instructions": "Be short.", "tools": [{"type": "function", "name": "look"}]})
    given = {
        "output_modalities": ["text"],
        "instructions": None,
        "tools": [],
        "metadata": {"a": "b"},
    }
    response = response_settings(session, given)
    assert (response.output_modalities, response.instructions) == (["text"], "Be short.")
    assert (response.tools, response.metadata) == ([], {"a": "b"})
    with pytest.raises(ApiError, match=r"response\.metadata"):
        response_settings(session, {"metadata": {str(n): "" for n in range(17)}})
