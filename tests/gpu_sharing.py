"""`make gpu-sharing`: the ways in which the talker and code2wav of Qwen3-Omni can share one GPU.

Two loads run beside each other, with dummy weights of the real size in bfloat16, in CUDA graphs:

- A talker's step: the code predictor as it is (15 passes for each row, sampled), behind a stand-in
  for the talker's layers, in one graph. The stand-in has the layers' weights and reads as many of
  them as a step does: attention's projections, the shared expert, and of the experts those that
  so many requests are expected to choose, each a batched product of its share of the rows: 0.57,
  2.2 and 6.0 GB for 1, 8 and 64 requests, beside the code predictor's 2.4. It has no attention
  over a KV cache, no router, no sampling of code 0, and nothing of vLLM.
- code2wav: for every 25 steps, 25 frames of each stream in batches of at most 400 frames, and the
  first frame of an eighth of the streams, which begin. It decodes as its engine does: fused
  kernels, graphs, int16 samples copied to the host. The talker is at most two chunks ahead.

The ways: each alone; two processes that take turns; two processes under MPS; two threads of one
process with a CUDA stream each, of equal priority or the talker's of a high one; the same with a
green context for code2wav, which has some multiprocessors to itself or shares them with a talker
that has all. "Host work" adds 1.5 ms of Python to each of the talker's steps, as its engine has:
threads of one process share the interpreter.

Each answer is compared with those of the loads alone. In green contexts, products of the thinker's
shapes are checked for values that are not written (docs/mps.md). A way that fails says why, and
the others go on. The exit code is 1 if an answer was wrong.
"""

import argparse
import contextlib
import math
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.gpu_loads import (
    CHUNK,
    CHUNK_FRAMES,
    CODE2WAV,
    FIRST,
    LOADS,
    NUM_SETS,
    STEP,
    TALKER,
    Answers,
    Array,
    Load,
    Plan,
    bytes_read,
    relative_rms,
)
from support.printing import numbers

from omnistage.server.runtime.mps_daemon import Mps, MpsError, mps_daemon
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.mps import ask_daemon
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.qwen3_omni.checkpoint.real_size import write_real_size_folder
from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint
from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder

FIRST_AT, CREDIT = 12, 2  # the step of a chunk at which first frames come due; chunks ahead
HOST_MS = 1.5
GREEN_SMS, WHOLE_TALKER_SMS = (16, 32, 64), 32  # of code2wav
PATIENCE_S = 180.0
# Rounding falls differently with other kernels, and a code that does changes all that follow.
LEAST_EQUAL, MOST_ERROR = 0.6, 0.05


@dataclass(frozen=True, slots=True)
class Job:
    """One way at one number of streams. `is_alone`: one load, as fast as it can, whose answers are
    the reference. `num_sms`: code2wav's in a green context, 0 without; the talker has the others,
    or with `is_talker_whole` all."""

    way: str
    level: int
    seconds: float
    is_alone: bool = False
    host_ms: float = 0.0
    talker_priority: int = 0
    num_sms: int = 0
    is_talker_whole: bool = False


@dataclass(frozen=True, slots=True)
class Ran:
    """A load in one way. `equal`: codec frames, or samples, as alone; `error`: relative RMS of the
    talker's hidden states, or of samples."""

    load: str
    ms: dict[str, list[float]]
    elapsed_s: float
    equal: float
    error: float

    @property
    def is_right(self) -> bool:
        """Whether it can be rounding."""
        if self.load == TALKER:
            return self.equal >= LEAST_EQUAL and self.error <= MOST_ERROR
        return self.error <= MOST_ERROR

    def percentile(self, kind: str, percent: float) -> float:
        """Milliseconds; NaN if there was none."""
        found = self.ms.get(kind, [])
        return float(np.percentile(found, percent)) if found else math.nan

    @property
    def rate(self) -> float:
        """Steps, or chunks, a second."""
        return len(self.ms.get(STEP if self.load == TALKER else CHUNK, [])) / self.elapsed_s


