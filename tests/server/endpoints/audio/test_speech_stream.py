"""A text spoken while it comes, over a WebSocket: its answers."""

import base64
import io
import re
import subprocess
import sys
import wave
from pathlib import Path

import pytest
from support.api.bodies import given_text
from support.gateway.serving import OMNI, RunningGateway, running_gateway
from support.gateway.speech_stream import (
    PATH,
    PIECES,
    configured,
    event,
    heard,
    opened,
    samples,
    say,
    until_done,
)

from omnistage.server.runtime.inputs import TextInput
from omnistage.stages.messages.to_stage import MoreText, Request


def texts_sent(gateway: RunningGateway) -> list[tuple[str, bool]]:
    """The pieces that followed the last request, and whether each was the last."""
    seen = gateway.do(lambda: list(gateway.stages.stages["thinker"].seen))
    last = [chunk.request_id for chunk in seen if isinstance(chunk.message, Request)][-1]
    of_last = [chunk for chunk in seen if chunk.request_id == last]
    return [
        (chunk.message.text, chunk.last) for chunk in of_last if isinstance(chunk.message, MoreText)
    ]


def test_sound_comes_while_text_still_comes(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws, instructions="Whisper.", seed=3)
        say(ws, "input.text", text="Hel")
        start = event(ws)
        assert start == {
            "type": "audio.start",
            "utterance_index": 0,
            "sentence_index": 0,
            "sentence_text": "Hel",
            "format": "pcm",
            "sample_rate": 24_000,
            "channels": 1,
        }
        assert heard(ws) == samples(1)
        say(ws, "input.text", text="lo")
        assert heard(ws) == samples(2)[len(samples(1)) :]
        say(ws, "input.done")
        sound, (audio, session) = until_done(ws)
    assert sound == b""
    usage = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    expected = {"utterance_index": 0, "sentence_index": 0, "total_bytes": len(samples(2))}
    assert audio == {"type": "audio.done", **expected, "error": False, "usage": usage}
    done = {"type": "session.done", "utterance_index": 0, "total_sentences": 1}
    assert session == {**done, "status": "completed"}
    request = piecewise.stages.stages["thinker"].last_request
    body = given_text(request)
    assert body.text == "Hel"
    assert body.is_open
    assert (body.instructions, request.speaker, request.seed) == ("Whisper.", "ethan", 3)
    assert texts_sent(piecewise) == [("lo", False), ("", True)]


