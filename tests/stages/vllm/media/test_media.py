"""The media of requests as vLLM gets them, and how a stage says that it takes them."""

import asyncio
import io
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import ExifTags, Image
from support.api.prompts import data_url, sound, sound_part, video_bytes
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY

from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.vllm.media import media
from omnistage.stages.vllm.media.media import (
    CONNECTOR,
    ReceivedMedia,
    reading_images,
    reading_of,
    received,
    use_received_media,
)
from omnistage.stages.worker.requests.coming_media import Received, ReceivedMedium

NAME = "omnistage:a"


def heard_video() -> Received:
    """Frames and a sound under one name."""
    metadata = {"fps": 4.0, "total_num_frames": 2, "frames_indices": [0, 1]}
    frames = ReceivedMedium("frames", {"shape": [2, 1, 1, 3], "metadata": metadata})
    frames.add(np.arange(6, dtype=np.uint8))
    samples = ReceivedMedium("sound", {"rate_hz": 16_000})
    samples.add(np.arange(4, dtype=np.float32))
    return {(NAME, "frames"): frames, (NAME, "sound"): samples}


async def test_vllm_gets_what_came_without_a_copy_and_again_until_the_request_ends() -> None:
    whole = heard_video()
    samples = whole[NAME, "sound"].data()
    with received(whole):
        assert not whole  # nobody else holds it
        frames, metadata = await ReceivedMedia().fetch_video_async(NAME, video_processor="x")
        heard, rate_hz = await ReceivedMedia().fetch_audio_async(NAME)
        assert frames.tolist() == [[[[0, 1, 2]]], [[[3, 4, 5]]]]
        assert metadata["fps"] == 4.0
        assert heard is samples
        assert rate_hz == 16_000
        again, _ = await ReceivedMedia().fetch_audio_async(NAME)
        assert again is samples
    assert not media._received


async def test_images_are_collected_as_vllm_reads_them() -> None:
    """Upright, and over white where they are transparent."""
    half = Image.fromarray(np.array([[[255, 0, 0, 255], [255, 0, 0, 0]]], np.uint8))
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    file = io.BytesIO()
    half.save(file, "PNG", exif=turned)
    url = data_url("image/png", file.getvalue())
    with reading_images() as images:
        read = asyncio.create_task(ReceivedMedia().fetch_image_async(url))
        assert np.asarray(await read).tolist() == images[url].tolist()
    assert images[url].tolist() == [[[255, 0, 0]], [[255, 255, 255]]]
    await ReceivedMedia().fetch_image_async(data_url("image/png", file.getvalue() + b" "))
    assert list(images) == [url]


async def test_media_go_with_their_request() -> None:
    with received(heard_video()):
        assert len(media._received) == 2
    assert not media._received
    with pytest.raises(ValueError, match="HTTP, data or file URL"):
        await ReceivedMedia().fetch_audio_async(NAME)


async def test_a_file_is_read_by_vllm() -> None:
    file = ReceivedMedium("file", {})
    file.add(np.frombuffer(video_bytes(4, 32), np.uint8))
    with received({(NAME, "file"): file}):
        video = await ReceivedMedia().fetch_video_async(NAME, video_processor=None)
    frames, metadata = getattr(video, "media", video)
    assert frames.shape == (4, 32, 32, 3)
    assert metadata["total_num_frames"] == 4


async def test_data_urls_are_vllm_s() -> None:
    samples = sound(1600)
    data = sound_part(samples)["input_audio"]["data"]
    heard, rate_hz = await ReceivedMedia().fetch_audio_async(f"data:audio/wav;base64,{data}")
    assert rate_hz == 16_000
    np.testing.assert_allclose(heard, samples / 32768, atol=1e-4)
    url = data_url("video/mp4", video_bytes(4, 32))
    video = await ReceivedMedia().fetch_video_async(url)
    assert len(getattr(video, "media", video)[0]) == 4


def test_vllm_fetches_with_our_connector_unless_another_is_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("VLLM_MEDIA_CONNECTOR", raising=False)
    use_received_media()
    assert os.environ["VLLM_MEDIA_CONNECTOR"] == CONNECTOR
    assert isinstance(MEDIA_CONNECTOR_REGISTRY.load(CONNECTOR), ReceivedMedia)
    monkeypatch.setenv("VLLM_MEDIA_CONNECTOR", "http")
    use_received_media()
    assert os.environ["VLLM_MEDIA_CONNECTOR"] == "http"


def engine(rate_hz: float | None, limits: dict[str, int], video: dict[str, Any] | None) -> Any:
    """As much of an engine as tells how it takes media."""
    parser = SimpleNamespace(audio_resampler=SimpleNamespace(target_sr=rate_hz))
    info = SimpleNamespace(allowed_mm_limits=limits)
    processor = SimpleNamespace(info=info, data_parser=parser)
    options = None if video is None else {"video": video}
    config = SimpleNamespace(
        is_multimodal_model=True, multimodal_config=SimpleNamespace(media_io_kwargs=options)
    )
    renderer = SimpleNamespace(get_mm_processor=lambda: processor)
    return SimpleNamespace(model_config=config, renderer=renderer)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((16_000.0, {"audio": 9, "video": 9}, None), Reading(16_000, True, "qwen2_vl")),
        ((None, {"audio": 1}, None), Reading(0, False, "qwen2_vl")),
        ((16_000, {"audio": 0, "video": 1}, None), Reading(None, True, "qwen2_vl")),
        (
            (None, {"image": 1, "video": 1}, {"num_frames": 8, "fps": 1, "max_duration": 3}),
            Reading(None, True, "qwen2_vl", {"num_frames": 8, "fps": 1}),
        ),
        (
            (None, {"video": 1}, {"video_backend": "molmo2"}),
            Reading(None, True, None),
        ),
        ((None, {"video": 1}, {"video_backend": "opencv"}), Reading(None, True, "uniform")),
    ],
)
def test_a_model_s_reading_is_that_of_its_processor(
    given: tuple[float | None, dict[str, int], dict[str, Any] | None],
    expected: Reading,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("omnistage.stages.vllm.media.frames._loader_of", lambda config: "qwen2_vl")
    assert reading_of(engine(*given)) == expected


def test_a_model_of_texts_takes_no_media() -> None:
    text = SimpleNamespace(model_config=SimpleNamespace(is_multimodal_model=False))
    assert reading_of(text) == Reading()
