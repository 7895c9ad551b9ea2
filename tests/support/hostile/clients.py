"""Clients that mean harm or know no better, by class: what each does, and what may be said to it.

A 5xx is a failure, but for those that the API promises of a server with too much to do. What ends
without an answer is counted as such.
"""

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from support.hostile.bad_parts import good_png
from support.hostile.bodies import (
    Target,
    bad_grammar,
    bad_utf8,
    deep,
    frames_of,
    heavy_schema,
    known_bad,
    large_png,
    many_keys,
    many_parts,
    media_of,
    mutated,
    picture,
    sound,
    unknown_keys,
    with_keys,
)

ANSWER_S = 60.0
MAX_ANSWER = 64 << 20
CHAT, EDITS = "/v1/chat/completions", "/v1/images/edits"
NO_ANSWER = "no answer"
LEFT = "left"  # by the client, on purpose
CLIENT_ERRORS = frozenset({"400", "413", "415", "422"})
FINE = frozenset({"200"})
# 503 and 504 by their codes: what docs/api.md promises to who asks for too much.
PROMISED = frozenset({"server_overloaded", "timeout"})


def head_of(path: str, size: int, *more: str, version: str = "1.1") -> bytes:
    """The head of a POST of JSON."""
    lines = [f"POST {path} HTTP/{version}", "Host: x", "Content-Type: application/json"]
    return "\r\n".join([*lines, f"Content-Length: {size}", *more, "", ""]).encode()


