"""A server of OpenAI's chat API that plays a script, in the form of ours or of vllm-omni.

In tests it is a network in virtual time (`network`) or listens in a thread (`running`). As a
script it listens in a process of its own, to learn what a load client itself costs.
"""

import argparse
import asyncio
import base64
import contextlib
import functools
import io
import json
import threading
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from omnistage.bench.network import StampedNetwork, StampedStream

MODEL = "tests/fake-chat"
RATE_HZ = 24_000
TEMPLATE_TOKENS = 9
IMAGES = "/v1/images/generations"
PATHS = ("/v1/chat/completions", "/v1/audio/speech", IMAGES)
EVENT_STREAM, JSON = "text/event-stream", "application/json"
HUNG_UP = (asyncio.IncompleteReadError, ConnectionError)
LAST_CHUNK = b"0\r\n\r\n"
Timed = tuple[float, bytes]


@dataclass(frozen=True, slots=True)
class Script:
    """When deltas of text come and when packets of so many seconds; seconds since the request.

    Requests number `failing` (the first is 0) fail: `status` is a 503, `event` an error in the
    stream after its first delta, `cut` an end before the last events, `refuse` no JSON at all,
    `noise` sound that is no base64.
    """

    text_s: Sequence[float] = (0.25, 0.5)
    packets: Sequence[tuple[float, float]] = ()
    images: int = 0
    dialect: str = "openai"
    failing: frozenset[int] = frozenset()
    failure: str = "status"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer over HTTP; its blocks leave at their times."""

    status: int
    content_type: str
    blocks: list[Timed]


def sse(event: Any) -> bytes:
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def pcm(duration_s: float) -> bytes:
    return bytes(2 * round(duration_s * RATE_HZ))


def wav(duration_s: float, rate_hz: int = RATE_HZ) -> bytes:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(bytes(2 * round(duration_s * rate_hz)))
    return buffer.getvalue()


def choice(delta: Any, finish_reason: str | None = None) -> list[Any]:
    return [{"index": 0, "delta": delta, "finish_reason": finish_reason}]


def text_event(script: Script, text: str, has_audio: bool) -> Any:
    if script.dialect == "vllm-omni":
        return {"modality": "text", "choices": choice({"role": "assistant", "content": text})}
    delta = {"audio": {"transcript": text}} if has_audio else {"content": text}
    return {"choices": choice(delta), "usage": None}


@functools.cache
def sound_data(dialect: str, duration_s: float) -> str:
    sound = wav(duration_s) if dialect == "vllm-omni" else pcm(duration_s)
    return base64.b64encode(sound).decode()


def sound_event(script: Script, duration_s: float) -> Any:
    data = sound_data(script.dialect, duration_s)
    if script.dialect == "vllm-omni":
        usage = {"prompt_tokens": 1, "completion_tokens": 0, "total_tokens": 1}
        return {"modality": "audio", "choices": choice({"content": data}), "usage": usage}
    return {"choices": choice({"audio": {"data": data}})}


def image_event(script: Script) -> Any:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    if script.dialect == "vllm-omni":
        return {"modality": "image", "choices": choice({"content": [part]})}
    return {"choices": choice({"images": [part]})}


def usage_of(script: Script, body: Any) -> Any:
    """A word of the prompt is a token; 80 ms of sound are one where the dialect counts them."""
    prompt = len(str(body["messages"][0]["content"]).split()) + TEMPLATE_TOKENS
    num_text = len(script.text_s)
    if script.dialect == "vllm-omni":
        return {"prompt_tokens": prompt, "completion_tokens": num_text}
    num_frames = round(sum(duration_s for _, duration_s in script.packets) / 0.08)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": num_text + num_frames,
        "completion_tokens_details": {"text_tokens": num_text, "audio_tokens": num_frames},
    }


def events(script: Script, body: Any) -> list[Timed]:
    """A whole stream in order of time."""
    has_audio = "audio" in body.get("modalities", ())
    timed = [(at_s, sse(text_event(script, "word ", has_audio))) for at_s in script.text_s]
    if has_audio:
        timed += [(at_s, sse(sound_event(script, length_s))) for at_s, length_s in script.packets]
    timed.sort(key=lambda one: one[0])
    end_s = timed[-1][0] if timed else 0.0
    timed = [(0.0, sse({"choices": choice({"role": "assistant"})})), *timed]
    timed += [(end_s, sse(image_event(script)))] * script.images
    timed.append((end_s, sse({"choices": choice({}, "stop")})))
    timed.append((end_s, sse({"choices": [], "usage": usage_of(script, body)})))
    return [*timed, (end_s, b"data: [DONE]\n\n")]


def whole(script: Script, body: Any) -> list[Timed]:
    """The answer to a request that is not streamed."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = {"role": "assistant", "content": "word " * len(script.text_s)}
    answer = {
        "choices": [
            {"message": {**message, "images": [image] * script.images}, "finish_reason": "stop"}
        ],
        "usage": usage_of(script, body),
    }
    return [(max(script.text_s, default=0.0), json.dumps(answer).encode())]


