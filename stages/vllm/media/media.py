"""The media of requests, for vLLM: the gateway has read sounds and videos, none is read here.

A request's parts name them by URLs that vLLM's connector of media, which is ours, looks up. What is
a file is read by vLLM: a video of a model whose frames vLLM chooses in a way of its own.
"""

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.media.frames import sampler_of
from omnistage.stages.worker.requests.coming_media import Received

CONNECTOR = "omnistage"
VARIABLE = "VLLM_MEDIA_CONNECTOR"  # names vLLM's connector of media

Pixels = npt.NDArray[np.uint8]

_received: Received = {}  # of all requests of this process
_images: ContextVar[dict[str, Pixels] | None] = ContextVar("images", default=None)


@MEDIA_CONNECTOR_REGISTRY.register(CONNECTOR)
class ReceivedMedia(MediaConnector):
    """vLLM's own, but for media that came beside their request, which stay until it ends.

    An engine that has lost a medium is given it again.
    """

    async def fetch_image_async(self, image_url: str, **options: Any) -> Any:
        """Return an image as vLLM reads it; `reading_images` gets its pixels."""
        image = await super().fetch_image_async(image_url, **options)
        if (images := _images.get()) is not None:
            images[image_url] = np.asarray(image)
        return image

    async def fetch_audio_async(self, audio_url: str) -> tuple[npt.NDArray[Any], float]:
        """Return samples of one channel, float32 [n], and their rate."""
        sound = _received.get((audio_url, "sound"))
        if sound is not None:
            return sound.data(), sound.about["rate_hz"]
        heard: tuple[npt.NDArray[Any], float] = await super().fetch_audio_async(audio_url)
        return heard

    async def fetch_video_async(self, video_url: str, **options: Any) -> Any:
        """Return frames, uint8 [frames, height, width, 3], and the metadata of their video."""
        frames = _received.get((video_url, "frames"))
        if frames is not None:
            return frames.data(), dict(frames.about["metadata"])
        file = _received.get((video_url, "file"))
        if file is not None:
            encoded = base64.b64encode(file.data().tobytes()).decode("ascii")
            video_url = f"data:application/octet-stream;base64,{encoded}"
        return await super().fetch_video_async(video_url, **options)


def use_received_media() -> None:
    """Have vLLM fetch media with our connector, unless another is chosen."""
    os.environ.setdefault(VARIABLE, CONNECTOR)


@contextmanager
def received(media: Received) -> Iterator[None]:
    """Let vLLM find a request's media, which this takes over, until the request has ended."""
    names = list(media)
    _received.update(media)
    media.clear()
    try:
        yield
    finally:
        for name in names:
            _received.pop(name, None)


@contextmanager
def reading_images() -> Iterator[dict[str, Pixels]]:
    """Collect the images that vLLM reads for this task: uint8 [height, width, 3], by their URLs."""
    images: dict[str, Pixels] = {}
    token = _images.set(images)
    try:
        yield images
    finally:
        _images.reset(token)


def reading_of(engine: AsyncLLM) -> Reading:
    """Return how an engine's model takes media: the rate of its sounds, and its frames' sampler."""
    config = engine.model_config
    if not config.is_multimodal_model:
        return Reading()
    processor = engine.renderer.get_mm_processor()
    limits = processor.info.allowed_mm_limits
    rate_hz = processor.data_parser.audio_resampler.target_sr
    options: JsonMap = (config.multimodal_config.media_io_kwargs or {}).get("video", {})
    return Reading(
        audio_rate_hz=int(rate_hz or 0) if limits.get("audio") else None,
        takes_video=bool(limits.get("video")),
        sampler=sampler_of(config, options),
        options={name: options[name] for name in ("fps", "num_frames") if name in options},
    )
