"""Media as a stage gets them."""

import base64
import copy
from collections.abc import Mapping
from typing import Any

import msgspec

from omnistage.server.media.images import File, as_plain_png, check_whole, look_at
from omnistage.server.media.incoming import MediaFile, Reader
from omnistage.server.media.medium import Medium
from omnistage.server.media.video.frames import video_pixels
from omnistage.server.tasks.chat.media_options import media_of
from omnistage.stages.messages.body import Chat
from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.messages.to_stage import MediumKind, Request
from omnistage.stages.worker.requests.coming_media import ComingMedia, Received
from omnistage.stages.worker.stage import Opened

READING = Reading(16_000, takes_video=True, sampler="qwen2_vl")


def taken(medium: Medium, data: bytes, reading: Reading = READING, name: str = "") -> Received:
    """What a stage gets of one medium, under a name, beside its request; raises ApiError."""
    if medium.is_image:
        file = File(medium.place, data)
        is_plain, _ = look_at(file)
        check_whole(file) if is_plain else as_plain_png(file)
        return {}
    if medium.kind == "video_url":
        video_pixels(data)  # is asked first, of whatever it is
    coming = ComingMedia()
    for message, tensor in Reader(MediaFile(medium, data, name or medium.place), reading).pieces():
        coming.add("request", message, tensor)
    return coming.take("request")


def taken_of(body: Mapping[str, Any], reading: Reading = READING) -> list[Received]:
    """What a stage gets of each medium of a chat's body, in order; raises ApiError."""
    return [taken(one, base64.b64decode(one.encoded), reading) for one in media_of(body)]


def opened_with_media(name: str, request: Request, reading: Reading = READING) -> Opened:
    """A request of a chat as a stage gets it: its sounds and videos are beside it, read."""
    fields = copy.deepcopy(request.fields)
    media: Received = {}
    for medium in media_of(fields):
        url = f"{name}/{medium.place}"
        if got := taken(medium, base64.b64decode(medium.encoded), reading, url):
            media |= got
            medium.refer_to(url)
    return Opened(name, msgspec.structs.replace(request, body=Chat(fields)), media=media)


def only(received: Received, kind: MediumKind) -> Any:
    """The data of the one medium of a kind."""
    (data,) = (one.data() for (_, medium), one in received.items() if medium == kind)
    return data
