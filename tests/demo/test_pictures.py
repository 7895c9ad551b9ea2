"""Pictures that are made and edited."""

import io
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw
from support.gateway.serving import IMAGES, MODEL, RunningGateway, running_gateway

from omnistage.connectors.chunk import Chunk
from omnistage.demo.backend import Backend
from omnistage.demo.failure import CannotSend
from omnistage.demo.files import FileStore
from omnistage.demo.pictures import (
    PictureProgress,
    PictureSettings,
    edit,
    edit_input,
    make,
    mask_of,
    picture_request,
    png,
)
from omnistage.stages.messages.to_stage import Request


def last_request(gateway: RunningGateway) -> Chunk[Request]:
    return gateway.stages.stages["dit"].opened[-1]


async def test_steps_previews_and_pictures_come_in_turn(tmp_path: Path) -> None:
    states, previews = [], set()
    settings = PictureSettings(MODEL, "a boat", count=2, previews=2)
    with running_gateway(tmp_path, IMAGES) as gateway:
        async with Backend.connect(gateway.url, None, FileStore(tmp_path)).client as client:
            async for progress in make(client, settings):
                states.append(progress.state)
                previews.add(progress.preview)
    assert states[0] == "Waiting for the first step."
    assert [f"Step {number} of 4." in states for number in range(1, 5)] == [True] * 4
    assert states[-1].startswith("Done in")
    assert len(previews - {None}) == 2
    assert len(progress.pictures) == 2
    assert Image.open(io.BytesIO(progress.pictures[0])).size == (48, 32)
    assert progress.timing.first_image_s is not None


async def test_an_edit_sends_the_picture_and_the_mask(tmp_path: Path) -> None:
    image = Image.new("RGB", (48, 32), "red")
    mask = mask_of((48, 32), [painted((0, 0, 7, 7))])
    assert mask is not None
    settings = PictureSettings(MODEL, "a boat", previews=1, strength=0.5)
    with running_gateway(tmp_path, IMAGES) as gateway:
        async with Backend.connect(gateway.url, None, FileStore(tmp_path)).client as client:
            told = [one async for one in edit(client, settings, png(image), png(mask))]
        request = last_request(gateway)
    assert len(told[-1].pictures) == 1
    assert told[-1].preview is not None
    assert request.message.fields["strength"] == 0.5
    assert request.tensors["image0"].numpy()[0, 0].tolist() == [255, 0, 0]
    repainted = request.tensors["mask"].numpy()
    assert (repainted[:8, :8] > 0).all()
    assert (repainted > 0).sum() == 64


def test_what_was_not_chosen_is_left_to_the_server() -> None:
    request = picture_request(PictureSettings("m", "a boat"))
    assert request["extra_body"] == {"stream_progress": True}


def test_what_was_chosen_is_sent() -> None:
    request = picture_request(
        PictureSettings("m", "p", "no rain", "512x512", 2, 3, steps=8, seed=0, strength=0.25)
    )
    assert (request["n"], request["size"], request["partial_images"]) == (2, "512x512", 3)
    assert request["extra_body"] == {
        "stream_progress": True,
        "negative_prompt": "no rain",
        "num_inference_steps": 8,
        "seed": 0,
        "strength": 0.25,
    }


def painted(box: tuple[int, int, int, int]) -> Image.Image:
    layer = Image.new("RGBA", (48, 32), (0, 0, 0, 0))
    ImageDraw.Draw(layer).rectangle(box, fill=(225, 29, 72, 128))
    return layer


def test_a_mask_is_transparent_where_any_layer_was_painted() -> None:
    mask = mask_of((48, 32), [painted((0, 0, 7, 7)), painted((40, 24, 47, 31))])
    assert mask is not None
    alpha = mask.getchannel("A")
    assert [alpha.getpixel(at) for at in ((3, 3), (44, 28), (20, 20))] == [0, 0, 255]
    assert alpha.histogram()[0] == 2 * 64


def test_without_paint_there_is_no_mask() -> None:
    assert mask_of((48, 32), [Image.new("RGBA", (48, 32), (0, 0, 0, 0))]) is None
    assert mask_of((48, 32), []) is None


def test_an_editor_gives_picture_and_mask_of_one_size() -> None:
    drawn = {"background": Image.new("RGBA", (96, 64), "red"), "layers": [painted((0, 0, 9, 9))]}
    image, mask = edit_input(drawn)
    assert mask is not None
    sizes = [Image.open(io.BytesIO(file)).size for file in (image, mask)]
    assert sizes == [(96, 64)] * 2


@pytest.mark.parametrize("drawn", [None, {"background": None, "layers": []}])
def test_an_edit_of_nothing_is_refused(drawn: Any) -> None:
    with pytest.raises(CannotSend, match="picture"):
        edit_input(drawn)


def test_progress_counts_nothing_before_the_first_step() -> None:
    assert PictureProgress().state == "Waiting for the first step."
