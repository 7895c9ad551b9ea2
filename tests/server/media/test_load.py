"""The media of a whole request."""

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from support.api.prompts import sound, sound_part, video_bytes
from support.gateway.serving import MODEL, OMNI, running_gateway
from support.hostile.bad_parts import good_png, good_wav, png, url_part
from support.media.hosts import OUTSIDE, Client, MediaHosts, loaded, media_hosts
from support.media.recorded import decoded_frames
from support.media.taken_media import READING, only
from support.waiting import pass_over, until

from omnistage.server.common.errors import ApiError
from omnistage.server.http.disconnect import ClientGone
from omnistage.server.media.decode_room import TakenRoom
from omnistage.server.media.fetch import MediaFetcher
from omnistage.server.media.files import MediaFolder
from omnistage.server.media.incoming import Incoming
from omnistage.server.media.load import MAX_FETCHED, MAX_MEDIA, MediaLoader
from omnistage.server.media.sound import RawAudio
from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.worker.requests.coming_media import ComingMedia, Received

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
    incoming = await loaded(loader, {"messages": messages}, Client().request())
    first, second, sound_of_body, sound_of_file, last = messages[0]["content"]
    assert second == here[0]
    for put in (first, last):
        header, _, encoded = put["image_url"]["url"].partition(",")
        assert header == "data:application/octet-stream;base64"
        assert base64.b64decode(encoded) == good_png()
    assert incoming is not None
    received = await all_of(incoming)
    assert incoming.seconds == [SECONDS, SECONDS]
    for part_of_sound in (sound_of_body, sound_of_file):
        assert part_of_sound["type"] == "audio_url"
        name = part_of_sound["audio_url"]["url"]
        expected = (sound(1600) / 32768).astype(np.float32)
        assert np.array_equal(received.pop((name, "sound")).data(), expected)
    assert not received


async def test_media_are_read_as_often_as_they_are_asked_for(tmp_path: Path) -> None:
    loader = MediaLoader(MediaFetcher(()), MediaFolder(None))
    media = Client().request()
    incoming = await loaded(loader, {"messages": user(sound_part(sound(1600)))}, media)
    assert incoming is not None
    for _ in range(2):  # a request may go to another replica
        ((_, received),) = (await all_of(incoming)).items()
        assert received.data().size == 1600


async def test_what_is_large_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnistage.server.media.incoming.PIECE_BYTES", 1000)
    video = video_bytes(num_frames=8, size=32)
    loader = MediaLoader(MediaFetcher(()), MediaFolder(None))
    parts = user(sound_part(sound(1600)), url_part("video_url", "video/mp4", video))
    incoming = await loaded(loader, {"messages": parts}, Client().request())
    assert incoming is not None
    pieces = [piece async for piece in incoming.pieces(READING)]
    assert {message.medium for message, _ in pieces} == {"sound", "frames"}
    assert max(tensor.num_bytes for _, tensor in pieces) <= 1000
    assert len(pieces) >= 7 + 4 * 4  # 6400 bytes of sound; each frame is 3072
    assert sum(message.about is not None for message, _ in pieces) == 2
    received = await all_of(incoming)
    assert np.array_equal(only(received, "frames"), decoded_frames(video)[[0, 2, 4, 6]])
    assert only(received, "sound").size == 1600
    await until(lambda: loader.room.num_taken == 0)


async def test_raw_audio_of_a_conversation_is_read_in_order_and_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = []
    take_step = TakenRoom.__call__

    async def count(taken: TakenRoom, step: Any) -> Any:
        steps.append(step)
        return await take_step(taken, step)

    monkeypatch.setattr(TakenRoom, "__call__", count)
    given = [np.arange(number * 800, (number + 1) * 800, dtype=np.int16) for number in range(9)]
    parts = [{"type": "input_audio", "input_audio": RawAudio(one, 16_000)} for one in given]
    loader = MediaLoader(MediaFetcher(()), MediaFolder(None))
    messages = user(*parts[:6], sound_part(sound(1600)), *parts[6:])
    incoming = await loaded(loader, {"messages": messages}, Client().request())
    assert incoming is not None
    pieces = [piece async for piece in incoming.pieces(READING)]
    names = [part["audio_url"]["url"] for part in messages[0]["content"]]
    assert [message.name for message, _ in pieces] == names
    heard = [tensor.numpy() for _, tensor in pieces]
    del heard[6]
    assert np.array_equal(np.concatenate(heard) * 32768, np.concatenate(given))
    assert incoming.seconds == [0.05] * 6 + [SECONDS] + [0.05] * 3
    assert len(steps) == 2 * 3  # six of them, the file, three: each step, and that no more comes
    await until(lambda: loader.room.num_taken == 0)


