"""Images, speech and transcripts from `Omni`, over fake stages."""

import base64
import io
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image
from rich.console import Console
from support.gateway.offline import SPOKEN, FakeStages, served

from omnistage import Answer, Audio, BadRequest, Omni, Picture, Preview, Progress
from omnistage.server.offline import many


def test_an_answer_shows_itself(omni: Omni) -> None:
    answer = omni.chat("words", modalities=SPOKEN)
    assert answer.audio is not None
    assert repr(answer) == f"Answer('Hello there', {answer.audio!r}, stop)"
    shown = answer._repr_html_()
    assert "<p>Hello there</p>" in shown
    assert '<audio controls src="data:audio/wav;base64,' in shown


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