@dataclass(frozen=True, slots=True)
class Failed:
    """Why a process could not do a job."""

    why: str


# The arithmetic and the report


def equal_share(kind: str, ours: Array, reference: Array) -> float:
    """Of whole frames of codes, or of samples."""
    same = ours == reference
    return float(same.all(-1).mean() if kind == STEP else same.mean())


def compared(answers: Sequence[tuple[str, int, Array]], reference: Answers) -> tuple[float, float]:
    """The mean of what is equal, and the largest error, of answers to numbered inputs."""
    equal, error = [], 0.0
    for kind, number, ours in answers:
        expected = reference[kind][number % NUM_SETS]
        equal.append(equal_share(kind, ours, expected))
        if kind != STEP:
            error = max(error, relative_rms(ours, expected))
    return float(np.mean(equal)) if equal else math.nan, error


HEADER = (
    f"{'way':36}{'streams':>8}{'step p50':>10}{'p99 ms':>8}{'chunk p50':>11}{'first ms':>10}"
    f"{'steps/s':>9}{'of alone':>10}{'audio s/s':>11}{'of alone':>10}{'frames =':>10}"
    f"{'hidden':>9}{'samples =':>11}{'off':>9}"
)


@dataclass(slots=True)
class Report:
    """What the ways gave, beside each load alone, as lines of a table."""

    frame_s: float
    alone: dict[tuple[str, int], float] = field(default_factory=dict)
    steps: dict[int, dict[str, float]] = field(default_factory=dict)
    is_right: bool = True
    num_failed: int = 0

    def line(self, way: str, level: int, runs: Sequence[Ran], is_alone: bool = False) -> str:
        """One row; the ways with wrong answers are no candidates."""
        cells = [f"{way:36}{level:8}"]
        found = {run.load: run for run in runs}
        for run in runs:
            if is_alone:
                self.alone[run.load, level] = run.rate
        talker, code2wav = found.get(TALKER), found.get(CODE2WAV)
        cells.append(
            self._milliseconds(talker, STEP, 50, 10) + self._milliseconds(talker, STEP, 99, 8)
        )
        cells.append(self._milliseconds(code2wav, CHUNK, 50, 11))
        cells.append(self._milliseconds(code2wav, FIRST, 50, 10))
        cells.append(self._rate(talker, level, 1.0, 9))
        cells.append(self._rate(code2wav, level, level * CHUNK_FRAMES * self.frame_s, 11))
        for one, width in ((talker, 10), (code2wav, 11)):
            equal = "-" if one is None else "all" if one.equal == 1.0 else f"{one.equal:.2%}"
            error = "-" if one is None else f"{one.error:.1e}"
            cells.append(f"{equal:>{width}}{error:>9}")
        is_right = all(run.is_right for run in runs)
        self.is_right &= is_right
        if is_right and talker is not None and not is_alone:
            self.steps.setdefault(level, {})[way] = talker.rate
        return "".join(cells) + ("" if is_right else "  WRONG")

    def _milliseconds(self, run: Ran | None, kind: str, percent: float, width: int) -> str:
        return f"{'-' if run is None else format(run.percentile(kind, percent), '.2f'):>{width}}"

    def _rate(self, run: Ran | None, level: int, unit: float, width: int) -> str:
        if run is None:
            return f"{'-':>{width}}{'-':>10}"
        alone = self.alone.get((run.load, level))
        share = "-" if not alone else f"{run.rate / alone:.2f}"
        return f"{run.rate * unit:{width}.1f}{share:>10}"

    def ranking(self) -> list[str]:
        """A line for each number of streams: the right ways, the most steps a second first."""
        lines = []
        for level, steps in sorted(self.steps.items()):
            best = sorted(steps.items(), key=lambda one: -one[1])
            lines.append(
                f"{level} streams: " + ", ".join(f"{way} {rate:.1f}" for way, rate in best)
            )
        return lines