def test_answers_follow_each_other_with_the_last_configuration(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        for number, voice in enumerate(("ethan", "ethan", "chelsie")):
            if number == 2:
                configured(ws, voice="chelsie")
            say(ws, "input.text", text="One. ")
            say(ws, "input.text", text="Two.")
            say(ws, "input.done")
            sound, events = until_done(ws)
            assert sound
            assert {one["utterance_index"] for one in events} == {number}
            assert piecewise.stages.stages["thinker"].last_request.speaker == voice


def test_texts_that_are_sent_ahead_wait_for_their_turn(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        for text in ("a", "b", "c"):
            say(ws, "input.text", text=text)
            say(ws, "input.done")
        told = [until_done(ws)[1] for _ in range(3)]
    assert [events[-1]["utterance_index"] for events in told] == [0, 1, 2]
    assert all(events[-1]["status"] == "completed" for events in told)


def test_a_text_that_comes_at_once_is_spoken_in_the_same_way(piecewise: RunningGateway) -> None:
    """Whether its end came before it began to be spoken is a matter of moments."""
    with opened(piecewise) as ws:
        configured(ws)
        for text in ("One. ", "Two. "):
            say(ws, "input.text", text=text)
            say(ws, "input.done")
        until_done(ws), until_done(ws)
    request = piecewise.stages.stages["thinker"].last_request
    assert (given_text(request).text, given_text(request).is_open) == ("Two. ", True)
    assert texts_sent(piecewise)[-1] == ("", True)


def test_an_empty_text_is_done_at_once(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        say(ws, "input.text", text="")
        say(ws, "input.done")
        _, (done,) = until_done(ws)
    assert (done["total_sentences"], done["status"]) == (0, "completed")


@pytest.mark.parametrize("takes_pieces", [True, False])
def test_a_text_of_blanks_alone_fails_and_the_session_goes_on(
    takes_pieces: bool, piecewise: RunningGateway, gateway: RunningGateway
) -> None:
    running = piecewise if takes_pieces else gateway
    with opened(running) as ws:
        configured(ws)
        for piece in (" ", "\u200b", "\n\ufeff"):
            say(ws, "input.text", text=piece)
        say(ws, "input.done")
        sound, (error, done) = until_done(ws)
        assert (sound, error["type"], error["error"]["param"]) == (b"", "error", "text")
        assert (error["utterance_index"], done["status"]) == (0, "failed")
        say(ws, "input.text", text="One.")
        say(ws, "input.done")
        sound, events = until_done(ws)
        assert (bool(sound), events[-1]["status"]) == (True, "completed")


def test_blanks_before_a_text_are_sent_with_its_first_words(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws)
        for piece in (" ", "\u200b", "Hm"):
            say(ws, "input.text", text=piece)
        say(ws, "input.done")
        until_done(ws)
    request = piecewise.stages.stages["thinker"].last_request
    sent = given_text(request).text + "".join(text for text, _ in texts_sent(piecewise))
    assert sent == " \u200bHm"
    assert given_text(request).text.endswith("Hm")


def test_a_text_of_which_only_blanks_come_is_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TextInput.__init__, "__defaults__", (0.3, 600.0))
    with running_gateway(tmp_path, OMNI, speech=PIECES) as gateway, opened(gateway) as ws:
        configured(ws)
        say(ws, "input.text", text=" ")
        _, (error, done) = until_done(ws)
    assert (error["error"]["code"], done["status"]) == ("text_timeout", "failed")


def test_sound_as_base64(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws, audio_encoding="base64")
        say(ws, "input.text", text="Hm")
        say(ws, "input.done")
        sound, events = until_done(ws)
    assert sound == b""
    chunks = [one for one in events if one["type"] == "audio.chunk"]
    data = b"".join(base64.b64decode(one["audio_b64"]) for one in chunks)
    done = next(one for one in events if one["type"] == "audio.done")
    assert data
    assert len(data) == done["total_bytes"]


def test_a_file_of_another_format_is_whole(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws, response_format="wav", speed=2.0)
        say(ws, "input.text", text="a")
        assert event(ws)["format"] == "wav"
        say(ws, "input.text", text="b")
        say(ws, "input.done")
        sound, _ = until_done(ws)
    with wave.open(io.BytesIO(sound)) as file:
        assert len(file.readframes(100_000)) == len(samples(2)) / 2


def test_fields_without_effect_are_warned_of(piecewise: RunningGateway) -> None:
    with opened(piecewise) as ws:
        configured(ws, zork=1, stream_audio=True)
        say(ws, "input.text", text="a")
        assert event(ws)["warning"] == "unknown fields without effect: zork"
        say(ws, "input.done")
        until_done(ws)


def test_a_model_that_wants_whole_texts_speaks_each_sentence_as_it_is_complete(
    gateway: RunningGateway,
) -> None:
    with opened(gateway) as ws:
        configured(ws)
        for piece in ("One is", " here. Two", " is not"):
            say(ws, "input.text", text=piece)
        first = event(ws)
        assert first["type"] == "audio.start"
        assert given_text(gateway.stages.stages["thinker"].last_request).text == "One is here."
        say(ws, "input.text", text=" yet.")
        say(ws, "input.done")
        sound, (audio, done) = until_done(ws)
    assert given_text(gateway.stages.stages["thinker"].last_request).text == "Two is not yet."
    assert sound == samples(5) * 2
    assert audio["usage"]["input_tokens"] == len("One is here.") + len("Two is not yet.")
    assert (done["total_sentences"], done["status"]) == (1, "completed")


def test_the_documented_example_prints_what_it_should(piecewise: RunningGateway) -> None:
    page = (Path(__file__).parents[4] / "docs" / "api.md").read_text(encoding="utf-8")
    section = page.partition(f"## WebSocket {PATH}\n")[2].partition("\n## ")[0]
    (example,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    program = example.replace("ws://localhost:8000", piecewise.url.replace("http", "ws", 1))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
