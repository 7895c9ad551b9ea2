"""`Omni` over real engines: 64 answers are the server's over the same stages; Ctrl-C in a list."""

import asyncio
import base64
import os
import signal
import threading
from typing import Any

import httpx
import numpy as np
import pytest
from support.api.prompts import RATE, image_part, picture, sound, sound_part
from support.gateway.offline import engine_of, served
from support.servers.server import SETTLE_S, assert_same_sound
from support.waiting import wait_until

from omnistage import Answer, Audio, Omni, Text

pytestmark = pytest.mark.engine

NUM_PROMPTS = 64
FEW: dict[str, Any] = {"max_completion_tokens": 12}
SPOKEN: dict[str, Any] = {
    "modalities": ["text", "audio"],
    "audio": {"voice": "ethan", "format": "pcm16"},
    "stage_params": {"talker": {"temperature": 0, "max_tokens": 24}},
    "return_codes": True,
}


def prompt(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of a chat as Python has them, and as JSON: every fourth is about a medium."""
    text = f"Question {number}: what is {number} times {number * 7 % 13}?"
    ours: list[Any] = [text]
    theirs: list[Any] = [{"type": "text", "text": text}]
    if number % 8 == 2:
        image = picture(64, 96, seed=number)
        ours, theirs = [image, *ours], [image_part(image), *theirs]
    if number % 8 == 6:
        samples = sound(1600 * (1 + number // 8))
        ours = [{"type": "audio", "audio": (samples, RATE)}, *ours]
        theirs = [sound_part(samples), *theirs]
    fields: dict[str, Any] = {**FEW, **(SPOKEN if number % 4 == 1 else {})}
    fields |= {"seed": number} if number % 2 else {"temperature": 0}
    sent = {**fields, "messages": [{"role": "user", "content": theirs}]}
    return {**fields, "messages": [{"role": "user", "content": ours}]}, sent


async def asked(url: str, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(timeout=600) as client:
        posts = (client.post(f"{url}/v1/chat/completions", json=body) for body in bodies)
        answers = await asyncio.gather(*posts)
    assert {answer.status_code for answer in answers} == {200}
    return [answer.json() for answer in answers]


def test_64_answers_are_the_server_s(omni: Omni) -> None:
    prompts = [prompt(number) for number in range(NUM_PROMPTS)]
    with served(omni) as url:
        answered = asyncio.run(asked(url, [theirs for _, theirs in prompts]))
    answers = omni.generate([ours for ours, _ in prompts])
    assert len(answers) == NUM_PROMPTS
    assert sum(answer.audio is not None for answer in answers) == NUM_PROMPTS // 4
    for number, (ours, theirs) in enumerate(zip(answers, answered, strict=True)):
        assert_same(ours, theirs, f"prompt {number}")


def assert_same(ours: Answer, theirs: dict[str, Any], which: str) -> None:
    (choice,) = theirs["choices"]
    audio = choice["message"].get("audio") or {"transcript": "", "codes": [], "data": ""}
    assert ours.text == (choice["message"]["content"] or audio["transcript"]), which
    assert ours.finish_reason == choice["finish_reason"], which
    assert ours.usage.input_details == theirs["usage"]["prompt_tokens_details"], which
    assert ours.usage.output_tokens == theirs["usage"]["completion_tokens"], which
    assert [list(frame) for frame in ours.codes] == audio["codes"], which
    pcm = np.frombuffer(base64.b64decode(audio["data"]), "<i2")
    assert_same_sound(pcm[:0] if ours.audio is None else ours.audio.samples, pcm)


def test_a_stream_is_the_whole_answer(omni: Omni) -> None:
    whole = omni.chat("Say hello.", temperature=0, **FEW, **SPOKEN)
    *pieces, answer = omni.stream_chat("Say hello.", temperature=0, **FEW, **SPOKEN)
    assert isinstance(answer, Answer)
    assert "".join(one.text for one in pieces if isinstance(one, Text)) == whole.text
    assert (answer.text, answer.codes) == (whole.text, whole.codes)
    assert whole.audio is not None
    sounds = [one.samples for one in pieces if isinstance(one, Audio)]
    assert_same_sound(np.concatenate(sounds), whole.audio.samples)


def test_ctrl_c_ends_a_list_and_leaves_nothing_in_the_stages(omni: Omni) -> None:
    """The next request is answered as ever; the fixture looks at what is left at the end."""
    runtime = engine_of(omni).runtime

    def interrupt() -> None:
        wait_until(lambda: runtime.flights.num_running)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    endless = {"ignore_eos": True, "max_completion_tokens": 900, "messages": "Say hello."}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            omni.generate([endless] * 12)
    finally:
        signal.signal(signal.SIGINT, before)
    assert runtime.flights.num_running + runtime.flights.num_waiting == 0
    wait_until(lambda: not held(omni), SETTLE_S)
    assert omni.chat("Say hello.", **FEW).usage.output_tokens <= 12


def held(omni: Omni) -> list[int]:
    """What stages hold for requests, and how many they have."""
    health = engine_of(omni).runtime.fleet.health.values()
    counts = [[stage["running"], *stage["held"].values()] for stage in health]
    return [count for some in counts for count in some if count]
