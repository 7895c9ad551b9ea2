"""What a program or a notebook gets from `Omni`, over fake stages."""

import asyncio
import base64
import inspect
import io
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from support.audio import num_samples_of
from support.gateway import MODEL, OMNI
from support.offline import FakeStages, engine_of, fake_async_omni, fake_omni, served
from support.waiting import until, wait_until

from omnistage import (
    Answer,
    AsyncOmni,
    Audio,
    BadRequest,
    Closed,
    Omni,
    OmniError,
    Picture,
    Preview,
    Progress,
    SomeFailed,
    StageFailed,
    StartFailed,
    Text,
    TimedOut,
    ToolCall,
    Unavailable,
)
from omnistage.server.offline import many
from omnistage.server.offline.many import Prompt

SPOKEN = ["text", "audio"]


@pytest.fixture(scope="module")
def url(omni: Omni) -> Iterator[str]:
    with served(omni) as address:
        yield address


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


# Lists


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


# Errors


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


def test_a_stage_that_dies_while_it_loads_ends_the_start(tmp_path: Path) -> None:
    stages = FakeStages(tmp_path)

    def launch(name: str, directory: Path) -> object:
        stage = stages.launch(name, directory)
        stages.graph.is_loading.add("talker")
        if name == "code2wav":
            asyncio.get_running_loop().call_later(0.2, stages.graph.stages["talker"].die, "lost")
        return stage

    fake = FakeStages.__new__(FakeStages)
    fake.launch, fake.connector = launch, stages.connector  # type: ignore[method-assign, assignment]
    with pytest.raises(StartFailed, match="stage talker ended while it loaded: lost"):
        fake_omni(fake, OMNI)


# Its life


def test_what_runs_when_it_is_closed_fails(tmp_path: Path) -> None:
    stages, raised = FakeStages(tmp_path), []
    omni = fake_omni(stages, OMNI)

    def ask() -> None:
        try:
            omni.chat("hang")
        except Closed as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: bool(stages.graph.running))
    omni.close()
    asking.join(600)
    assert raised
    with pytest.raises(Closed):
        omni.chat("words")
    with pytest.raises(Closed):
        list(omni.stream_chat("words"))
    omni.close()
    assert repr(omni) == f"Omni('{MODEL}', text+audio, closed)"


async def test_it_works_below_a_loop_that_runs(omni: Omni) -> None:
    """As in a notebook, whose cells run inside of one."""
    assert asyncio.get_running_loop().is_running()
    assert omni.chat("words").text == "Hello there"
    assert [type(piece) for piece in omni.stream_chat("words")] == [Text, Text, Text, Answer]


async def test_a_program_with_a_loop_awaits(tmp_path: Path) -> None:
    stages = FakeStages(tmp_path)
    async with fake_async_omni(stages, OMNI) as omni:
        assert repr(omni) == f"AsyncOmni('{MODEL}', text+audio)"
        assert omni.voices == ("chelsie", "ethan")
        both = asyncio.gather(omni.chat("words"), omni.chat("words", modalities=SPOKEN))
        assert [answer.text for answer in await both] == ["Hello there"] * 2
        pieces = [piece async for piece in omni.stream_chat("words")]
        assert [type(piece) for piece in pieces] == [Text, Text, Text, Answer]
        async for _ in omni.stream_chat("endless"):
            break
        await until(lambda: not stages.graph.running)
        asking = asyncio.create_task(omni.chat("hang"))
        await until(lambda: stages.graph.running)
        asking.cancel()
        await until(lambda: not stages.graph.running)
    with pytest.raises(Closed):
        await omni.chat("words")
    with pytest.raises(Closed, match="started before"):
        await omni.start()


def test_several_threads_use_one(omni: Omni, stages: FakeStages) -> None:
    texts: list[str] = []
    asking = [
        threading.Thread(target=lambda: texts.append(omni.chat("wait").text)) for _ in range(4)
    ]
    for thread in asking:
        thread.start()
    wait_until(lambda: stages.graph.num_waiting == 4)
    omni._thread._loop.call_soon_threadsafe(stages.graph.go_on)
    for thread in asking:
        thread.join(600)
    assert texts == ["Hello there"] * 4


# What notebooks show


def test_an_answer_shows_itself(omni: Omni) -> None:
    answer = omni.chat("words", modalities=SPOKEN)
    assert answer.audio is not None
    assert repr(answer) == f"Answer('Hello there', {answer.audio!r}, stop)"
    shown = answer._repr_html_()
    assert "<p>Hello there</p>" in shown
    assert '<audio controls src="data:audio/wav;base64,' in shown


# Pictures, speech, transcripts


def test_a_picture_is_what_the_server_makes(painter: Omni) -> None:
    body = {"prompt": "two words", "n": 2, "size": "64x32", "background": "transparent"}
    with served(painter) as url:
        answered = httpx.post(f"{url}/v1/images/generations", json=body).json()
    answer = painter.images("two words", n=2, size="64x32", background="transparent")
    assert len(answer.images) == 2
    for ours, theirs in zip(answer.images, answered["data"], strict=True):
        file = io.BytesIO(base64.b64decode(theirs["b64_json"]))
        with Image.open(file) as image:
            assert (ours.mode, ours.size) == (image.mode, image.size) == ("RGBA", (64, 32))
            assert np.array_equal(np.asarray(ours), np.asarray(image))
    assert answer.usage.input_tokens == answered["usage"]["input_tokens"] == 2
    assert answer.usage.output_tokens == answered["usage"]["output_tokens"]


