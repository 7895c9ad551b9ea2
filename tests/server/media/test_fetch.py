"""Media from elsewhere: what may be asked is fetched, and nothing else is connected to."""

from collections.abc import AsyncIterator
from urllib.parse import quote

import httpx
import pytest
import pytest_asyncio
from support.hostile.bad_parts import good_png
from support.media.fetching import ENOUGH, refusal
from support.media.hosts import INSIDE, OUTSIDE, MediaHosts, media_hosts

from omnistage.server.media.fetch import Budget, MediaFetcher, MediaRefused, VettedTransport

HOSTILE = [
    # The machine itself, in every way to write it
    "http://127.0.0.1:PORT/",
    "http://localhost.:PORT/",
    "http://127.1:PORT/",
    "http://127.0.1:PORT/",
    "http://2130706433:PORT/",
    "http://0x7f000001:PORT/",
    "http://0x7f.0.0.1:PORT/",
    "http://0177.0.0.1:PORT/",
    "http://017700000001:PORT/",
    "http://0:PORT/",
    "http://0.0.0.0:PORT/",
    "http://127.0.0.1.:PORT/",
    "http://[::1]:PORT/",
    "http://[::]:PORT/",
    "http://[0:0:0:0:0:0:0:1]:PORT/",
    "http://[::ffff:127.0.0.1]:PORT/",
    "http://[::ffff:7f00:1]:PORT/",
    "http://[::127.0.0.1]:PORT/",
    "http://[64:ff9b::7f00:1]:PORT/",
    "http://[2002:7f00:1::]:PORT/",
    "http://[::1%25lo]:PORT/",
    "http://[fe80::1%25lo]:PORT/",
    # In other digits and dots
    "http://127\u30020\u30020\u30021:PORT/",
    "http://127\uff0e0\uff0e0\uff0e1:PORT/",
    "http://\uff11\uff12\uff17.0.0.1:PORT/",
    "http://\u2460\u2461\u2466.0.0.1:PORT/",
    "http://%31%32%37.0.0.1:PORT/",
    "http://loc\u00adalhost:PORT/",
    # Its neighbours
    "http://10.0.0.1/",
    "http://192.168.0.1/",
    "http://172.16.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://2852039166/latest/meta-data/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    # By name
    "http://inside.test:PORT/",
    "http://inside6.test:PORT/",
    "http://mapped.test:PORT/",
    "http://metadata.test/",
    "http://both.test:PORT/",
    "http://nothing.test:PORT/",
    "https://inside.test:PORT/",
    # Who is meant is not who is seen
    "http://outside.test@127.0.0.1:PORT/",
    "http://outside.test:PORT@127.0.0.1:PORT/",
    "http://127.0.0.1:PORT#@outside.test/",
    "http://127.0.0.1:PORT\\@outside.test/",
    "http://outside.test\r\n@127.0.0.1:PORT/",
    "http://outside.test:PORT@outside.test:PORT/",
    "http://outside.test\t.inside.test:PORT/",
    "http:///127.0.0.1:PORT/",
    "http:127.0.0.1:PORT/",
    "http://",
    "http://:PORT/",
    "http://outside.test:99999/",
    # No http
    "file:///etc/passwd",
    "gopher://outside.test:PORT/",
    "ftp://outside.test:PORT/",
    "unix:///run/docker.sock",
    "jar:http://outside.test!/",
    "//outside.test:PORT/",
    "data:text/html,hi",
]
# In a redirect these lead back to where it came from.
RELATIVE = ("http://:PORT/", "//outside.test:PORT/")


@pytest_asyncio.fixture
async def hosts() -> AsyncIterator[MediaHosts]:
    async with media_hosts() as running:
        yield running


@pytest.mark.parametrize("url", HOSTILE)
async def test_a_hostile_url_is_refused_and_nothing_is_connected_to(
    url: str, hosts: MediaHosts
) -> None:
    await refusal(hosts, url)
    assert not hosts.connected
    assert not hosts.accepted


@pytest.mark.parametrize("url", [url for url in HOSTILE if url not in RELATIVE])
async def test_a_hostile_redirect_is_not_followed(url: str, hosts: MediaHosts) -> None:
    await refusal(hosts, f"http://outside.test:PORT/to/{quote(url, safe='')}")
    assert set(hosts.connected) == {OUTSIDE}
    assert hosts.accepted[INSIDE] == 0


async def test_a_public_picture_is_fetched(hosts: MediaHosts) -> None:
    budget = Budget(ENOUGH)
    data = await hosts.fetcher().fetch(hosts.url("http://outside.test:PORT/picture"), budget)
    assert data == good_png()
    assert budget.num_bytes == ENOUGH - len(data)
    (head,) = hosts.heads
    assert f"Host: outside.test:{hosts.port}" in head
    assert "Accept-Encoding: identity" in head


async def test_a_name_is_looked_up_once_and_that_address_is_connected_to(hosts: MediaHosts) -> None:
    """The second answer would be loopback."""
    data = await hosts.fetcher().fetch(hosts.url("http://rebind.test:PORT/"), Budget(ENOUGH))
    assert data == good_png()
    assert hosts.lookups["rebind.test"] == 1
    assert hosts.accepted[INSIDE] == 0


async def test_a_redirect_to_a_name_that_has_changed_is_not_followed(hosts: MediaHosts) -> None:
    url = "http://rebind.test:PORT/to/http%3A%2F%2Frebind.test%3APORT%2F"
    assert isinstance(await refusal(hosts, url), MediaRefused)
    assert hosts.lookups["rebind.test"] == 2
    assert hosts.accepted == {OUTSIDE: 1}


async def test_tls_is_asked_for_by_name() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, stream=httpx.ByteStream(b"x"))

    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("b\u00fccher.example".encode("idna").decode(), 443)
        return ["2606:4700::1"]

    transport = VettedTransport(httpx.MockTransport(answer), resolve)
    fetcher = MediaFetcher(transport=transport)
    assert await fetcher.fetch("https://b\u00fccher.example/a?b", Budget(9)) == b"x"
    (request,) = seen
    assert str(request.url) == "https://[2606:4700::1]/a?b"
    assert request.extensions["sni_hostname"] == "xn--bcher-kva.example"
    assert request.headers["host"] == "xn--bcher-kva.example"


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    tried: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        tried.append(request.url.host)
        if len(tried) < 3:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, stream=httpx.ByteStream(b"x"))

    async def resolve(host: str, port: int) -> list[str]:
        return ["1.1.1.1", "1.1.1.1", "1.1.1.2", "1.1.1.3"]

    fetcher = MediaFetcher(transport=VettedTransport(httpx.MockTransport(answer), resolve))
    assert await fetcher.fetch("http://a.example", Budget(9)) == b"x"
    assert tried == ["1.1.1.1", "1.1.1.2", "1.1.1.3"]
