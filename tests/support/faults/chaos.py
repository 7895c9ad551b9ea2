"""Killing and stopping the processes below a tiny server, and what its clients see of it."""

import asyncio
import base64
import contextlib
import fcntl
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml
from support.api.prompts import QUESTIONS
from support.servers.server import VERIFY, Reply, TinyServer, assert_same_sound, decoded

from omnistage.connectors.sweep import DEFAULT_ROOT, LOCK, PREFIX
from omnistage.stage_configs.pick import GRAPHS

WORKER, JUDGE = "omnistage.stages.worker.worker", "omnistage.stages.vllm.grammars.grammar_judge"
IMPORTER = "--importer"
HANG_S = 6.0
PROMPT_S = 1.0  # for a client to hear of it
AUDIO_STAGES = {"thinker", "talker", "code2wav"}
TEXT_STAGES = {"thinker"}
NUM_STREAMS = 4  # of each sort
HELLO = QUESTIONS[0].messages
LENGTH = 900  # tokens, and frames
LONG = {
    "max_completion_tokens": LENGTH,
    "ignore_eos": True,
    "stage_params": {"talker": {"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True}},
}
NUM_SAMPLES = LENGTH * 1920 - 555  # code2wav's last frame is shorter


def chaos_graph(folder: Path, hang_s: float = HANG_S) -> Path:
    """The tiny graph with room for all streams and a short patience with hung stages.

    The talker's engine is forked; the thinker's is a new interpreter, with a resource tracker.
    """
    graph = yaml.safe_load((GRAPHS / "qwen3_omni_tiny.yaml").read_text())
    thinker = graph["stages"]["thinker"]
    thinker["environment"] = {**thinker["environment"], "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    for name in ("thinker", "talker"):
        graph["stages"][name]["engine"]["max_num_seqs"] = 2 * NUM_STREAMS
    graph["deadlines"] = {"hang_s": hang_s}
    path = folder / "chaos.yaml"
    path.write_text(yaml.safe_dump(graph))
    return path


# Processes


@dataclass(frozen=True)
class Victim:
    """A process below a server."""

    pid: int
    stage: str
    role: str  # worker, importer, engine, resource tracker or judge of grammars

    def __str__(self) -> str:
        return f"{self.stage} {self.role}"


def descendants(pid: int) -> list[int]:
    """All processes below one, parents first."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            for child in map(int, children.read_text().split()):
                found += [child, *descendants(child)]
    return found


def victims(server: TinyServer) -> list[Victim]:
    """Every process below a server: workers and importers by their command line, others by their
    worker.

    An engine names itself anew, and with that hides its command line and its environment.
    """
    found = []
    for pid in filter(is_there, descendants(server.process.pid)):
        words = command_of(pid)
        if WORKER in words:
            stage = words[words.index("--stage") + 1]
            if IMPORTER in words:
                found.append(Victim(pid, stage, "importer"))
                continue
            below = filter(is_there, descendants(pid))
            found.append(Victim(pid, stage, "worker"))
            found += [Victim(one, stage, role_below_a_worker(one)) for one in below]
    return sorted(found, key=lambda victim: (victim.stage, victim.role))


def role_below_a_worker(pid: int) -> str:
    """Of a process that a worker, or an engine of it, has started."""
    words = command_of(pid)
    if any("resource_tracker" in word for word in words):
        return "tracker"
    return "judge" if JUDGE in words else "engine"


def command_of(pid: int) -> list[str]:
    """A process's command line, which may be one text; of one that has just ended, nothing."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        return line.replace("\0", " ").split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def is_there(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def open_files(server: TinyServer) -> dict[str, int]:
    """Open descriptors of every process of the server."""
    pids = {"server": server.process.pid}
    lasting = [one for one in victims(server) if one.role in ("worker", "importer", "engine")]
    pids |= {f"{one} {one.pid}": one.pid for one in lasting}
    found = {}
    for name, pid in pids.items():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            found[name] = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return found


def open_targets(server: TinyServer) -> dict[str, list[str]]:
    """What is open in every worker and engine of the server."""
    found: dict[str, list[str]] = {}
    for one in victims(server):
        targets = found.setdefault(str(one), [])
        for link in Path(f"/proc/{one.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                targets.append(os.readlink(link))
    return found


# Streams


class Stream:
    """One client's stream: what it got, and when and how it ended."""

    def __init__(self, has_audio: bool) -> None:
        self.needs = AUDIO_STAGES if has_audio else TEXT_STAGES
        self.has_begun = asyncio.Event()
        self.error: dict[str, object] | None = None
        self.has_finished = False
        self.ended_at = 0.0
        self.finish_reason = ""
        self.num_samples = 0
        self._has_audio = has_audio

    @property
    def is_whole(self) -> bool:
        """Whether it got all that it asked for, and no error."""
        num_samples = NUM_SAMPLES if self._has_audio else 0
        has_all = self.finish_reason == "length" and self.num_samples == num_samples
        return self.has_finished and self.error is None and has_all

    async def run(self, server: TinyServer) -> None:
        """Read to the end."""
        body = server.body(HELLO, stream=True, **LONG)
        if not self._has_audio:
            for key in ("audio", "return_codes", "stage_params"):
                del body[key]
            body["modalities"] = ["text"]
        try:
            async with (
                httpx.AsyncClient(timeout=600, verify=VERIFY) as client,
                client.stream("POST", f"{server.url}/v1/chat/completions", json=body) as response,
            ):
                assert response.status_code == 200, await response.aread()
                async for line in response.aiter_lines():
                    self._take(line)
        finally:
            self.ended_at = time.monotonic()
            self.has_begun.set()

    def _take(self, line: str) -> None:
        if line == "data: [DONE]":
            self.has_finished = True
        elif line.startswith("data: "):
            event = decoded(line)
            if "error" in event:
                self.error = event["error"]
                return
            for choice in event["choices"]:
                self._take_choice(choice)

    def _take_choice(self, choice: dict[str, Any]) -> None:
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        sound = (choice["delta"].get("audio") or {}).get("data") or ""
        self.num_samples += len(base64.b64decode(sound)) // 2
        if self._is_substance(choice["delta"]):
            self.has_begun.set()

    def _is_substance(self, delta: dict[str, object]) -> bool:
        audio = delta.get("audio") or {}
        assert isinstance(audio, dict)
        return bool(audio.get("data") if self._has_audio else delta.get("content"))


async def streams_under_way(
    server: TinyServer,
) -> tuple[list[Stream], list[asyncio.Task[None]]]:
    """Four streams with audio and four without, all of them begun and none ended."""
    for _ in range(30):  # on a busy machine the first may end before the last begins
        streams = [Stream(has_audio) for has_audio in (True, False) for _ in range(NUM_STREAMS)]
        running = []
        for group in (streams[:NUM_STREAMS], streams[NUM_STREAMS:]):  # text is quick: it comes last
            running += [asyncio.create_task(stream.run(server)) for stream in group]
            await asyncio.gather(*(stream.has_begun.wait() for stream in group))
        if not any(stream.has_finished for stream in streams):
            return streams, running
        await asyncio.gather(*running)
        assert not any(stream.error for stream in streams), [stream.error for stream in streams]
    raise AssertionError("the streams are too short")


@dataclass(frozen=True)
class Outcome:
    """What one blow did: seconds from it to the last error, and to the next good answer."""

    victim: Victim
    blow: signal.Signals
    error_s: float
    service_s: float


def allowed_s(blow: signal.Signals, within_s: float = PROMPT_S) -> float:
    """A kill is seen at once, a stop after the time that the graph gives a hung stage."""
    return within_s if blow is signal.SIGKILL else HANG_S + within_s


def is_missed(victim: Victim, blow: signal.Signals) -> bool:
    """Whether a stage needs the process: a tracker is nobody's, an importer only starts stages."""
    return victim.role != "tracker" and (victim.role, blow) != ("importer", signal.SIGSTOP)


def check_streams(streams: Sequence[Stream], victim: Victim, blow: signal.Signals) -> None:
    """Those that needed the process got an error that names its stage, all others are whole.

    A stopped process may have sent all that a stream still needed of it, but not all of every one.
    The talker's worker opens a request and then has no part in it: its engine goes on alone.
    """
    hit = [one for one in streams if is_missed(victim, blow) and victim.stage in one.needs]
    failed = [one for one in hit if one.error is not None]
    for stream in failed:
        message = str((stream.error or {})["message"])
        assert stream.has_finished
        assert victim.stage in message
        assert ("no sign of life" in message) == (blow is signal.SIGSTOP), message
    for stream in streams:
        assert stream in failed or stream.is_whole, (str(victim), vars(stream))
    if blow is signal.SIGKILL:
        assert failed == hit, victim
    elif hit and (victim.stage, victim.role) != ("talker", "worker"):
        assert failed, f"all streams of the stopped {victim} went on to their end"


async def strike(
    server: TinyServer,
    victim: Victim,
    blow: signal.Signals,
    expected: Reply,
    within_s: float = PROMPT_S,
) -> Outcome:
    """Hit one process during eight streams; checks all that must hold, and says how long it took.

    All streams go on if no stage needs the process.
    """
    before = server.health()
    streams, running = await streams_under_way(server)
    os.kill(victim.pid, blow)
    struck_at = time.monotonic()
    await asyncio.gather(*running)
    check_streams(streams, victim, blow)
    error_s = max((s.ended_at - struck_at for s in streams if s.error is not None), default=0.0)
    assert error_s < allowed_s(blow, within_s), (victim, error_s)
    if is_missed(victim, blow):  # a stage may have had no more to do for its streams
        await death_is_known(server, victim, before, allowed_s(blow, within_s))
        await ready_again(server)
    await check_answer(server, expected)
    service_s = time.monotonic() - struck_at
    check_generations(server, before, {victim.stage} if is_missed(victim, blow) else set())
    if blow is signal.SIGSTOP and is_there(victim.pid):
        os.kill(victim.pid, signal.SIGCONT)
    return Outcome(victim, blow, error_s, service_s)


async def kill_idle(
    server: TinyServer, victim: Victim, expected: Reply, within_s: float = PROMPT_S
) -> None:
    """kill -9 of a process while no request runs: its death is seen without one."""
    before = server.health()
    assert not any(stage["running"] for stage in before.values())
    os.kill(victim.pid, signal.SIGKILL)
    await death_is_known(server, victim, before, within_s)
    await ready_again(server)
    await check_answer(server, expected)
    check_generations(server, before, {victim.stage})


async def death_is_known(
    server: TinyServer, victim: Victim, before: dict[str, Any], within_s: float
) -> None:
    """Wait until the victim's stage has been started again since `before`."""
    began_at = time.monotonic()
    while server.health()[victim.stage]["restarts"] == before[victim.stage]["restarts"]:
        assert time.monotonic() - began_at < within_s, victim
        await asyncio.sleep(0.02)


async def check_answer(server: TinyServer, expected: Reply) -> None:
    """The server answers as it did before."""
    answer = await server.ask(HELLO)
    assert answer.text == expected.text
    assert answer.codes.tolist() == expected.codes.tolist()
    assert_same_sound(answer.pcm, expected.pcm)


def check_generations(server: TinyServer, before: dict[str, Any], struck: set[str]) -> None:
    """Stages that were struck have started again once, and no other has."""
    for name, stage in server.health().items():
        assert stage["generation"] == before[name]["generation"] + (name in struck), name


async def load(server: TinyServer) -> None:
    """Eight clients that ask again and again, whatever the answer is."""

    async def ask(has_audio: bool) -> None:
        while True:
            stream = Stream(has_audio)
            with contextlib.suppress(httpx.TransportError, AssertionError):  # it dies, it loads
                await stream.run(server)
            await asyncio.sleep(0.1)

    async with asyncio.TaskGroup() as group:
        for index in range(2 * NUM_STREAMS):
            group.create_task(ask(has_audio=index % 2 == 0))


async def kill_under_load(server: TinyServer, after_s: float, within_s: float = 2.0) -> float:
    """kill -9 of a server `after_s` after its start; seconds until no process of its is left."""
    loading = asyncio.create_task(load(server))
    await asyncio.sleep(after_s)
    below = descendants(server.process.pid)
    assert server.process.poll() is None
    server.is_killed = True
    server.process.kill()
    killed_at = time.monotonic()
    server.process.wait()
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    while left := [pid for pid in below if is_there(pid)]:
        assert time.monotonic() - killed_at < within_s, left
        await asyncio.sleep(0.01)
    return time.monotonic() - killed_at


def traces(pid: int | None = None) -> set[Path]:
    """Files in memory and on disk of runs, of one server's or all; semaphores are nobody's."""
    owner = "" if pid is None else f"{pid}-"
    roots = (DEFAULT_ROOT, Path(tempfile.gettempdir()))
    found = {path for root in roots for path in root.glob(f"{PREFIX}{owner}*")}
    return found if pid is not None else found | set(DEFAULT_ROOT.glob("sem.mp-*"))


@contextlib.contextmanager
def kept_folders(pid: int) -> Iterator[None]:
    """When that server dies its folders stay to the end of the context, whoever else starts one.

    The first that waits for a lock gets it when the kernel frees it, and a sweep does not wait. If
    the server lives on, as it does when a test fails, nobody waits for those that wait.
    """
    with contextlib.ExitStack() as opened:
        for lock in DEFAULT_ROOT.glob(f"{PREFIX}{pid}-*/{LOCK}"):
            file = opened.enter_context(lock.open())
            threading.Thread(target=fcntl.flock, args=(file, fcntl.LOCK_EX), daemon=True).start()
        yield


async def ready_again(server: TinyServer, within_s: float = 600.0) -> None:
    """Until every stage serves."""
    started = time.monotonic()
    async with httpx.AsyncClient(timeout=600, verify=VERIFY) as client:
        while (await client.get(f"{server.url}/ready")).status_code != 200:
            assert time.monotonic() - started < within_s
            await asyncio.sleep(0.1)
