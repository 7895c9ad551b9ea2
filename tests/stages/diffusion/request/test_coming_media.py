"""Media that came before their request, in pieces, are found like those that came with it."""

import asyncio
from contextlib import ExitStack

import numpy as np
import pytest
from support.api.prompts import video_bytes
from support.media.pictures import png
from support.media.sounds import tone, wav_of
from support.waiting import PATIENCE_S, until

from omnistage.connectors.chunk import Tensor
from omnistage.server.common.errors import ApiError
from omnistage.server.common.memory import GivingBack
from omnistage.server.media import given as given_module
from omnistage.server.media.decode_room import NUM_BYTES, DecodeRoom
from omnistage.server.media.given import (
    MAX_CHANNELS,
    SAMPLE_BYTES,
    GivenFile,
    GivenMedia,
    read_given,
)
from omnistage.server.media.images import File
from omnistage.stages.diffusion.request.media import media_of
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.requests.coming_media import ComingMedia
from omnistage.stages.worker.stage import Opened


async def read() -> GivenMedia:
    files = [
        GivenFile("video", "video", File("video", video_bytes(200, 128))),
        GivenFile("image", "image", File("image", png(8, 8))),
        GivenFile("audio", "audio", File("audio", wav_of(tone(0.5)))),
    ]
    room = DecodeRoom(NUM_BYTES, GivingBack())
    with ExitStack() as request:
        given = await read_given(files, room, request)
        num_bytes = 200 * 128 * 128 * 3 + 8 * 8 * 3 + 12_000 * SAMPLE_BYTES
        await until(lambda: room.num_taken == num_bytes)
    await until(lambda: room.num_taken == 0)
    return given


async def test_many_requests_with_short_audio_have_room_at_once() -> None:
    """Room for the longest audio is taken while it is read, by one request after the other."""
    files = [
        GivenFile("audio", "audio", File(f"audio {number}", wav_of(tone(0.5))))
        for number in range(2)
    ]
    room = DecodeRoom(NUM_BYTES, GivingBack())
    with ExitStack() as request:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*(read_given(files, room, request) for _ in range(8)))
        await until(lambda: room.num_taken == 8 * 2 * 12_000 * SAMPLE_BYTES)


async def test_audio_of_a_request_is_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(given_module, "MAX_SAMPLES", 2 * MAX_CHANNELS * 12_000 - 1)
    files = [
        GivenFile("audio", "audio", File(name, wav_of(tone(0.5)))) for name in ("one", "two", "six")
    ]
    room = DecodeRoom(NUM_BYTES, GivingBack())
    with ExitStack() as request, pytest.raises(ApiError, match="with all audio") as caught:
        await read_given(files, room, request)
    assert caught.value.param == "six"


async def test_a_pipeline_gets_them_whole_by_their_fields() -> None:
    given = await read()
    coming, num_pieces = ComingMedia(), 0
    async for message, tensor in given.pieces(Reading()):
        coming.add("request", message, tensor)
        num_pieces += 1
    assert num_pieces == 4, "three of the video, which is larger than a piece"
    request = Request(Draw({}, given.about), ["video"])
    tensors: dict[str, Tensor] = given.tensors
    media = media_of(Opened("request", request, tensors, media=coming.take("request")))
    shapes = {field: [one.data.shape for one in arrays] for field, arrays in media.items()}
    assert shapes == {
        "video": [(200, 128, 128, 3)],
        "image": [(8, 8, 3)],
        "audio": [(1, 12_000)],
    }
    assert np.allclose(media["audio"][0].data[0], tone(0.5) / 32768, atol=1e-4)
    assert len({frame.tobytes() for frame in media["video"][0].data}) == 200
