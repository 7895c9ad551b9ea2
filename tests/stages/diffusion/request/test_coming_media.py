"""Media that came before their request, in pieces, are found like those that came with it."""

import asyncio
from contextlib import ExitStack

import numpy as np
from support.pictures import png
from support.prompts import video_bytes
from support.sounds import tone, wav_of

from omnistage.connectors.chunk import Tensor
from omnistage.server.common.memory import GivingBack
from omnistage.server.media.decode_room import NUM_BYTES, DecodeRoom
from omnistage.server.media.given import GivenFile, GivenMedia, read_given
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
    with ExitStack() as until:
        given = await read_given(files, room, until)
        assert room.num_taken > 200 * 128 * 128 * 3
    await asyncio.sleep(0.05)
    assert room.num_taken == 0
    return given


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