@dataclass
class FakeOpenAI:
    """Plays its script and keeps the bodies that it was sent."""

    script: Script = field(default_factory=Script)
    bodies: list[Any] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def reply(self, path: str, content: bytes, key: str | None = None) -> Reply:
        if path == "/v1/models":
            return Reply(200, JSON, [(0.0, json.dumps({"data": [{"id": MODEL}]}).encode())])
        if path not in PATHS:
            return Reply(404, JSON, [(0.0, b'{"detail":"Not Found"}')])
        number, body = len(self.bodies), json.loads(content)
        self.bodies.append(body)
        self.keys.append(key)
        failure = self.script.failure if number in self.script.failing else None
        if failure == "status":
            error = {"message": "all slots are taken", "type": "server_error"}
            return Reply(503, JSON, [(0.25, json.dumps({"error": error}).encode())])
        if path == "/v1/audio/speech":
            timed = [(at_s, pcm(length_s)) for at_s, length_s in self.script.packets]
            return Reply(200, "audio/pcm", timed)
        if path == IMAGES:
            images = {"data": [{"b64_json": "AAAA"}] * body.get("n", 1)}
            return Reply(200, JSON, [(0.0, json.dumps(images).encode())])
        if not body.get("stream"):
            return Reply(200, JSON, whole(self.script, body))
        timed = events(self.script, body)
        if failure == "event":
            timed = [*timed[:2], (timed[1][0], sse({"error": {"message": "a stage died"}}))]
        elif failure == "cut":
            timed = timed[:-3]
        elif failure == "refuse":
            timed = [(0.25, b"data: hello\n\n")]
        elif failure == "noise":
            timed = [(0.25, sse({"choices": choice({"audio": {"data": "hello"}})}))]
        return Reply(200, EVENT_STREAM, timed)

    async def replied(self, path: str, content: bytes, key: str | None) -> Reply:
        """For a fake that holds an answer back, where it listens in a thread."""
        return self.reply(path, content, key)

    def network(self, connect_s: float = 0.0) -> "ScriptedNetwork":
        """In the loop of whoever connects, on its clock; no socket."""
        return ScriptedNetwork(self, connect_s)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of HTTP/1.1, kept until the client closes it."""
        with contextlib.closing(writer), contextlib.suppress(*HUNG_UP):
            while True:
                path, fields = parse_head(await reader.readuntil(b"\r\n\r\n"))
                content = await reader.readexactly(length_of(fields))
                reply = await self.replied(path, content, fields.get("authorization"))
                await send(writer, reply)

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """Listen in a thread; the address."""
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(self.handle, "127.0.0.1", 0))
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(600)
            server.close()
            loop.run_until_complete(cancel_all(loop))
            loop.close()


async def cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    others = asyncio.all_tasks(loop) - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0)  # connections that were closed end in the loop's next round


def parse_head(head: bytes) -> tuple[str, dict[str, str]]:
    """The path and the header fields, in lower case."""
    first, *lines = head.decode().strip().split("\r\n")
    return first.split()[1], dict(line.lower().split(": ", 1) for line in lines)


def length_of(fields: dict[str, str]) -> int:
    return int(fields.get("content-length", 0))


def head_of(reply: Reply) -> bytes:
    head = f"HTTP/1.1 {reply.status} X\r\nContent-Type: {reply.content_type}\r\n"
    return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(block: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(block), block)


async def send(writer: asyncio.StreamWriter, reply: Reply) -> None:
    """Each block is one chunk of HTTP's, written when its time has come."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    writer.write(head_of(reply))
    for at_s, block in reply.blocks:
        if at_s > 0:
            await asyncio.sleep(start_s + at_s - loop.time())
        writer.write(chunk(block))
    writer.write(LAST_CHUNK)
    await writer.drain()


class ScriptedNetwork(StampedNetwork):
    """Connects to a fake without a socket."""

    def __init__(self, fake: FakeOpenAI, connect_s: float) -> None:
        self._fake = fake
        self._connect_s = connect_s

    async def connect_tcp(self, *place: Any, **options: Any) -> StampedStream:
        await asyncio.sleep(self._connect_s)
        stream = StampedStream()
        stream.connection_made(ScriptedTransport(self._fake, stream))
        return stream


class ScriptedTransport(asyncio.Transport):
    """The socket's side of a stream: takes a request, gives the reply's blocks at their times."""

    def __init__(self, fake: FakeOpenAI, stream: StampedStream) -> None:
        super().__init__()
        self._fake = fake
        self._stream = stream
        self._request = b""
        self._replying: asyncio.Task[None] | None = None

    def write(self, data: Any) -> None:
        self._request += bytes(data)
        head, _, content = self._request.partition(b"\r\n\r\n")
        path, fields = parse_head(head)
        if b"\r\n\r\n" not in self._request or len(content) < length_of(fields):
            return
        self._request = b""
        reply = self._fake.reply(path, content, fields.get("authorization"))
        self._replying = asyncio.create_task(self._play(reply))

    async def _play(self, reply: Reply) -> None:
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        self._stream.data_received(head_of(reply))
        for at_s, block in reply.blocks:
            await asyncio.sleep(start_s + at_s - loop.time())
            self._stream.data_received(chunk(block))
        self._stream.data_received(LAST_CHUNK)

    def abort(self) -> None:
        if self._replying is not None:
            self._replying.cancel()
        self._stream.connection_lost(None)


async def listen(script: Script, port: int) -> None:
    server = await asyncio.start_server(FakeOpenAI(script).handle, "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()


def main() -> None:
    """Times in ms; with none the whole answer comes at once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--num-text", type=int, default=64)
    parser.add_argument("--first-text", type=float, default=0)
    parser.add_argument("--text-gap", type=float, default=0)
    parser.add_argument("--num-packets", type=int, default=10)
    parser.add_argument("--first-packet", type=float, default=0)
    parser.add_argument("--packet-gap", type=float, default=0)
    parser.add_argument("--packet", type=float, default=800)
    parser.add_argument("--dialect", default="openai")
    of = parser.parse_args()
    text = [(of.first_text + of.text_gap * index) / 1e3 for index in range(of.num_text)]
    sound = [
        ((of.first_packet + of.packet_gap * index) / 1e3, of.packet / 1e3)
        for index in range(of.num_packets)
    ]
    asyncio.run(listen(Script(text, sound, dialect=of.dialect), of.port))


if __name__ == "__main__":
    main()
