"""Media from elsewhere: how often, how much, how long, and from whom."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from support.hostile.bad_parts import good_png
from support.media.fetching import ENOUGH, refusal
from support.media.hosts import OUTSIDE, MediaHosts, media_hosts
from support.waiting import pass_over, until

from omnistage.server.media.fetch import (
    Budget,
    MediaError,
    MediaFetcher,
    MediaRefused,
    VettedTransport,
)


@pytest_asyncio.fixture
async def hosts() -> AsyncIterator[MediaHosts]:
    async with media_hosts() as running:
        yield running


async def test_redirects_are_followed_so_often(hosts: MediaHosts) -> None:
    fetcher = hosts.fetcher()
    url = hosts.url("http://outside.test:PORT/hops/2")
    assert await fetcher.fetch(url, Budget(ENOUGH)) == good_png()
    hosts.accepted.clear()
    assert "redirected more than 3" in str(await refusal(hosts, "http://outside.test:PORT/loop"))
    assert hosts.accepted[OUTSIDE] == 4


async def test_a_host_leaves_no_cookie_behind(hosts: MediaHosts) -> None:
    await hosts.fetcher().fetch(hosts.url("http://outside.test:PORT/cookie"), Budget(ENOUGH))
    assert not any("cookie:" in head.lower() for head in hosts.heads)


async def test_the_environments_proxy_is_not_used(
    hosts: MediaHosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, hosts.url("http://127.0.0.1:PORT"))
    refused = str(await _fails(MediaFetcher(), hosts.url("http://127.0.0.1:PORT/")))
    assert refused == (
        "is on a host that is not on the public internet; send it as a data: URL, or as a file: "
        "URL of a folder that the server reads (--allowed-media-path)"
    )
    await hosts.fetcher().fetch(hosts.url("http://outside.test:PORT/"), Budget(ENOUGH))
    assert hosts.accepted == {OUTSIDE: 1}


async def _fails(fetcher: MediaFetcher, url: str) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await fetcher.fetch(url, Budget(ENOUGH))
    return caught.value


@pytest.mark.parametrize("path", ["endless", "huge", "gzip"])
async def test_what_is_too_much_is_not_taken(path: str, hosts: MediaHosts) -> None:
    started = time.process_time()
    await refusal(hosts, f"http://outside.test:PORT/{path}")
    assert time.process_time() - started < 1
    async with asyncio.timeout(600):
        await hosts.left.wait()


@pytest.mark.parametrize("path", ["drip", "headers"])
async def test_what_takes_too_long_is_given_up(path: str, hosts: MediaHosts) -> None:
    refused = asyncio.create_task(refusal(hosts, f"http://outside.test:PORT/{path}"))
    await until(lambda: hosts.heads)
    pass_over(asyncio.get_running_loop(), 60)
    error = await refused
    assert "60 s" in str(error)
    assert error.code == "media_not_fetched"
    async with asyncio.timeout(600):
        await hosts.left.wait()


async def test_a_name_that_is_never_found_is_given_up() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    transport = VettedTransport(httpx.MockTransport(lambda _: httpx.Response(200)), resolve)
    fetcher = MediaFetcher(transport=transport, fetch_s=0.1)
    assert "0.1 s" in str(await _fails(fetcher, "http://a.example"))


@pytest.mark.parametrize(
    ("path", "reason"),
    [("missing", "404"), ("nonsense", "wrongly"), ("cut", "wrongly"), ("gzip", "compressed")],
)
async def test_a_wrong_answer_is_told(path: str, reason: str, hosts: MediaHosts) -> None:
    error = await refusal(hosts, f"http://outside.test:PORT/{path}")
    assert reason in str(error)
    assert error.code == "media_not_fetched"


@pytest.mark.parametrize(
    ("host", "is_allowed"),
    [
        *(("outside.test", True), ("OUTSIDE.test", True), ("outside.test.", True)),
        *(("a.media.test", True), ("media.test", False), ("xmedia.test", False)),
        *(("outside.test.evil.test", False), ("evil-outside.test", False), ("test", False)),
    ],
)
def test_only_allowed_hosts_are_asked(host: str, is_allowed: bool, hosts: MediaHosts) -> None:
    fetcher = hosts.fetcher("outside.test", ".media.test")
    if is_allowed:
        assert fetcher.check(f"http://{host}/a")
        return
    with pytest.raises(MediaRefused, match="not allowed"):
        fetcher.check(f"http://{host}/a")


async def test_a_redirect_to_a_host_that_is_not_allowed_is_not_followed(hosts: MediaHosts) -> None:
    url = hosts.url("http://outside.test:PORT/to/http%3A%2F%2Fsecond.test%3APORT%2F")
    assert "not allowed" in str(await _fails(hosts.fetcher("outside.test"), url))
    assert hosts.accepted == {OUTSIDE: 1}


PIECES = [
    *("http://", "https://", "//", "/", "\\", "@", ":", "[", "]", "%", "%00", "..", "?", "#", "."),
    *(
        "a",
        "1",
        "::1",
        "127.0.0.1",
        "xn--",
        "xn--a",
        "\u0661",
        "\u3002",
        "\u00df",
        "\u200d",
        "\x7f",
    ),
    *("\t", " ", "99999", "-1", "a" * 70),
]
odd_urls = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)


def test_no_url_and_no_redirect_makes_the_fetcher_fail() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["1.1.1.1"]

    def answer(request: httpx.Request) -> httpx.Response:
        is_first = request.headers["host"] == "first.test"
        headers = [(b"location", location)] if is_first else []
        stream = httpx.ByteStream(b"")
        return httpx.Response(302 if is_first else 200, headers=headers, stream=stream)

    fetcher = MediaFetcher(transport=VettedTransport(httpx.MockTransport(answer), resolve))
    location = b""

    @settings(max_examples=200, deadline=None, derandomize=True, database=None)
    @given(url=odd_urls)
    def fetch(url: str) -> None:
        nonlocal location
        location = url.encode().replace(b"\r", b"").replace(b"\n", b"")
        for place in (f"http://{url}", "http://first.test"):
            with contextlib.suppress(MediaError):
                runner.run(fetcher.fetch(place, Budget(9)))

    with asyncio.Runner() as runner:
        fetch()