# Running them


class Pace:
    """code2wav's work comes due with the talker's steps, which are at most two chunks ahead.

    `made`: `threading`, or a context of multiprocessing.
    """

    def __init__(self, made: Any) -> None:
        self._start, self._ended = made.Barrier(2), made.Event()
        self._due, self._room = made.Semaphore(0), made.Semaphore(CREDIT)

    def reset(self) -> None:
        """For the next run; nobody uses it now."""
        for semaphore in (self._due, self._room):
            while semaphore.acquire(False):
                pass
        for _ in range(CREDIT):
            self._room.release()
        self._ended.clear()
        self._start.reset()

    def begin(self) -> None:
        """Wait until both are prepared; raises BrokenBarrierError if one cannot be."""
        self._start.wait(PATIENCE_S)

    def has_room(self, num_steps: int) -> bool:
        """Waits before the first step of a chunk; whether code2wav still runs."""
        if num_steps % CHUNK_FRAMES == 0 and not self._room.acquire(True, PATIENCE_S):
            raise TimeoutError("code2wav takes no more")
        return not self._ended.is_set()

    def stepped(self, num_steps: int) -> None:
        """First frames come due in the middle of a chunk's steps, the chunk after them."""
        if num_steps % CHUNK_FRAMES in (0, FIRST_AT):
            self._due.release()

    def has_work(self) -> bool:
        """Waits for it; whether the talker still runs."""
        if not self._due.acquire(True, PATIENCE_S):
            raise TimeoutError("the talker makes no more")
        return not self._ended.is_set()

    def decoded(self) -> None:
        """A chunk is done."""
        self._room.release()

    def end(self) -> None:
        """The other one ends too."""
        self._ended.set()
        self._due.release()
        self._room.release()

    def abort(self) -> None:
        """One of the two has failed."""
        self._start.abort()
        self.end()


def loop(count: int) -> None:
    """Python that lets no other thread of the interpreter run, but for its switches."""
    total = 0
    for number in range(count):
        total += number


@cache
def loops_per_ms() -> float:
    """Of this process when nothing else has its interpreter."""
    count, fastest_s = 100_000, math.inf
    for _ in range(5):
        began_at = time.perf_counter()
        loop(count)
        fastest_s = min(fastest_s, time.perf_counter() - began_at)
    return count / fastest_s / 1e3


class Stopwatch:
    """Times pieces of work, and keeps their results."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.ms: dict[str, list[float]] = {}
        self.answers: list[tuple[str, int, Array]] = []
        self._began_at = self._ended_at = time.perf_counter()

    def do(self, kind: str, then: Callable[[], None] = lambda: None) -> None:
        """The next piece of a kind, and what the host does with it."""
        times = self.ms.setdefault(kind, [])
        began_at = time.perf_counter()
        self.answers.append((kind, len(times), self._load.do(kind, len(times))))
        then()
        self._ended_at = time.perf_counter()
        times.append(1e3 * (self._ended_at - began_at))

    @property
    def elapsed_s(self) -> float:
        """From the beginning to the end of the last piece."""
        return max(1e-9, self._ended_at - self._began_at)


def step_on(watch: Stopwatch, job: Job, pace: Pace | None) -> None:
    """The talker's steps."""
    host = partial(loop, round(job.host_ms * loops_per_ms()))
    due_at = time.perf_counter() + job.seconds
    count = 0
    while time.perf_counter() < due_at and (pace is None or pace.has_room(count)):
        watch.do(STEP, host)
        count += 1
        if pace is not None:
            pace.stepped(count)


def decode_on(watch: Stopwatch, job: Job, pace: Pace | None) -> None:
    """First frames and chunks in turn."""
    due_at = time.perf_counter() + job.seconds
    kind = FIRST
    while pace.has_work() if pace is not None else time.perf_counter() < due_at:
        watch.do(kind)
        if kind == CHUNK and pace is not None:
            pace.decoded()
        kind = FIRST if kind == CHUNK else CHUNK


