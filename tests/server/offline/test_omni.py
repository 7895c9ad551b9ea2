"""What a program or a notebook gets from `Omni`, over fake stages."""

import base64
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
from support.gateway.offline import SPOKEN, FakeStages, engine_of, fake_omni
from support.gateway.serving import OMNI
from support.media.audio import num_samples_of
from support.waiting import wait_until

from omnistage import (
    Answer,
    Audio,
    BadRequest,
    Omni,
    OmniError,
    SomeFailed,
    StageFailed,
    StartFailed,
    Text,
    TimedOut,
    ToolCall,
    Unavailable,
)
from omnistage.server.offline.many import Prompt


def test_a_chat_is_answered_with_text(omni: Omni) -> None:
    answer = omni.chat("words")
    assert (answer.text, answer.finish_reason, answer.audio) == ("Hello there", "stop", None)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (5, 3)
    assert answer.usage.total_tokens == 8
    assert {"gateway", "thinker"} == {stamp.stage for stamp in answer.timeline}


def test_a_chat_is_answered_with_speech(omni: Omni) -> None:
    answer = omni.chat("words", modalities=SPOKEN, voice="Ethan")
    assert answer.text == "Hello there"
    assert answer.audio is not None
    assert (str(answer.audio.samples.dtype), answer.audio.samples.ndim) == ("int16", 1)
    assert answer.audio.sample_rate_hz == 24_000
    assert np.array_equal(answer.audio.samples, np.arange(len(answer.audio.samples)))
    assert answer.audio.to_float().max() == answer.audio.samples.max() / 32768


def test_an_answer_without_words_is_an_audio_without_samples(omni: Omni) -> None:
    for answer in (omni.chat("silent", modalities=SPOKEN), omni.speech("silent", voice="ethan")):
        assert answer.audio is not None
        assert str(answer.audio.samples.dtype) == "int16"
        assert answer.audio.samples.shape == (0,)
        assert num_samples_of("wav", answer.audio.to_wav()) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"modalities": SPOKEN, "return_codes": True},
        {"modalities": ["audio"], "return_codes": True},
        {"n": 3},
        {"logprobs": True, "return_token_ids": True},
    ],
    ids=["text", "speech", "speech alone", "several", "logprobs"],
)
@pytest.mark.parametrize("script", ["words", "tool", "cut"])
def test_an_answer_is_what_the_server_answers(
    omni: Omni, url: str, script: str, fields: dict[str, object]
) -> None:
    body = {"messages": [{"role": "user", "content": script}], **fields}
    if "modalities" in fields:
        body["audio"] = {"format": "pcm16"}
    answered = httpx.post(f"{url}/v1/chat/completions", json=body).json()
    answer = omni.chat(script, **fields)  # type: ignore[arg-type]
    assert len(answer.choices) == len(answered["choices"])
    for ours, theirs in zip(answer.choices, answered["choices"], strict=True):
        message = theirs["message"]
        audio = message.get("audio") or {}
        assert ours.text == (message["content"] or audio.get("transcript", ""))
        assert ours.finish_reason == theirs["finish_reason"]
        assert ours.logprobs == theirs["logprobs"]
        assert list(ours.token_ids) == theirs.get("token_ids", [])
        calls = message.get("tool_calls", [])
        assert [call["function"]["arguments"] for call in calls] == [
            call.arguments for call in ours.tool_calls
        ]
        if audio:
            sound = b"" if answer.audio is None else answer.audio.samples.tobytes()
            assert base64.b64decode(audio["data"]) == sound
            assert audio["codes"] == [list(frame) for frame in answer.codes]
    assert answer.usage.output_tokens == answered["usage"]["completion_tokens"]
    assert answer.usage.input_details == answered["usage"]["prompt_tokens_details"]