def test_a_picture_streams_its_steps_and_previews(painter: Omni) -> None:
    pieces = list(painter.stream_images("a fish", partial_images=2))
    kinds = [type(piece) for piece in pieces]
    assert kinds == [Progress, Preview, Progress, Preview, Progress, Progress, Picture, Answer]
    steps = [piece.step for piece in pieces if isinstance(piece, Progress)]
    assert steps == [1, 2, 3, 4]


def test_a_chat_is_answered_by_a_picture(painter: Omni) -> None:
    (answer,) = painter.generate(["a fish"])
    assert [image.size for image in answer.images] == [(48, 32)]
    assert "image" in repr(answer)
    assert '<img src="data:image/png;base64,' in answer._repr_html_()


def test_pictures_are_edited(painter: Omni, painter_stages: FakeStages, tmp_path: Path) -> None:
    red = Image.new("RGB", (20, 10), (200, 0, 0))
    red.save(tmp_path / "red.png")
    hole = np.zeros((10, 20, 4), np.uint8)
    painter.images("a fish", images=[red, tmp_path / "red.png", np.asarray(red)], mask=hole)
    tensors = painter_stages.graph.stages["dit"].opened[-1].tensors
    assert tensors.keys() == {"image0", "image1", "image2", "mask"}
    for name in ("image0", "image1", "image2"):
        assert np.array_equal(tensors[name].numpy(), np.asarray(red))
    assert (tensors["mask"].numpy() == 255).all()


def test_a_format_of_files_is_refused(painter: Omni) -> None:
    with pytest.raises(BadRequest) as raised:
        painter.images("a fish", output_format="webp")
    assert (raised.value.param, raised.value.code) == ("output_format", "unsupported_parameter")


def test_a_text_is_spoken_as_the_server_speaks_it(omni: Omni, url: str) -> None:
    body = {"input": "words", "voice": "ethan", "response_format": "pcm"}
    spoken = httpx.post(f"{url}/v1/audio/speech", json=body).content
    faster = httpx.post(f"{url}/v1/audio/speech", json={**body, "speed": 2.0}).content
    answer = omni.speech("words", voice="ethan")
    assert answer.audio is not None
    assert answer.audio.samples.tobytes() == spoken
    assert answer.usage.input_tokens == len("words")
    *pieces, last = omni.stream_speech("words", speed=2.0)
    assert isinstance(last, Answer)
    assert last.audio is not None
    assert b"".join(one.samples.tobytes() for one in pieces if isinstance(one, Audio)) == faster
    with pytest.raises(BadRequest) as raised:
        omni.speech("refuse")
    assert raised.value.param == "input"


@pytest.mark.parametrize("text", ["", " ", "\u200b\n"])
def test_a_text_of_blanks_is_not_spoken(omni: Omni, text: str) -> None:
    with pytest.raises(BadRequest) as raised:
        omni.speech(text)
    assert raised.value.param == "input"


def test_a_sound_is_written_down(omni: Omni, stages: FakeStages) -> None:
    sound = (np.zeros((4800, 2), np.float32), 48_000)
    assert omni.transcribe(sound, prompt="words", language="en").text == "Hello there"
    said = stages.graph.stages["thinker"].last_body["messages"][0]["content"][1]["text"]
    assert "The language of the audio is en." in said
    assert omni.translate(sound, prompt="words").text == "Hello there"
    with pytest.raises(BadRequest) as raised:
        omni.transcribe(b"no sound")
    assert raised.value.param == "file"


def test_a_bar_shows_how_many_are_done(omni: Omni, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    shown = partial(Console, file=screen, force_terminal=True, width=100)
    monkeypatch.setattr(many, "Console", lambda stderr: shown())
    omni.generate(["words", "refuse"], return_errors=True, progress=False)
    assert screen.getvalue() == ""
    omni.generate(["words", "refuse"], return_errors=True)
    assert "2/2" in screen.getvalue()
    assert "answers (1 failed)" in screen.getvalue()


def test_it_is_closed_when_nothing_refers_to_it(tmp_path: Path) -> None:
    """Wherever the last reference goes: here, or in the thread of its own loop."""
    for number in range(2):
        (folder := tmp_path / str(number)).mkdir()
        kept = [fake_omni(FakeStages(folder), OMNI)]
        thread, runs = kept[0]._thread, set(Path("/dev/shm").glob(f"omnistage-{os.getpid()}-*"))
        if number == 0:
            kept.clear()
        else:
            thread._loop.call_soon_threadsafe(kept.clear)
        thread._thread.join(600)
        assert not thread._thread.is_alive()
        assert any(not run.exists() for run in runs)


def methods(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_omni_has_the_methods_of_async_omni_with_their_arguments() -> None:
    assert methods(Omni) == methods(AsyncOmni) - {"start"}
    for name in methods(Omni) - {"model", "modalities", "voices", "sleeping", "generate"}:
        waiting, other = getattr(Omni, name), getattr(AsyncOmni, name)
        assert inspect.signature(waiting).parameters.keys() == (
            inspect.signature(other).parameters.keys()
        )
        assert not inspect.iscoroutinefunction(waiting)
