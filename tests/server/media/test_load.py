"""The media of a whole request."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.bad_input import good_png, good_wav, png, url_part
from support.gateway import MODEL, OMNI, running_gateway
from support.media_hosts import OUTSIDE, Client, MediaHosts, media_hosts
from support.prompts import sound, sound_part

from omnistage.server.errors import ApiError
from omnistage.server.http.disconnect import ClientGone
from omnistage.server.media.files import MediaFolder
from omnistage.server.media.load import MAX_FETCHED, MAX_MEDIA, MediaLoader

SECONDS = 1600 / 16_000  # of `good_wav` and `sound(1600)`


@pytest_asyncio.fixture
async def hosts() -> AsyncIterator[MediaHosts]:
    async with media_hosts() as running:
        yield running


def part(url: str, kind: str = "image_url") -> dict[str, Any]:
    return {"type": kind, kind: {"url": url}}


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


async def test_what_is_elsewhere_is_put_into_the_request(hosts: MediaHosts, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(good_wav())
    here = [url_part("image_url", "image/png", good_png()), sound_part(sound(1600))]
    url = hosts.url("http://outside.test:PORT/picture")
    messages = user(part(url), *here, part(f"file://{tmp_path}/a.wav", "audio_url"), part(url))
    loader = MediaLoader(hosts.fetcher(), MediaFolder(tmp_path))
    assert await loader.load({"messages": messages}, Client().request()) == [
        0,
        0,
        SECONDS,
        SECONDS,
        0,
    ]
    first, *same, file, last = messages[0]["content"]
    assert same == here
    for loaded, kind, data in (
        (first, "image_url", good_png()),
        (file, "audio_url", good_wav()),
        (last, "image_url", good_png()),
    ):
        header, _, encoded = loaded[kind]["url"].partition(",")
        assert header == "data:application/octet-stream;base64"
        assert base64.b64decode(encoded) == data


async def refusal(hosts: MediaHosts, *parts: Any, timeout_s: float | None = None) -> ApiError:
    loader = MediaLoader(hosts.fetcher(), MediaFolder(None))
    with pytest.raises(ApiError) as caught:
        await loader.load({"messages": user(*parts)}, Client().request(timeout_s))
    return caught.value


@pytest.mark.parametrize(
    ("url", "kind", "code"),
    [
        ("http://outside.test:PORT/missing", "image_url", "media_not_fetched"),
        ("http://inside.test:PORT/", "audio_url", "invalid_value"),
        ("file:///etc/passwd", "video_url", "invalid_value"),
        ("http://outside.test:PORT/picture", "video_url", "invalid_value"),
    ],
)
async def test_a_refusal_names_the_place(url: str, kind: str, code: str, hosts: MediaHosts) -> None:
    error = await refusal(hosts, {"type": "text", "text": "Hi"}, part(hosts.url(url), kind))
    assert (error.status, error.code) == (400, code)
    assert error.param == f"messages[0].content[1].{kind}"
    assert error.param in error.message


async def test_a_fetched_bomb_is_refused(hosts: MediaHosts, tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(png(50_000, 50_000))
    loader = MediaLoader(hosts.fetcher(), MediaFolder(tmp_path))
    with pytest.raises(ApiError) as caught:
        await loader.load({"messages": user(part(f"file://{tmp_path}/bomb"))}, Client().request())
    assert caught.value.status == 400


async def test_too_many_are_not_fetched(hosts: MediaHosts) -> None:
    url = hosts.url("http://outside.test:PORT/picture")
    error = await refusal(hosts, *[part(url)] * (MAX_FETCHED + 1))
    assert error.status == 400
    assert not hosts.accepted


async def test_too_many_are_not_looked_at(hosts: MediaHosts) -> None:
    one = url_part("image_url", "image/png", b"x")
    error = await refusal(hosts, *[one] * (MAX_MEDIA + 1))
    assert error.param == "messages"


async def test_they_share_one_limit_of_bytes(
    hosts: MediaHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage.server.media.load.MAX_FETCHED_BYTES", 2 * len(good_png()))
    url = hosts.url("http://outside.test:PORT/picture")
    loader = MediaLoader(hosts.fetcher(), MediaFolder(None))
    await loader.load({"messages": user(part(url), part(url))}, Client().request())
    assert "too large" in str(await refusal(hosts, *[part(url)] * 3))


async def test_a_client_that_hangs_up_ends_the_fetch(hosts: MediaHosts) -> None:
    client = Client()
    url = hosts.url("http://outside.test:PORT/drip")
    loader = MediaLoader(hosts.fetcher(fetch_s=60), MediaFolder(None))
    loading = asyncio.create_task(loader.load({"messages": user(part(url))}, client.request()))
    async with asyncio.timeout(5):
        while not hosts.heads:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        client.gone.set()
        with pytest.raises(ClientGone):
            await loading
        await hosts.left.wait()


async def test_a_fetch_ends_at_the_requests_deadline(hosts: MediaHosts) -> None:
    drip = part(hosts.url("http://outside.test:PORT/drip"))
    assert (await refusal(hosts, drip, timeout_s=0.2)).status == 504
    async with asyncio.timeout(5):
        await hosts.left.wait()
    assert hosts.accepted == {OUTSIDE: 1}


async def test_one_that_fails_ends_the_others(hosts: MediaHosts) -> None:
    drip, missing = (part(hosts.url(f"http://outside.test:PORT/{x}")) for x in ("drip", "missing"))
    assert "404" in str(await refusal(hosts, drip, missing))


def test_the_stage_gets_a_file_as_if_it_had_been_in_the_body(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(good_png())
    text = {"type": "text", "text": "words"}
    with (
        running_gateway(tmp_path, OMNI, media_path=tmp_path) as gateway,
        httpx.Client(base_url=gateway.url) as client,
    ):
        thinker = gateway.stages.stages["thinker"]
        for place in (f"file://{tmp_path}/a.png", {"url": f"file://{tmp_path}/a.png"}):
            asked = {"type": "image_url", "image_url": place}
            body = {"model": MODEL, "messages": user(asked, text)}
            assert client.post("/v1/chat/completions", json=body).status_code == 200
            (image, _) = thinker.last_body["messages"][0]["content"]
            data = image["image_url"]["url"].partition(",")[2]
            assert base64.b64decode(data) == good_png()
        outside = part(f"file://{tmp_path}/../a.png")
        refused = client.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": user(outside, text)}
        )
        assert refused.status_code == 400
