"""Clients of several servers behind one address, whose processes are killed meanwhile."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import psutil
from rich.console import Console
from support.gateway.serving import MODEL as FAKE

NUM_CLIENTS = 4
STRIKE_AFTER_S = 2.0
PAUSE_AFTER_FAILURE_S = 0.2
OK = "ok"
STAGES = ("thinker", "talker", "code2wav")
console = Console(soft_wrap=True, highlight=False)


def body(model: str, number: int) -> dict[str, Any]:
    """One of three short questions, to be answered by text and speech; fake stages only write."""
    asked = {"model": model, "messages": [{"role": "user", "content": f"Tell me of {number % 3}."}]}
    if model == FAKE:
        return {**asked, "stream": True}
    return {
        **asked,
        "modalities": ["text", "audio"],
        "audio": {"voice": "ethan", "format": "pcm16"},
        "temperature": 0,
        "max_completion_tokens": 12,
        "stage_params": {"talker": {"temperature": 0, "max_tokens": 24}},
        "stream": True,
    }


async def ask(client: httpx.AsyncClient, url: str, model: str, number: int) -> str:
    """`ok`, or what went wrong."""
    last = ""
    try:
        asked = client.stream("POST", f"{url}/v1/chat/completions", json=body(model, number))
        async with asked as response:
            if response.status_code != httpx.codes.OK:
                return f"{response.status_code} {code_of(await response.aread())}"
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        return str(event["error"]["code"] or "error")
                last = line or last
    except httpx.HTTPError as error:
        return type(error).__name__
    return OK if last == "data: [DONE]" else "cut"


def code_of(body: bytes) -> str:
    """Returns what an error calls itself."""
    try:
        return str(json.loads(body)["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


async def under_load(
    url: str, model: str, seconds: float, strike: Callable[[], object]
) -> Counter[str]:
    """How the answers of a few clients ended, while something is killed after two seconds."""
    counted: Counter[str] = Counter()
    ends_at = time.monotonic() + seconds

    async def stream(client: httpx.AsyncClient, number: int) -> None:
        while time.monotonic() < ends_at:
            said = await ask(client, url, model, number)
            counted[said] += 1
            if said != OK:
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    async def later() -> None:
        await asyncio.sleep(STRIKE_AFTER_S)
        strike()

    async with httpx.AsyncClient(timeout=120) as client:
        await asyncio.gather(later(), *(stream(client, number) for number in range(NUM_CLIENTS)))
    return counted


def check(what: str, counted: Mapping[str, int], most: int = NUM_CLIENTS) -> None:
    """Print how answers ended; at most those that were in flight may have failed."""
    failed = sum(number for how, number in counted.items() if how != OK)
    console.print(f"{what}: {dict(counted)}")
    assert counted[OK], f"{what}: nothing was answered"
    assert failed <= most, f"{what}: {failed} failed, at most {most} were in flight"


def stages_of(server: int) -> dict[str, int]:
    """Returns the processes of a server's stages, by name."""
    found: dict[str, int] = {}
    for child in psutil.Process(server).children(recursive=True):
        command = " ".join(child.cmdline()).split()
        if "--importer" not in command:
            found |= {name: child.pid for name in STAGES if name in command}
    return found


def below(pid: int) -> list[int]:
    """All processes below one."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def alive(pids: list[int]) -> list[int]:
    """Returns the processes that still run."""
    return [pid for pid in pids if _runs(pid)]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(what: str, is_true: Callable[[], object], within_s: float = 600) -> float:
    """How long it took."""
    began_at = time.monotonic()
    while not is_true():
        assert time.monotonic() - began_at < within_s, what
        time.sleep(0.25)
    return time.monotonic() - began_at


def is_ready(url: str) -> bool:
    """Returns whether GET /ready is a 200."""
    try:
        return httpx.get(f"{url}/ready", timeout=10).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