RUNS = {TALKER: step_on, CODE2WAV: decode_on}


def run_load(load: Load, job: Job, stream: Any, pace: Pace | None, plan: Plan) -> Ran:
    """In one thread; the load is prepared."""
    with on(stream):
        own = load.answers()  # which also warms up
        if job.is_alone and not answers_file(plan, load.name, job.level).exists():
            arrays: dict[str, Any] = {kind: np.stack(one) for kind, one in own.items()}
            np.savez(answers_file(plan, load.name, job.level), **arrays)
        with np.load(answers_file(plan, load.name, job.level)) as stored:
            reference = dict(stored)
        if pace is not None:
            pace.begin()
        watch = Stopwatch(load)
        try:
            RUNS[load.name](watch, job, pace)
        finally:
            if pace is not None:
                pace.end()
        equal, error = compared(watch.answers, reference)
        if load.name == TALKER and watch.answers:
            error = load.hidden_error(len(watch.ms[STEP]) - 1, reference)
        return Ran(load.name, watch.ms, watch.elapsed_s, equal, error)


def answers_file(plan: Plan, name: str, level: int) -> Path:
    """Of a load alone."""
    return plan.answers / f"{name}_{level}.npz"


def on(stream: Any) -> contextlib.AbstractContextManager[Any]:
    """This thread's kernels are this CUDA stream's, which is None on a CPU."""
    return contextlib.nullcontext() if stream is None else torch.cuda.stream(stream)


def do_job(job: Job, loads: Sequence[Load], pace: Pace | None, plan: Plan) -> list[Ran]:
    """With all loads of this process; `pace` is that of two processes."""
    streams = streams_of(job, loads, plan.device)
    for load in loads:
        with on(streams[load.name]):
            # Else torch.cuda.graph would record on a stream that it makes: a graph keeps the
            # priority and the context of the stream that it was recorded on.
            torch.cuda.graph.default_capture_stream = streams[load.name]
            load.prepare(job.level, streams[load.name])
    if plan.device == "cuda":
        torch.cuda.synchronize()
    if len(loads) == 1:
        shared = None if job.is_alone else pace
        return [run_load(loads[0], job, streams[loads[0].name], shared, plan)]
    pace = Pace(threading)
    with ThreadPoolExecutor(len(loads)) as threads:
        run = partial(aborting, pace)
        made = [
            threads.submit(run, partial(run_load, load, job, streams[load.name], pace, plan))
            for load in loads
        ]
    return [
        one.result()
        for one in sorted(
            made, key=lambda one: isinstance(one.exception(), threading.BrokenBarrierError)
        )
    ]


def aborting(pace: Pace | None, run: Callable[[], Any]) -> Any:
    """Its result; if it raises, the other load does not wait."""
    try:
        return run()
    except BaseException:
        if pace is not None:
            pace.abort()
        raise


# CUDA streams


def streams_of(job: Job, loads: Sequence[Load], device: str) -> dict[str, Any]:
    """Each load's; None on a CPU."""
    if device != "cuda":
        return {load.name: None for load in loads}
    if job.num_sms:
        from support.green_contexts import split

        part, rest = split(job.num_sms)
        talker = torch.cuda.Stream() if job.is_talker_whole else rest.stream
        return {CODE2WAV: part.stream, TALKER: talker}
    return {
        TALKER: torch.cuda.Stream(priority=job.talker_priority),
        CODE2WAV: torch.cuda.Stream(),
    }


# Processes


def host(connection: Connection, plan: Plan, names: Sequence[str], pace: Pace) -> None:
    """A process with one load or both: does what it is told, until it is told None."""
    try:
        if plan.device == "cpu":
            torch.set_num_threads(1)
        loops_per_ms()
        loads = [LOADS[name](plan) for name in names]
        connection.send(None)
    except Exception:  # noqa: BLE001
        connection.send(Failed(traceback.format_exc()))
        return
    while (task := connection.recv()) is not None:
        try:
            if isinstance(task, Job):
                connection.send(aborting(pace, partial(do_job, task, loads, pace, plan)))
            else:
                from support.green_contexts import check

                connection.send(check(task))
        except Exception:  # noqa: BLE001
            connection.send(Failed(traceback.format_exc()))


