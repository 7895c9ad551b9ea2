"""Asks a server of a speaking model, and has the reference judge its answers."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import SERVICE_UNAVAILABLE

import httpx
import numpy as np
from support.printing import say
from support.servers.server import TinyServer

NUM_WORDS = 66
MAX_TOKENS = 64
NUM_FRAMES = 100
# of what eager mode answers itself: it is slow
NUM_SPOKEN = 8
GAP_NATS = 0.5  # rounding moves a logprob by less in nearly all tokens
MAX_ABOVE = 0.01  # the share of tokens that may be further away
WRONG_NATS = 2.0  # and this is no rounding
MIN_SAME_FIRST_CODES = 0.6


@dataclass(frozen=True)
class Lengths:
    """The lengths of requests: words of a prompt, tokens of an answer; and how many are checked."""

    words: int = NUM_WORDS
    tokens: int = MAX_TOKENS
    num_checked: int = NUM_SPOKEN


USUAL = Lengths()


LENGTHS = {
    "speech": Lengths(tokens=30),  # of 8 s, as people speak
    "long": Lengths(words=2500, num_checked=4),
}


@dataclass(frozen=True)
class Answer:
    """One answer's ids: of its prompt, of its text, and its codec frames [frames, 16]."""

    prompt: list[int]
    text: list[int]
    codes: list[list[int]]


@dataclass(frozen=True)
class Verdict:
    """The reference's verdict on one round of answers."""

    name: str
    num_tokens: int
    num_above: int
    worst: float
    num_empty: int
    num_comparable: int
    num_same_codes: int
    least: float = MIN_SAME_FIRST_CODES

    @property
    def is_right(self) -> bool:
        """Returns whether no more is wrong than rounding explains."""
        few = self.num_above <= MAX_ABOVE * self.num_tokens and self.worst < WRONG_NATS
        enough = self.num_same_codes >= self.least * self.num_comparable
        return few and enough and self.num_tokens > 0 and self.num_empty == 0

    def __str__(self) -> str:
        return (
            f"{self.name}: {'right' if self.is_right else 'WRONG'}; "
            f"{self.num_tokens} text tokens, {self.num_above} more than {GAP_NATS} nats from the "
            f"likeliest, the worst {self.worst:.2f}; first codes equal in {self.num_same_codes} of "
            f"{self.num_comparable}; {self.num_empty} answers not whole"
        )


def prompts(words: Sequence[str], count: int, lengths: Lengths = USUAL) -> list[str]:
    """Different ones, always the same."""
    chance = random.Random(7)
    return [" ".join(chance.choices(words, k=lengths.words)) for _ in range(count)]


async def ask(
    client: httpx.AsyncClient,
    server: TinyServer,
    prompt: str,
    frames: int,
    voice: str,
    tokens: int = MAX_TOKENS,
) -> Answer:
    """One answer with its ids; the likeliest token and code every time.

    A refused request comes again: a server with a limit of the first sound lets few in at first.
    """
    talker = {"temperature": 0, "repetition_penalty": 1.0, "max_tokens": frames, "ignore_eos": True}
    body = server.body(
        [{"role": "user", "content": prompt}],
        max_completion_tokens=tokens,
        ignore_eos=True,
        return_token_ids=True,
        stage_params={"talker": talker},
        audio={"voice": voice, "format": "pcm16"},
        seed=1,
    )
    url = f"{server.url}/v1/chat/completions"
    while (response := await client.post(url, json=body)).status_code == SERVICE_UNAVAILABLE:  # noqa: ASYNC110
        await asyncio.sleep(float(response.headers["retry-after"]))
    response.raise_for_status()
    said = response.json()
    choice = said["choices"][0]
    return Answer(
        said["prompt_token_ids"], choice["token_ids"], choice["message"]["audio"]["codes"]
    )


async def ask_all(
    server: TinyServer,
    voice: str,
    asked: Sequence[str],
    frames: int,
    at_once: int = 1 << 20,
    tokens: int = MAX_TOKENS,
) -> list[Answer]:
    """All answers, so many at once."""
    seats = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=256)) as client:

        async def one(prompt: str) -> Answer:
            async with seats:
                return await ask(client, server, prompt, frames, voice, tokens)

        return list(await asyncio.gather(*map(one, asked)))


async def gaps(client: httpx.AsyncClient, server: TinyServer, answer: Answer) -> list[float]:
    """How many nats each token of an answer is below the likeliest one, by this server."""
    body = {
        "model": server.model,
        "prompt": [*answer.prompt, *answer.text],
        "max_tokens": 0,
        "echo": True,
        "logprobs": 1,
        "temperature": 0,
    }
    response = await client.post(f"{server.url}/v1/completions", json=body)
    response.raise_for_status()
    found = response.json()["choices"][0]["logprobs"]
    start = len(answer.prompt)
    rows = zip(found["token_logprobs"][start:], found["top_logprobs"][start:], strict=True)
    return [max(top.values()) - given for given, top in rows]


async def judge(
    server: TinyServer,
    name: str,
    answers: list[Answer],
    expected: list[Answer],
    frames: int,
    least: float = MIN_SAME_FIRST_CODES,
    tokens: int = MAX_TOKENS,
) -> Verdict:
    """The reference's verdict on a round; its own answers are to the first prompts."""
    async with httpx.AsyncClient(timeout=300) as client:
        found = np.array([gap for one in answers for gap in await gaps(client, server, one)])
    pairs = [
        (one.codes[0], other.codes[0])
        for one, other in zip(answers, expected, strict=False)
        if one.text[:2] == other.text[:2] and one.codes and other.codes
    ]
    verdict = Verdict(
        name=name,
        num_tokens=len(found),
        num_above=int((found > GAP_NATS).sum()),
        worst=float(found.max(initial=0)),
        num_empty=sum((len(one.text), len(one.codes)) != (tokens, frames) for one in answers),
        num_comparable=len(pairs),
        num_same_codes=sum(one[0] == other[0] for one, other in pairs),
        least=least,
    )
    say(str(verdict))
    return verdict


def nan_steps(server: TinyServer) -> dict[str, int]:
    """Steps with a NaN, by stage."""
    return {name: stage["nan_steps"] for name, stage in server.health().items()}
