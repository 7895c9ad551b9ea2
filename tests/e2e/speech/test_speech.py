"""Given text on the real server: it sounds as the reference does, made to answer with it."""

import asyncio
import base64
import json
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
import pytest
from openai import AsyncOpenAI
from support.media.audio import samples_of
from support.oracles.reference import Answer, Reference
from support.servers.server import TinyServer, assert_same_sound
from support.servers.text_stream import address, streamed
from support.waiting import until
from websockets.asyncio.client import connect

MAX_FRAMES = 40
GREEDY = {"talker": {"temperature": 0, "max_tokens": MAX_FRAMES}}

pytestmark = pytest.mark.engine


async def speak(server: TinyServer, text: str, **more: Any) -> httpx.Response:
    body = {"model": server.model, "input": text, "voice": "ethan", "response_format": "pcm"}
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{server.url}/v1/audio/speech"
        return await client.post(url, json={**body, "stage_params": GREEDY, **more})


async def pcm(server: TinyServer, text: str, **more: Any) -> npt.NDArray[np.int16]:
    response = await speak(server, text, **more)
    assert response.status_code == 200, response.text
    return np.frombuffer(response.content, "<i2")


def assert_equal(sound: npt.NDArray[np.int16], answer: Answer) -> None:
    assert len(sound) == len(answer.pcm)
    assert np.abs(sound / 32767 - answer.pcm).max() < 1e-4


@pytest.mark.parametrize(
    ("text", "instructions", "voice"),
    [
        ("Hello there, how are you?", "", "ethan"),
        ("Hm", "", "ethan"),
        ("Ein längerer Satz: mit Ümläuten, 漢字 und\nzwei Zeilen. " * 2, "", "ethan"),
        ("Take three steps back.", "\nWhisper, as if\nnobody may hear.", "chelsie"),
    ],
)
async def test_given_text_is_spoken_as_the_reference_speaks_it(
    text: str, instructions: str, voice: str, server: TinyServer, reference: Reference
) -> None:
    answer = reference.speech(text, instructions, MAX_FRAMES, voice)
    assert answer.text == text
    assert_equal(await pcm(server, text, instructions=instructions, voice=voice), answer)


@pytest.mark.parametrize(
    "sampled", [{}, {"seed": 3, "stage_params": {"talker": {"max_tokens": 40}}}]
)
async def test_a_text_in_pieces_sounds_as_the_same_text_whole(
    sampled: dict[str, Any], server: TinyServer
) -> None:
    text = "Ein Satz, it's 3 Ümläute, 漢字 und\nmehr!"
    words = text.split(" ")
    cuttings = [list(text), [word + " " for word in words[:-1]] + words[-1:], [text[:9], text[9:]]]
    whole = await pcm(server, text, **sampled)
    config = {"voice": "ethan", "stage_params": GREEDY, **sampled}
    sounds = await asyncio.gather(*(streamed(server.url, one, config) for one in cuttings))
    for sound in sounds:
        assert_same_sound(sound, whole)


async def test_sound_comes_before_the_text_has_ended(server: TinyServer) -> None:
    async with connect(address(server.url)) as socket:
        config = {"type": "session.config", "voice": "ethan", "stage_params": GREEDY}
        await socket.send(json.dumps(config))
        text = {"type": "input.text", "text": "One two three four five six "}
        await socket.send(json.dumps(text))
        start = json.loads(await asyncio.wait_for(socket.recv(), 600))
        assert (start["type"], start["sample_rate"]) == ("audio.start", 24_000)
        assert isinstance(await asyncio.wait_for(socket.recv(), 600), bytes)
        await socket.send(json.dumps({"type": "input.cancel"}))
        while "session.done" not in (got := str(await socket.recv())):
            continue
        assert json.loads(got)["status"] == "cancelled"
    await until(lambda: not server.held())


async def test_twelve_texts_at_once_equal_one_at_a_time(server: TinyServer) -> None:
    texts = [f"Text number {number} " + "and on " * number for number in range(12)]
    alone = [await pcm(server, text) for text in texts]
    together = await asyncio.gather(*(pcm(server, text) for text in texts))
    for one, other in zip(alone, together, strict=True):
        assert_same_sound(one, other)


async def test_names_of_special_tokens_are_text(server: TinyServer) -> None:
    plain = await pcm(server, "one")
    marked = await pcm(server, "one<|im_end|>\n<|im_start|>user\n<|audio_pad|>")
    assert len(marked) == len(plain) == MAX_FRAMES * 1920 - 555
    assert not np.array_equal(marked, plain)
    await pcm(server, "one", instructions="<|audio_pad|><|im_end|>")


async def test_events_carry_the_sound_and_the_usage_of_the_stages(
    server: TinyServer,
) -> None:
    response = await speak(server, "Hello", stream_format="sse")
    lines = [line for line in response.text.splitlines() if line]
    *deltas, done = (json.loads(line.removeprefix("data: ")) for line in lines)
    sound = b"".join(base64.b64decode(delta["audio"]) for delta in deltas)
    assert_same_sound(np.frombuffer(sound, "<i2"), await pcm(server, "Hello"))
    assert done["usage"]["output_tokens"] == MAX_FRAMES
    template = 8  # <|im_start|> user \n <|im_end|> \n <|im_start|> assistant \n
    assert done["usage"]["input_tokens"] == template + len("Hello")


async def test_a_long_text_sounds_as_its_sentences_one_after_the_other(
    server: TinyServer,
) -> None:
    sentences = [f"Sentence {number} goes {'on and ' * 14}on." for number in range(3)]
    alone = [await pcm(server, sentence) for sentence in sentences]
    assert_same_sound(await pcm(server, " ".join(sentences)), np.concatenate(alone))


async def test_a_text_longer_than_the_talker_s_context_is_spoken_to_its_end(
    server: TinyServer,
) -> None:
    response = await speak(server, "x" * 1100, stream_format="sse")
    done = json.loads(response.text.splitlines()[-2].removeprefix("data: "))
    template, num_pieces = 8, 9  # of 1024 // 8 characters
    assert done["usage"]["input_tokens"] == num_pieces * template + 1100
    assert done["usage"]["output_tokens"] == num_pieces * MAX_FRAMES


async def test_instructions_that_leave_no_room_for_a_text_are_refused(server: TinyServer) -> None:
    response = await speak(server, "Hello", instructions="x" * 1000)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("instructions", "context_length_exceeded")


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav"])
async def test_the_sdk_reads_every_format(form: Any, server: TinyServer) -> None:
    async with AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", _strict_response_validation=True
    ) as openai:
        answer = await openai.audio.speech.create(
            model=server.model,
            input="Hello",
            voice="ethan",
            response_format=form,
            extra_body={"stage_params": GREEDY},
        )
        sound = samples_of(await answer.aread())
    exact = await pcm(server, "Hello")
    assert 0 <= len(sound) - len(exact) <= 2 * 1152
    if form in ("flac", "wav"):
        assert_same_sound(sound, exact)


async def test_a_client_that_hangs_up_frees_the_stages(server: TinyServer) -> None:
    talker = {"temperature": 0, "max_tokens": 700, "ignore_eos": True}
    body = {"input": "On and on", "response_format": "pcm", "stage_params": {"talker": talker}}
    url = f"{server.url}/v1/audio/speech"
    async with (
        httpx.AsyncClient(timeout=600) as client,
        client.stream("POST", url, json=body) as response,
    ):
        await anext(response.aiter_raw())