def test_a_message_of_an_answer_goes_on_with_the_conversation(
    omni: Omni, stages: FakeStages
) -> None:
    answer = omni.chat("tool")
    (call,) = answer.tool_calls
    assert (call.id, call.name, call.arguments) == ("call_1", "look", '{"at":1}')
    result = {"role": "tool", "tool_call_id": call.id, "content": "nothing"}
    asked = {"role": "user", "content": "words"}
    omni.chat([asked, answer.message, result, asked])
    sent = stages.graph.stages["thinker"].last_body["messages"]
    assert sent[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": '{"at":1}'}


def test_a_stream_has_pieces_and_the_answer_last(omni: Omni) -> None:
    *pieces, answer = omni.stream_chat("words", modalities=SPOKEN)
    assert isinstance(answer, Answer)
    assert "".join(piece.text for piece in pieces if isinstance(piece, Text)) == answer.text
    sounds = [piece.samples for piece in pieces if isinstance(piece, Audio)]
    assert len(sounds) > 1
    assert answer.audio is not None
    assert np.array_equal(np.concatenate(sounds), answer.audio.samples)


def test_a_stream_has_the_calls_of_tools_bit_by_bit(omni: Omni) -> None:
    pieces = [piece for piece in omni.stream_chat("tool") if isinstance(piece, ToolCall)]
    assert [piece.arguments for piece in pieces] == ["", '{"at":', "1}"]


def test_to_leave_a_stream_cancels_its_request(omni: Omni, stages: FakeStages) -> None:
    for piece in omni.stream_chat("endless"):
        assert piece == Text("x")
        break
    wait_until(lambda: not stages.graph.running)
    assert stages.graph.stages["thinker"].cancelled


def test_a_stream_that_nobody_reads_is_held_up(omni: Omni, stages: FakeStages) -> None:
    """The stage stops at its credit; what is there already is bounded."""
    stream = omni.stream_chat("endless")
    next(stream)
    sent = -1
    while sent != (sent := stages.graph.stages["thinker"].num_sent):
        threading.Event().wait(0.3)
    stream.close()  # type: ignore[attr-defined]
    wait_until(lambda: not stages.graph.running)


def test_a_list_is_answered_in_its_order_by_at_most_so_many_at_once(tmp_path: Path) -> None:
    stages, seen = FakeStages(tmp_path), []
    with fake_omni(stages, OMNI, max_requests=3) as omni:
        engine = engine_of(omni)
        engine.runtime.flights.watch(lambda _: seen.append(len(stages.graph.running)))
        silent: Prompt = [{"role": "user", "content": "silent"}]
        prompts: list[Prompt] = ["words", silent] * 8
        answers = omni.generate([*prompts, {"messages": "words", "modalities": SPOKEN}])
    assert [answer.text for answer in answers] == ["Hello there", ""] * 8 + ["Hello there"]
    assert [answer.audio is not None for answer in answers] == [False] * 16 + [True]
    assert len(seen) == 17
    assert max(seen) <= 3


def test_what_fails_in_a_list_is_raised_once_all_are_answered(omni: Omni) -> None:
    with pytest.raises(SomeFailed, match=r"^2 of 4 requests failed; the first: too long") as raised:
        omni.generate(["words", "refuse", "words", "fail later"])
    error = raised.value
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "messages")
    kinds = [type(one) for one in error.answers]
    assert kinds == [Answer, BadRequest, Answer, StageFailed]


def test_what_fails_in_a_list_is_there_in_place_of_its_answer(omni: Omni) -> None:
    good, bad = omni.generate(["words", "refuse"], return_errors=True)
    assert isinstance(good, Answer)
    assert isinstance(bad, BadRequest)


def test_a_single_prompt_is_no_list(omni: Omni) -> None:
    with pytest.raises(TypeError, match="must be a list"):
        omni.generate("words")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 9.0}, "temperature"),
        ({"modalities": ["video"]}, "modalities"),
        ({"voice": "nobody", "modalities": SPOKEN}, "audio.voice"),
        ({"model": "another"}, "model"),
        ({"stream": True}, "stream"),
        (
            {"stage_params": {"talker": {"heat": 1}}, "modalities": SPOKEN},
            "stage_params.talker.heat",
        ),
        ({"user": "a\0b"}, "user"),
    ],
)
def test_a_wrong_field_is_named(omni: Omni, fields: dict[str, object], param: str) -> None:
    with pytest.raises(BadRequest) as raised:
        omni.chat("words", **fields)  # type: ignore[arg-type]
    assert raised.value.param == param
    assert param in raised.value.message or param == "model"


def test_an_unknown_field_is_warned_of(omni: Omni) -> None:
    with pytest.warns(UserWarning, match="unknown fields without effect: temprature"):
        omni.chat("words", temprature=0)


def test_a_failure_of_a_stage_is_told(omni: Omni) -> None:
    with pytest.raises(StageFailed, match="Stage thinker failed: broken") as raised:
        list(omni.stream_chat("fail later"))
    assert isinstance(raised.value, OmniError)
    assert raised.value.status == 500


def test_a_request_has_a_deadline(tmp_path: Path) -> None:
    stages = FakeStages(tmp_path)
    with fake_omni(stages, OMNI, request_timeout=0.2) as omni:
        with pytest.raises(TimedOut, match="longer than its deadline"):
            omni.chat("hang")
        wait_until(lambda: not stages.graph.running)


def test_a_deadline_of_a_stage_can_be_changed(tmp_path: Path) -> None:
    stages = FakeStages(tmp_path)
    graph = {**OMNI, "deadlines": {"first_chunk_s": 0.2}}
    with (
        fake_omni(stages, graph) as omni,
        pytest.raises(TimedOut, match=r"Stage thinker sent no text in time\.") as raised,
    ):
        omni.chat("hang")
    assert raised.value.code == "stage_timeout"


def test_a_stage_that_sleeps_is_unavailable(omni: Omni) -> None:
    fleet = engine_of(omni).runtime.fleet
    links = [fleet.stages["talker"]]
    fleet.refuse_requests(links)
    with pytest.raises(Unavailable, match="Stage talker is asleep"):
        omni.chat("words", modalities=SPOKEN)
    fleet.accept_requests(links)


def test_a_graph_that_cannot_be_is_refused() -> None:
    with pytest.raises(StartFailed, match="No such file") as raised:
        Omni("nowhere.yaml")
    assert raised.value.code == "invalid_graph"
    with pytest.raises(TypeError, match="unknown options: tempo"):
        Omni("nowhere.yaml", tempo=3)  # type: ignore[call-arg]
