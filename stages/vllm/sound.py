"""The sound of media, for vLLM: what its readers of sound files do not know is read with PyAV.

vLLM's own reading with PyAV takes integer samples as they are, 32768 times too loud, and those of
several channels one after the other. So it is replaced, by the connector that vLLM fetches media
with.
"""

import asyncio
import base64
import io
import os
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import vllm.envs
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, MediaConnector

CONNECTOR = "omnistage"
VARIABLE = "VLLM_MEDIA_CONNECTOR"  # names vLLM's connector of media

Sound = tuple[npt.NDArray[np.float32], float]


@MEDIA_CONNECTOR_REGISTRY.register(CONNECTOR)
class SoundConnector(MediaConnector):
    """vLLM's own, but for sounds in containers of other things."""

    async def fetch_audio_async(self, audio_url: str) -> tuple[npt.NDArray[Any], float]:
        """The samples of a data URL, one channel, and their rate."""
        header, _, encoded = audio_url.partition(",")
        if header.endswith(";base64"):
            data = await asyncio.to_thread(base64.b64decode, encoded)
            if not _is_sound_file(data):
                return await asyncio.to_thread(sound_of, data)
        heard: tuple[npt.NDArray[Any], float] = await super().fetch_audio_async(audio_url)
        return heard


def use_sound_connector() -> None:
    """Have vLLM fetch media with it, unless another connector is chosen."""
    os.environ.setdefault(VARIABLE, CONNECTOR)


def sound_of(data: bytes) -> Sound:
    """The first sound in a file, its channels averaged; raises ValueError.

    The gateway has looked at it: it has one, and no more samples than a request may have.
    """
    try:
        with av.open(io.BytesIO(data)) as container:
            streams = container.streams.audio
            if not streams:
                raise ValueError("there is no sound in it")
            return _decoded(container, streams[0])
    except av.FFmpegError as error:
        raise ValueError(f"its sound cannot be read: {error}") from error


def _decoded(container: Any, stream: Any) -> Sound:
    resampler = av.AudioResampler(format="fltp")  # whatever it has, at its own rate
    limit = vllm.envs.VLLM_MAX_AUDIO_DECODE_DURATION_S * stream.rate
    pieces: list[npt.NDArray[np.float32]] = []
    num_samples = 0
    for frame in container.decode(stream):
        for one in resampler.resample(frame):
            pieces.append(one.to_ndarray().mean(axis=0, dtype=np.float32))
            num_samples += len(pieces[-1])
        if num_samples > limit:
            raise ValueError(f"its sound lasts longer than {limit // stream.rate} s")
    if not num_samples:
        raise ValueError("there is no sound in it")
    return np.concatenate(pieces), stream.rate


def _is_sound_file(data: bytes) -> bool:
    """Whether libsndfile reads it."""
    try:
        import soundfile  # type: ignore[import-untyped]
    except ImportError:
        return False
    try:
        soundfile.info(io.BytesIO(data))
    except soundfile.LibsndfileError:
        return False
    return True
