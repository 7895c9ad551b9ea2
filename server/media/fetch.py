"""Fetches media over http(s): only from public addresses, and only so much for so long."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx

from omnistage.server.media.addresses import is_public

SCHEMES = ("http", "https")
HEADERS = {"User-Agent": "omnistage", "Accept": "*/*", "Accept-Encoding": "identity"}
FETCH_S = 30.0
CONNECT_S = 5.0
MAX_REDIRECTS = 3
MAX_CONNECTIONS = 64
MAX_PORT = 65_535
TOO_LARGE = "is too large, alone or with the others of the request"

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
IsAllowed = Callable[[str], bool]


NOT_PUBLIC = (
    "is on a host that is not on the public internet; send it as a data: URL, or as a file: URL of "
    "a folder that the server reads (--allowed-media-path)"
)


class MediaError(Exception):
    """A medium that is not to be had; `code` is the refusal's."""

    code = "media_not_fetched"


class MediaRefused(MediaError):
    """A medium that nobody tries to get."""

    code = "invalid_value"


@dataclass(slots=True)
class Budget:
    """How many bytes one request may still fetch."""

    num_bytes: int

    def spend(self, num_bytes: int) -> None:
        """Use some; MediaRefused if there are not so many."""
        self.check(num_bytes)
        self.num_bytes -= num_bytes

    def check(self, num_bytes: int) -> None:
        """Raise MediaRefused if so many are too much."""
        if num_bytes > self.num_bytes:
            raise MediaRefused(TOO_LARGE)


async def resolve(host: str, port: int) -> Sequence[str]:
    """The addresses of a name, as the system knows them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(place[0]) for *_, place in found]


class VettedTransport(httpx.AsyncBaseTransport):
    """Looks a name up once, refuses it if an address of it is not allowed, and connects to those.

    The name stays in the Host header and in TLS; nobody looks it up again.
    """

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport,
        resolve: Resolve = resolve,
        is_allowed: IsAllowed = is_public,
    ) -> None:
        self._inner = inner
        self._resolve = resolve
        self._is_allowed = is_allowed

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send to the first address that answers."""
        host = request.url.raw_host.decode("ascii")
        addresses = await self._addresses(host, request.url.port or _default_port(request.url))
        failure: Exception | None = None
        for address in addresses:
            vetted = httpx.Request(
                request.method,
                request.url.copy_with(host=address),
                headers=request.headers,
                stream=request.stream,
                extensions={**request.extensions, "sni_hostname": host},
            )
            try:
                return await self._inner.handle_async_request(vetted)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failure = error
        raise MediaError("cannot be fetched: its host does not answer") from failure

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise MediaError("cannot be fetched: its host has no address") from error
        if not addresses or not all(map(self._is_allowed, addresses)):
            raise MediaRefused(NOT_PUBLIC)
        return list(dict.fromkeys(addresses))

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()


class MediaFetcher:
    """Gets what clients name by an http(s) URL; with `domains`, from these hosts only."""

    def __init__(
        self,
        domains: Collection[str] = (),
        transport: httpx.AsyncBaseTransport | None = None,
        fetch_s: float = FETCH_S,
    ) -> None:
        self._domains = tuple(domain.lower() for domain in domains)
        self._fetch_s = fetch_s
        # A kept connection would be shared by names that share an address.
        limits = httpx.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=0)
        self._client = httpx.AsyncClient(
            transport=transport
            or VettedTransport(httpx.AsyncHTTPTransport(trust_env=False, limits=limits)),
            headers=HEADERS,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            timeout=httpx.Timeout(fetch_s, connect=CONNECT_S),
            follow_redirects=False,
            trust_env=False,
        )

    def check(self, text: str) -> httpx.URL:
        """The URL, if it may be fetched; raises MediaRefused."""
        try:
            url = httpx.URL(text)
        except (httpx.InvalidURL, ValueError) as error:
            raise MediaRefused(f"is no valid URL: {error}") from error
        if url.scheme not in SCHEMES:
            raise MediaRefused(f"has the scheme {url.scheme!r}; allowed: {', '.join(SCHEMES)}")
        if url.userinfo:
            raise MediaRefused("has a user or a password in it")
        host = url.raw_host.decode("ascii").lower().rstrip(".")
        if not host or not 0 < (url.port or 80) <= MAX_PORT:
            raise MediaRefused("has no host in it, or a port that is none")
        if self._domains and not any(_is_in(host, domain) for domain in self._domains):
            raise MediaRefused("is on a host that is not allowed")
        return url

    async def fetch(self, text: str, budget: Budget) -> bytes:
        """The bytes at a URL; raises MediaError."""
        try:
            async with asyncio.timeout(self._fetch_s):
                return await self._follow(self.check(text), budget)
        except TimeoutError:
            raise MediaError(f"took longer than {self._fetch_s:g} s") from None
        except httpx.TimeoutException as error:
            raise MediaError("cannot be fetched: its host does not answer") from error
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # a redirect to nowhere
            how = f"its host answered wrongly ({type(error).__name__})"
            raise MediaError(f"cannot be fetched: {how}") from error

    async def _follow(self, url: httpx.URL, budget: Budget) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            async with self._client.stream("GET", url) as response:
                if response.next_request is None:
                    return await _body(response, budget)
                url = self.check(str(response.next_request.url))
        raise MediaError(f"was redirected more than {MAX_REDIRECTS} times")

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()


async def _body(response: httpx.Response, budget: Budget) -> bytes:
    if response.status_code != httpx.codes.OK:
        raise MediaError(f"cannot be fetched: its host answered {response.status_code}")
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        raise MediaError("cannot be fetched: its host sent it compressed")
    announced = response.headers.get("content-length", "0")
    budget.check(int(announced) if announced.isdecimal() and len(announced) < 20 else 0)
    data = bytearray()
    async for piece in response.aiter_raw():
        budget.spend(len(piece))
        data += piece
    return bytes(data)


def _default_port(url: httpx.URL) -> int:
    return 443 if url.scheme == "https" else 80


def _is_in(host: str, domain: str) -> bool:
    return host.endswith(domain) if domain.startswith(".") else host == domain
