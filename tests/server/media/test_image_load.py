"""Pictures to edit, wherever they are."""

import base64
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from support.hostile.bad_parts import good_png
from support.media.hosts import MediaHosts, media_hosts
from support.media.pictures import mask_png, png

from omnistage.server.common.errors import ApiError
from omnistage.server.media.files import MediaFolder
from omnistage.server.media.image_load import Source, load_images
from omnistage.server.media.images import File, read_images
from omnistage.server.media.load import MediaLoader
from omnistage.server.media.medium import Medium


@pytest_asyncio.fixture
async def hosts() -> AsyncIterator[MediaHosts]:
    async with media_hosts() as running:
        yield running


def medium(place: str, url: str) -> Medium:
    return Medium(place, {"type": "image_url", "image_url": {"url": url}})


async def test_they_come_in_their_order(hosts: MediaHosts, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(16, 24))
    (tmp_path / "mask.png").write_bytes(mask_png(48, 32))
    here = "data:image/png;base64," + base64.b64encode(png(64, 16)).decode()
    sources: list[Source] = [
        File("image", png(48, 32)),
        medium("a", hosts.url("http://outside.test:PORT/picture")),
        medium("b", here),
        medium("c", f"file://{tmp_path}/a.png"),
    ]
    loader = MediaLoader(hosts.fetcher(), MediaFolder(tmp_path))
    mask = medium("mask", f"file://{tmp_path}/mask.png")
    given = await load_images(sources, mask, loader, ExitStack())
    fetched = read_images([File("", good_png())])
    assert given.sizes == [(48, 32), *fetched.sizes, (64, 16), (16, 24)]
    assert given.mask is not None
    assert given.mask.shape == (32, 48)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://outside.test:PORT/missing", "media_not_fetched"),
        ("http://inside.test:PORT/picture", "invalid_value"),
        ("file:///etc/passwd", "invalid_value"),
    ],
)
async def test_a_refusal_names_the_field(url: str, code: str, hosts: MediaHosts) -> None:
    loader = MediaLoader(hosts.fetcher(), MediaFolder(None))
    source = medium("images[0].image_url", hosts.url(url))
    with pytest.raises(ApiError) as caught:
        await load_images([source], None, loader, ExitStack())
    assert (caught.value.status, caught.value.code) == (400, code)
    assert caught.value.param == "images[0].image_url"