def request_of(body: Any, *more: str, version: str = "1.1", path: str = CHAT) -> bytes:
    """A whole one."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return head_of(path, len(data), *more, version=version) + data


async def outcome(reader: asyncio.StreamReader) -> str:
    """The status of an answer and, of a 5xx, its code; the bytes of it are read."""
    try:
        async with asyncio.timeout(ANSWER_S):
            line = await reader.readline()
            if not line:
                return NO_ANSWER
            status = line.split()[1].decode()
            answer = await reader.read(4096)
            received = len(answer)
            while received < MAX_ANSWER and (more := await reader.read(65536)):
                received += len(more)
                answer += more if status[0] == "5" else b""
    except ConnectionError:
        return NO_ANSWER
    except TimeoutError:
        return f"nothing for {ANSWER_S:g} s"
    if status[0] != "5":
        return status
    with contextlib.suppress(ValueError, KeyError):
        return f"{status} {json.loads(answer.partition(CRLF2)[2])['error']['code']}"
    return status


CRLF2 = b"\r\n\r\n"


async def send(target: Target, data: bytes, half_close: bool = False) -> str:
    """Send all, as far as the server takes it, and hear its answer."""
    async with target.connected() as (reader, writer):
        sending = asyncio.create_task(_send(writer, data, half_close))
        try:
            return await outcome(reader)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)


async def _send(writer: asyncio.StreamWriter, data: bytes, half_close: bool) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(data)
        await writer.drain()
        if half_close:
            writer.write_eof()


def prepare(target: Target) -> None:
    """Make what takes long to make."""
    for count in (20_000, 200_000, 1_000_000):
        with_keys(target, count)
    for level in (1, 9):
        large_png(level)
    for form, counts in (("GIF", (100, 5000)), ("TIFF", (100, 2000))):
        for count in counts:
            frames_of(form, count)


async def edit_form(target: Target, chance: random.Random) -> str:
    """A form with files, of which some have other types than they say, and broken ends."""
    mark = b"boundary"
    pieces = [
        b"--" + mark + b'\r\nContent-Disposition: form-data; name="' + name + b"\r\n\r\n" + data
        for name, data in (
            (b'prompt"', b"words"),
            (b'size"', b"64x64"),
            (b'num_inference_steps"', b"2"),
            (b'image"; filename="a.png"', media_of(chance)),
            (b'mask"; filename="m.png"', good_png()),
        )
    ]
    data = b"\r\n".join(pieces) + chance.choice([b"\r\n--" + mark + b"--\r\n", b""])
    head = head_of(EDITS, len(data), "Connection: close")
    kind = b"multipart/form-data; boundary=" + mark
    return await send(target, head.replace(b"application/json", kind) + data)


async def half_closed(target: Target, chance: random.Random) -> str:
    """One that shuts down its sending side has hung up, unless its answer is there already."""
    body = target.body(stream=chance.random() < 0.5)
    return await send(target, request_of(body, version=chance.choice(["1.0", "1.1"])), True)


async def hang_up(target: Target, chance: random.Random) -> str:
    async with target.connected() as (_, writer):
        body = target.body(stream=chance.random() < 0.5, max_completion_tokens=200)
        writer.write(request_of(body))
        await writer.drain()
        if chance.random() < 0.3:
            writer.write_eof()
        await asyncio.sleep(chance.uniform(0, 1))
    return LEFT


async def never_reads(target: Target, chance: random.Random) -> str:
    reader, writer = await asyncio.open_connection(target.host, target.port, limit=1)
    writer.write(request_of(target.body(stream=True, max_completion_tokens=200)))
    await asyncio.sleep(chance.uniform(1, 20))
    writer.close()
    del reader
    return LEFT


async def slow_loris(target: Target, chance: random.Random) -> str:
    """A head, or a body, byte by byte, that never ends."""
    data = request_of(target.body())
    if chance.random() < 0.5:
        data = data.partition(CRLF2)[0]
    async with target.connected() as (_, writer):
        with contextlib.suppress(ConnectionError):
            for place in range(min(len(data) - 1, 40)):
                writer.write(data[place : place + 1])
                await asyncio.sleep(0.25)
    return LEFT


async def wrong_length(target: Target, chance: random.Random) -> str:
    """More or less than what comes; of less the rest is taken for a second request."""
    body = json.dumps(target.body()).encode()
    length = len(body) + chance.choice([-20, -1, 1, 5000])
    words = [str(length), str(length), f"-{length}", f"{length}, 3", "0x10", "9" * 30]
    head = head_of(CHAT, 0, "Connection: close").replace(
        b"Content-Length: 0", f"Content-Length: {chance.choice(words)}".encode()
    )
    return await send(target, head + body, half_close=True)


async def garbage(target: Target, chance: random.Random) -> str:
    """Bytes, alone or behind a request."""
    noise = chance.randbytes(chance.choice([1, 100, 100_000])) + b"\r\n\r\n"
    first = request_of(target.body()) if chance.random() < 0.5 else b""
    return await send(target, first + noise)


async def pipelined(target: Target, chance: random.Random) -> str:
    data = request_of(target.body()) * chance.randint(2, 5)
    return await send(target, data)


async def old_version(target: Target, chance: random.Random) -> str:
    version = chance.choice(["1.0", "0.9", "2.0", "1.1"])
    return await send(target, request_of(target.body(), "Connection: close", version=version))


async def large_headers(target: Target, chance: random.Random) -> str:
    size = chance.choice([10_000, 60_000, 1_000_000])
    many = [f"X-{number}: {'x' * 50}" for number in range(size // 60)]
    headers = chance.choice([["X-Large: " + "x" * size], many])
    return await send(target, request_of(target.body(), "Connection: close", *headers))


async def upgrade(target: Target, chance: random.Random) -> str:
    offer = chance.choice(["websocket", "h2c"])
    head = f"GET {CHAT} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: {offer}\r\n"
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    return await send(target, (head + key).encode())


async def chunked(target: Target, chance: random.Random) -> str:
    """A body in chunks, of which a size is none, or none comes after it."""
    body = json.dumps(target.body()).encode()
    size = chance.choice([b"%x" % len(body), b"zz", b"-1", b"f" * 40, b"0" * 30])
    head = head_of(CHAT, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    return await send(target, head + size + b"\r\n" + body + b"\r\n0\r\n\r\n", half_close=True)


async def other_paths(target: Target, chance: random.Random) -> str:
    path = chance.choice(
        ["/v1/x", "/%00", "/" + "a" * 30_000, "/v1/../health", "*", "/admin/sleep"]
    )
    method = chance.choice(["GET", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "HEAD", "X" * 50])
    data = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    return await send(target, data.encode())


Act = Callable[[Target, random.Random], Awaitable[str]]


@dataclass(frozen=True)
class Hostility:
    """A class of hostile requests; `expected` outcomes, all but a 5xx if there are none."""

    act: Act
    expected: frozenset[str] = frozenset()
    weight: int = 4


def sending(make: Callable[[Target, random.Random], bytes]) -> Act:
    """The act of sending a body, made beside the loop that times the plain requests."""

    async def act(target: Target, chance: random.Random) -> str:
        body = await asyncio.to_thread(make, target, chance)
        return await send(target, request_of(body, "Connection: close"))

    return act


ANY_REFUSAL = CLIENT_ERRORS | {"200", "404"}
HOSTILITIES: Mapping[str, Hostility] = {
    "many keys": Hostility(sending(many_keys), ANY_REFUSAL, 1),
    "unknown keys": Hostility(sending(unknown_keys), ANY_REFUSAL, 2),
    "deep nesting": Hostility(sending(deep), CLIENT_ERRORS, 2),
    "many parts": Hostility(sending(many_parts), CLIENT_ERRORS, 2),
    "invalid UTF-8": Hostility(sending(bad_utf8), CLIENT_ERRORS),
    "bad grammars": Hostility(sending(bad_grammar), ANY_REFUSAL),
    "heavy schemas": Hostility(sending(heavy_schema), ANY_REFUSAL, 1),
    "mutated bodies": Hostility(sending(mutated), ANY_REFUSAL),
    "known bad bodies": Hostility(sending(known_bad), CLIENT_ERRORS | {"200", "404"}),
    "pictures": Hostility(sending(picture), ANY_REFUSAL, 3),
    "sounds": Hostility(sending(sound), ANY_REFUSAL),
    "edits as forms": Hostility(edit_form, ANY_REFUSAL, 2),
    "half-closed": Hostility(half_closed, FINE | {NO_ANSWER}),
    "hang-ups": Hostility(hang_up, frozenset({LEFT})),
    "never read": Hostility(never_reads, frozenset({LEFT}), 2),
    "slow heads and bodies": Hostility(slow_loris, frozenset({LEFT}), 2),
    "wrong lengths": Hostility(wrong_length),
    "garbage": Hostility(garbage),
    "pipelined": Hostility(pipelined, FINE, 2),
    "other versions": Hostility(old_version),
    "large headers": Hostility(large_headers),
    "upgrades": Hostility(upgrade, frozenset({"403", "405"})),
    "bad chunks": Hostility(chunked),
    "other paths": Hostility(other_paths),
}


def is_failure(name: str, outcome: str) -> bool:
    """Whether the server has not answered as it says it does."""
    status, _, code = outcome.partition(" ")
    if status.isdigit() and status[0] == "5":
        return code not in PROMISED and not (name == "other versions" and status == "505")
    expected = HOSTILITIES[name].expected
    return outcome.startswith("nothing for") or (bool(expected) and outcome not in expected)
