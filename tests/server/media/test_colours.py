"""Images of every mode and depth have the same colours in chats, edits and masks."""

import base64
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from support.api.prompts import data_url
from support.media.hosts import MediaHosts
from support.media.image_files import (
    BROKEN,
    FILES,
    HIGH,
    PNG_GREY,
    SIDE,
    UNDEFINED,
    ImageFile,
    big,
    opened,
    png,
)
from support.media.pictures import file_of

from omnistage.server.common.errors import ApiError
from omnistage.server.media.check import check_image
from omnistage.server.media.colours import PLAIN, is_plain, rgb_of
from omnistage.server.media.files import MediaFolder
from omnistage.server.media.images import File, read_images
from omnistage.server.media.load import MediaLoader
from omnistage.server.media.medium import Medium
from omnistage.server.offline.content import file_of as file_of_python

PLACE = "messages[0].content[0].image_url"


def image_medium(place: str, url: str) -> Medium:
    return Medium(place, {"type": "image_url", "image_url": {"url": url}})


def loader() -> MediaLoader:
    return MediaLoader(MediaHosts().fetcher(), MediaFolder(None))


async def sent_on(data: bytes) -> bytes:
    """The file of a chat's image that a stage gets."""
    medium = image_medium(PLACE, data_url("image/x", data))
    await loader().load_all([medium])
    return base64.b64decode(medium.encoded)


@pytest.mark.parametrize("case", FILES, ids=lambda case: case.name)
def test_an_edit_gets_the_colours_that_viewers_show(case: ImageFile) -> None:
    (pixels,) = read_images([File("image", case.data)]).images
    assert pixels.shape == case.pixels.shape
    assert np.abs(pixels.astype(int) - case.pixels).max() <= case.error


@pytest.mark.parametrize("case", FILES, ids=lambda case: case.name)
async def test_a_chat_sends_files_on_whose_modes_have_8_bits(case: ImageFile) -> None:
    data = await sent_on(case.data)
    sent = opened(data)
    assert sent.mode in PLAIN
    is_same = data == case.data
    assert is_same == is_plain(opened(case.data))
    assert is_same or sent.format == "PNG"
    pixels = np.asarray(rgb_of(ImageOps.exif_transpose(sent))).astype(int)
    assert np.abs(pixels - case.pixels).max() <= case.error


@pytest.mark.parametrize("name", UNDEFINED)
async def test_samples_without_a_defined_white_are_refused(name: str) -> None:
    with pytest.raises(ApiError, match="signed, of 32 bits or floats; send 8 or 16 bits") as chat:
        await sent_on(UNDEFINED[name])
    with pytest.raises(ApiError, match="signed, of 32 bits or floats; send 8 or 16 bits") as edit:
        read_images([File("image", UNDEFINED[name])])
    assert (chat.value.status, chat.value.param) == (400, PLACE)
    assert (edit.value.status, edit.value.param) == (400, "image")


@pytest.mark.parametrize("name", BROKEN)
async def test_numbers_that_are_missing_or_too_large_are_refused(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        await sent_on(BROKEN[name])
    assert (caught.value.status, caught.value.param) == (400, PLACE)
    with pytest.raises(ApiError) as caught:
        read_images([File("image", BROKEN[name])])
    assert caught.value.param == "image"


def mask_of(data: bytes) -> Any:
    picture = file_of(Image.new("RGB", (SIDE, SIDE)))
    return read_images([File("image", picture)], File("mask", data)).mask


def test_a_mask_of_16_bits_is_read_at_its_depth() -> None:
    whole = mask_of(png(16, PNG_GREY, big(HIGH), big(HIGH)))
    assert whole.shape == (SIDE, SIDE)
    assert (whole == 255).all()
    with pytest.raises(ApiError, match="no fully transparent pixel"):
        mask_of(png(16, PNG_GREY, big(HIGH), big(HIGH + 1)))


async def test_what_is_written_anew_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 1 << 16, (64, 64), dtype=np.uint16)
    url = data_url("image/png", file_of(Image.fromarray(noise)))
    media = [image_medium(f"{PLACE}[{i}]", url) for i in range(3)]
    monkeypatch.setattr("omnistage.server.media.load.MAX_FETCHED_BYTES", 10_000)
    await loader().load_all(media[:2])  # each is a file of about 4,200 bytes
    with pytest.raises(ApiError, match="too large"):
        await loader().load_all([image_medium(one.place, url) for one in media])


def test_a_sequence_has_as_many_frames_as_a_gif_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [Image.new("RGB", (SIDE, SIDE), (40 * i, 0, 0)) for i in range(3)]
    data = file_of(frames[0], "AVIF", save_all=True, append_images=frames[1:])
    assert read_images([File("image", data)]).sizes == [(SIDE, SIDE)]
    monkeypatch.setattr("omnistage.server.media.check.MAX_PAGES", 2)
    for check in (
        lambda: read_images([File("image", data)]),
        lambda: check_image(data, "image"),
    ):
        with pytest.raises(ApiError, match="more than 2 frames") as caught:
            check()
        assert caught.value.param == "image"


@pytest.mark.parametrize(
    ("mode", "pixel", "colour"),
    [
        ("1", 1, (255, 255, 255)),
        ("L", 141, (141, 141, 141)),
        ("LA", (100, 128), (177, 177, 177)),
        ("La", (50, 128), (177, 177, 177)),
        ("I;16", HIGH, (78, 78, 78)),
        ("I;16B", HIGH, (78, 78, 78)),
        ("RGB", (100, 150, 200), (100, 150, 200)),
        ("RGBA", (100, 150, 200, 128), (177, 202, 227)),
        ("RGBa", (50, 75, 100, 128), (177, 202, 227)),
        ("RGBX", (100, 150, 200, 0), (100, 150, 200)),
        ("CMYK", (155, 105, 55, 0), (100, 150, 200)),
        ("YCbCr", (255, 128, 128), (255, 255, 255)),
        ("HSV", (0, 255, 255), (255, 0, 0)),
        ("LAB", (255, 128, 128), (255, 255, 255)),
    ],
)
def test_an_image_of_python_is_written_in_a_mode_that_png_has(
    mode: str, pixel: Any, colour: Any
) -> None:
    image = Image.new(mode, (SIDE, SIDE), pixel)
    read = opened(file_of_python(image, "image", "images[0]"))
    assert np.abs(np.asarray(rgb_of(read)).astype(int) - colour).max() <= 1


@pytest.mark.parametrize("mode", ["I", "F"])
def test_an_image_of_python_without_a_defined_white_is_refused(mode: str) -> None:
    with pytest.raises(ApiError, match=f"images.*mode {mode}, whose white is not defined"):
        file_of_python(Image.new(mode, (SIDE, SIDE), 100), "image", "images[0]")