class Hosts:
    """Processes that were started together; each has the loads of one of `shares`."""

    def __init__(self, plan: Plan, shares: Sequence[Sequence[str]]) -> None:
        context = get_context("spawn")
        self._pace = Pace(context)
        self._connections: list[Connection] = []
        self._is_late = False
        self._processes = []
        for names in shares:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=host, args=(theirs, plan, names, self._pace), daemon=True
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def wait(self) -> None:
        """Until all are loaded; raises RuntimeError if one cannot be."""
        for connection in self._connections:
            received(connection)

    def ask(self, task: Job | int, *numbers: int) -> list[Any]:
        """The answers of these processes, of all without numbers; raises RuntimeError."""
        if self._is_late:
            raise RuntimeError("a process still owes the answer before")
        self._pace.reset()
        answers, problems, asked = [], [], []
        for one in numbers or range(len(self._connections)):
            try:
                self._connections[one].send(task)
                asked.append(self._connections[one])
            except OSError:
                problems.append("a process has ended")
        for connection in asked:
            try:
                answers.append(received(connection))
            except TimeoutError as error:
                self._is_late = True
                problems.append(str(error))
            except RuntimeError as error:
                problems.append(str(error))
        if problems:
            raise RuntimeError("\n".join(sorted(problems, key=lambda one: "BrokenBarrier" in one)))
        return answers

    def close(self) -> None:
        """End them."""
        for connection, process in zip(self._connections, self._processes, strict=True):
            with contextlib.suppress(OSError):  # it has ended
                connection.send(None)
            process.join(10)
            if process.is_alive():
                process.kill()
                process.join()
            connection.close()


def received(connection: Connection) -> Any:
    """What a process answers; raises RuntimeError with what it says of its failure.

    Raises TimeoutError for one that does not answer, later than the others give up waiting for it.
    """
    if not connection.poll(2 * PATIENCE_S):
        raise TimeoutError(f"a process has not answered for {2 * PATIENCE_S:.0f} s")
    try:
        answer = connection.recv()
    except EOFError:
        raise RuntimeError("a process has ended") from None
    if isinstance(answer, Failed):
        raise RuntimeError(answer.why)
    return answer


def say(text: str) -> None:
    """At once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Comparison:
    """Tries one way after the other."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def attempt(self, hosts: Hosts, job: Job, *numbers: int) -> None:
        """One line: the figures, or what went wrong."""
        try:
            runs = [run for answer in hosts.ask(job, *numbers) for run in answer]
        except RuntimeError as error:
            say(f"{job.way:36}{job.level:8}  failed: {error}")
            self.report.num_failed += 1
            return
        say(self.report.line(job.way, job.level, runs, job.is_alone))


