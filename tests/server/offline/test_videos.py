"""Videos, generated audio and control images from `Omni`, over fake stages."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import httpx
import numpy as np
import pytest
from PIL import Image
from support.fakes.stages import STEPS
from support.gateway.offline import FakeStages, fake_omni, served
from support.gateway.serving import SYNTH, making_videos
from support.gateway.taken_drawing import TakenDrawing
from support.media.pictures import png

from omnistage import Answer, Audio, BadRequest, Omni, Progress, Video

SMALL: dict[str, Any] = {"size": "64x48", "num_frames": 5}
RED = Image.new("RGB", (64, 48), (200, 0, 0))
FRAMES = np.random.default_rng(0).integers(0, 256, (5, 48, 64, 3), np.uint8)


@pytest.fixture(scope="module")
def camera_stages(tmp_path_factory: pytest.TempPathFactory) -> FakeStages:
    return FakeStages(tmp_path_factory.mktemp("camera"))


@pytest.fixture(scope="module")
def camera(camera_stages: FakeStages) -> Iterator[Omni]:
    with fake_omni(camera_stages, making_videos("restyler")) as running:
        yield running


@pytest.fixture(scope="module")
def synth_stages(tmp_path_factory: pytest.TempPathFactory) -> FakeStages:
    return FakeStages(tmp_path_factory.mktemp("synth"))


@pytest.fixture(scope="module")
def synth(synth_stages: FakeStages) -> Iterator[Omni]:
    with fake_omni(synth_stages, SYNTH) as running:
        yield running


def shown(mp4: bytes) -> tuple[list[bytes], list[bytes]]:
    """Frames and audio of a file. x264 may write the same ones with a byte more or fewer."""
    with av.open(io.BytesIO(mp4)) as file:
        frames = [one.to_ndarray(format="rgb24").tobytes() for one in file.decode(video=0)]
        file.seek(0)
        audio = [one.to_ndarray().tobytes() for one in file.decode(audio=0)]
    assert frames
    assert audio
    return frames, audio


def test_a_video_is_what_the_server_makes(camera: Omni, tmp_path: Path) -> None:
    body = {"prompt": "with sound", **SMALL, "fps": 12}
    with served(camera) as url:
        answered = httpx.post(f"{url}/v1/videos/sync", json=body).content
    answer = camera.video("with sound", **SMALL, fps=12)
    video = answer.video
    assert video is not None
    assert (video.frames.shape, str(video.frames.dtype)) == ((5, 48, 64, 3), "uint8")
    assert video.fps == 12
    assert [int(frame.mean()) for frame in video.frames] == [0, 40, 80, 120, 160]
    assert isinstance(video.audio, Audio)
    assert (video.audio.samples == [1000, -2000]).all()
    assert shown(video.to_mp4()) == shown(answered)
    video.save(tmp_path / "made.mp4")
    assert shown((tmp_path / "made.mp4").read_bytes()) == shown(answered)
    assert repr(answer) == "Answer(Video(5 frames of 64x48 at 12 per second), stop)"
    assert "<video controls" in answer._repr_html_()
    silent = camera.video("with sound", **SMALL, audio=False).video
    assert silent is not None
    assert silent.audio is None


def test_a_video_streams_its_steps(camera: Omni) -> None:
    *steps, last = camera.stream_video("a cat", **SMALL)
    assert steps == [Progress(step, STEPS, "restyler") for step in range(1, STEPS + 1)]
    assert isinstance(last, Answer)
    assert last.video is not None


def mkv(folder: Path) -> Path:
    """Write FRAMES to a file that loses nothing of them."""
    with av.open(folder / "a.mkv", "w") as container:
        stream = container.add_stream("ffv1", 8, width=64, height=48, pix_fmt="bgr0")
        for frame in FRAMES:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return folder / "a.mkv"


def test_media_of_a_video_are_python_s_objects(
    camera: Omni, camera_stages: FakeStages, tmp_path: Path
) -> None:
    path = mkv(tmp_path)
    hole = Image.fromarray(np.dstack([np.asarray(RED), np.zeros((48, 64), np.uint8)]))
    for video in (Video(FRAMES, 8.0), (FRAMES, 8), path, str(path), path.read_bytes()):
        camera.video("a cat", input_reference=RED, video=video, mask=hole)
        taken = TakenDrawing(camera_stages.graph.stages["restyler"])
        assert [one.field for one in taken.media] == ["image", "video", "mask"]
        assert np.array_equal(taken.array(0), np.asarray(RED))
        assert np.array_equal(taken.array(1), FRAMES)
        assert taken.media[1].rate == 8
        assert (taken.array(2) == 255).all()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"video": 7}, "video"),
    ({"video": (FRAMES, 0)}, "video"),
    ({"video": (FRAMES, "fast")}, "video"),
    ({"video": (FRAMES.astype(np.float32), 8)}, "video"),
    ({"video": (FRAMES[0], 8)}, "video"),
    ({"video": (FRAMES[:0], 8)}, "video"),
    ({"video": b"no video"}, "video"),
    ({"video": "missing.mp4"}, "video"),
    ({"input_reference": [RED] * 17}, "input_reference"),
    ({"input_reference": {"file_id": "file-1"}}, "input_reference.file_id"),
    ({"reference_image": RED}, "reference_image"),
    ({"audio": (np.zeros(800, np.float32), 8000)}, "audio"),
    ({"mask": RED}, "mask"),
    ({"num_frames": 0}, "num_frames"),
    ({"seconds": 1, "num_frames": 5}, "seconds"),
]


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_a_wrong_field_of_a_video_is_refused(
    fields: dict[str, Any], param: str, camera: Omni
) -> None:
    with pytest.raises(BadRequest) as raised:
        camera.video("a cat", **fields)
    assert raised.value.param == param


def test_generated_audio_is_what_the_server_makes(synth: Omni, synth_stages: FakeStages) -> None:
    fields: dict[str, Any] = {"audio_length": 0.5, "lyrics": "la", "seed": 3}
    with served(synth) as url:
        body = {"input": "rain", **fields}
        answered = httpx.post(f"{url}/v1/audio/generate", json=body).content
    sound = np.random.default_rng(0).integers(-9000, 9000, (400, 2), np.int16)
    for audio in (None, (sound, 8000), Audio(sound, 8000)):
        answer = synth.generate_audio("rain", **fields, audio=audio)
        assert answer.audio is not None
        assert (answer.audio.samples.shape, answer.audio.sample_rate_hz) == ((12_000, 2), 24_000)
        assert answer.audio.to_wav() == answered
        taken = TakenDrawing(synth_stages.graph.stages["synth"])
        assert taken.fields["lyrics"] == "la"
        assert [one.field for one in taken.media] == ([] if audio is None else ["audio"])
        if audio is not None:
            assert np.allclose(taken.array(0), sound.T / 32768)


def test_what_generated_audio_cannot_be_is_refused(synth: Omni, camera: Omni) -> None:
    for field, value in (("response_format", "mp3"), ("audio_length", -1), ("audio", b"none")):
        with pytest.raises(BadRequest) as raised:
            synth.generate_audio("rain", **{field: value})
        assert raised.value.param == field
    with pytest.raises(BadRequest):
        synth.video("a cat")
    with pytest.raises(BadRequest):
        camera.generate_audio("rain")


def test_control_images_are_sent(painter: Omni, painter_stages: FakeStages) -> None:
    blue = Image.new("RGB", (20, 10), (0, 0, 200))
    file = png(20, 10)
    cases: list[tuple[Any, list[Image.Image]]] = [
        (blue, [blue]),
        ([blue, file], [blue, Image.open(io.BytesIO(file))]),
    ]
    for control, wanted in cases:
        painter.images("a fish", control_image=control)
        taken = TakenDrawing(painter_stages.graph.stages["dit"])
        assert [one.field for one in taken.media] == ["control_image"] * len(wanted)
        for index, image in enumerate(wanted):
            assert np.array_equal(taken.array(index), np.asarray(image.convert("RGB")))
    with pytest.raises(BadRequest) as raised:
        painter.images("a fish", control_image=[blue] * 17)
    assert raised.value.param == "control_image"