async def test_raw_audio_that_is_large_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omnistage.server.media.incoming.PIECE_BYTES", 4000)
    given = [np.arange(size, dtype=np.int16) for size in (1000, 1000, 1000, 5000)]
    parts = [{"type": "input_audio", "input_audio": RawAudio(one, 16_000)} for one in given]
    loader = MediaLoader(MediaFetcher(()), MediaFolder(None))
    incoming = await loaded(loader, {"messages": user(*parts)}, Client().request())
    assert incoming is not None
    pieces = [tensor async for _, tensor in incoming.pieces(READING)]
    assert max(tensor.num_bytes for tensor in pieces) <= 4000
    heard = np.concatenate([tensor.numpy() for tensor in pieces])
    assert np.array_equal(heard * 32768, np.concatenate(given))


@pytest.mark.parametrize(
    ("kind", "reading"),
    [
        ("audio_url", Reading(None, takes_video=True, sampler="uniform")),
        ("input_audio", Reading(None)),
        ("video_url", Reading(16_000)),
    ],
)
async def test_a_medium_that_the_model_does_not_take_is_refused(
    kind: str, reading: Reading
) -> None:
    parts = {
        "audio_url": url_part("audio_url", "audio/wav", good_wav()),
        "input_audio": sound_part(sound(1600)),
        "video_url": url_part("video_url", "video/mp4", video_bytes(4, 32)),
    }
    loader = MediaLoader(MediaFetcher(()), MediaFolder(None))
    incoming = await loaded(loader, {"messages": user(parts[kind])}, Client().request())
    assert incoming is not None
    with pytest.raises(ApiError, match="takes no") as caught:
        await all_of(incoming, reading)
    assert caught.value.status == 400
    assert caught.value.param == f"messages[0].content[0].{kind}"


async def test_a_video_that_vllm_samples_in_its_own_way_is_sent_as_it_is() -> None:
    video = video_bytes(4, 32)
    loader = MediaLoader(MediaFetcher(()), MediaFolder(None))
    parts = user(url_part("video_url", "video/mp4", video))
    incoming = await loaded(loader, {"messages": parts}, Client().request())
    assert incoming is not None
    received = await all_of(incoming, Reading(None, takes_video=True))
    assert only(received, "file").tobytes() == video


async def all_of(incoming: Incoming, reading: Reading = READING) -> Received:
    """What a stage gets of a request's media."""
    coming = ComingMedia()
    async for message, tensor in incoming.pieces(reading):
        coming.add("request", message, tensor)
    return coming.take("request")


async def refusal(hosts: MediaHosts, *parts: Any, timeout_s: float | None = None) -> ApiError:
    loader = MediaLoader(hosts.fetcher(), MediaFolder(None))
    try:
        incoming = await loaded(loader, {"messages": user(*parts)}, Client().request(timeout_s))
        await all_of(incoming or Incoming([], loader.room))
    except ApiError as error:
        return error
    pytest.fail("it was not refused")


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
    messages = user(part(f"file://{tmp_path}/bomb"))
    with pytest.raises(ApiError) as caught:
        await loaded(loader, {"messages": messages}, Client().request())
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
    await loaded(loader, {"messages": user(part(url), part(url))}, Client().request())
    assert "too large" in str(await refusal(hosts, *[part(url)] * 3))


async def test_a_client_that_hangs_up_ends_the_fetch(hosts: MediaHosts) -> None:
    client = Client()
    url = hosts.url("http://outside.test:PORT/drip")
    loader = MediaLoader(hosts.fetcher(), MediaFolder(None))
    loading = asyncio.create_task(loaded(loader, {"messages": user(part(url))}, client.request()))
    async with asyncio.timeout(600):
        while not hosts.heads:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        client.gone.set()
        with pytest.raises(ClientGone):
            await loading
        await hosts.left.wait()


async def test_a_fetch_ends_at_the_requests_deadline(hosts: MediaHosts) -> None:
    drip = part(hosts.url("http://outside.test:PORT/drip"))
    refused = asyncio.create_task(refusal(hosts, drip, timeout_s=30))
    await until(lambda: hosts.heads)
    pass_over(asyncio.get_running_loop(), 30)
    assert (await refused).status == 504
    async with asyncio.timeout(600):
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