def compare(plan: Plan, levels: Sequence[int], seconds: float, frame_s: float) -> bool:
    """Print all; whether every way could be measured, and every answer was right."""
    report = Report(frame_s)
    comparison = Comparison(report)
    is_gpu = plan.device == "cuda"
    began_at = time.monotonic()
    if is_gpu and ask_daemon("get_server_list") is not None:
        say('an MPS daemon runs already: what is called "taking turns" is under MPS')
    with ExitStack() as stack:
        pair = Hosts(plan, [[TALKER], [CODE2WAV]])
        stack.callback(pair.close)
        one = Hosts(plan, [[TALKER, CODE2WAV]])
        stack.callback(one.close)
        under_mps = mps_pair(plan, stack) if is_gpu else None
        pair.wait()
        one.wait()
        say(f"loaded after {time.monotonic() - began_at:.0f} s")
        for level in levels:
            layers_gb = bytes_read(plan.model, level) / 1e9
            say(f"{level} streams: a step reads {layers_gb:.2f} GB of the talker's layers")
        say(HEADER)
        for level in levels:
            job = Job("", level, seconds)
            alone = replace(job, seconds=seconds / 2, is_alone=True)
            comparison.attempt(pair, replace(alone, way="talker alone"), 0)
            comparison.attempt(pair, replace(alone, way="code2wav alone"), 1)
            comparison.attempt(pair, replace(job, way="two processes taking turns"))
            if under_mps is not None:
                comparison.attempt(under_mps, replace(job, way="two processes, MPS"))
                way = "two processes, MPS, host work"
                comparison.attempt(under_mps, replace(job, way=way, host_ms=HOST_MS))
            comparison.attempt(one, replace(job, way="one process"))
            comparison.attempt(one, replace(job, way="one process, host work", host_ms=HOST_MS))
            if is_gpu:
                way = "one process, talker first"
                comparison.attempt(one, replace(job, way=way, talker_priority=-1))
        # Last, as a kernel that fails takes its process along.
        for num_sms in GREEN_SMS if is_gpu else ():
            try:
                say("\n".join(one.ask(num_sms)[0]))
            except RuntimeError as error:
                say(f"green contexts, {num_sms} asked: failed: {error}")
                continue
            for level in levels:
                way = f"{num_sms} SMs for code2wav, others not"
                job = Job(way, level, seconds, num_sms=num_sms)
                comparison.attempt(one, job)
                if num_sms == WHOLE_TALKER_SMS:
                    way = f"{num_sms} SMs for code2wav, talker on all"
                    comparison.attempt(one, replace(job, way=way, is_talker_whole=True))
    say("steps a second, both loads at once:")
    for line in report.ranking():
        say(line)
    said = "right" if report.is_right else "WRONG"
    failed = f", {report.num_failed} failed" if report.num_failed else ""
    say(f"{time.monotonic() - began_at:.0f} s; {said}{failed}")
    return report.is_right and not report.num_failed


def mps_pair(plan: Plan, stack: ExitStack) -> Hosts | None:
    """Two processes under a daemon of their own, or of one that runs; None if it cannot be had."""
    run = Path(
        stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True))
    )
    graph = load_graph(GRAPHS / "qwen3_omni_1gpu.yaml", plan.model)
    try:
        stack.enter_context(mps_daemon(Mps.ON, graph, run))
        hosts = Hosts(plan, [[TALKER], [CODE2WAV]])
        stack.callback(hosts.close)
        hosts.wait()
    except (MpsError, RuntimeError) as error:
        say(f"no MPS: {error}")
        return None
    say(f"MPS's servers: {ask_daemon('get_server_list') or 'none: the processes take turns'}")
    return hosts


def main() -> None:
    """Write the model's folder, run, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--levels", type=numbers, help="streams; 1,8,64, tiny 1,4")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each way and level")
    asked = parser.parse_args()
    if not asked.tiny and not torch.cuda.is_available():
        raise SystemExit("there is no GPU: --tiny runs on a CPU")
    with tempfile.TemporaryDirectory() as name:
        model, answers = Path(name) / "model", Path(name) / "answers"
        answers.mkdir()
        if asked.tiny:
            write_tiny_checkpoint(model, 0)
        else:
            write_real_size_folder(model)
        empty = StreamingVocoder.empty(str(model), torch.float32)
        codec = StreamingVocoder(empty, num_slots=1).codec
        plan = Plan(
            str(model),
            "cpu" if asked.tiny else "cuda",
            "float32" if asked.tiny else "bfloat16",
            answers,
        )
        levels = asked.levels or ([1, 4] if asked.tiny else [1, 8, 64])
        frame_s = codec.samples_per_frame / codec.sample_rate_hz
        sys.exit(0 if compare(plan, levels, asked.seconds, frame_s) else 1)


if __name__ == "__main__":
    main()
