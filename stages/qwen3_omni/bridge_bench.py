"""Measures the bridge's cost: a talker's decode step with it, over the same engine without it.

Both do the same work only as CUDA graphs, which have the code predictor inside: an eager step
without the bridge knows of no frame and leaves it out.
"""

import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from transformers import AutoConfig

from omnistage.connectors import make_connector
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.edge import EDGE
from omnistage.stages.qwen3_omni.step_schema import talker_schema
from omnistage.stages.qwen3_omni.talker import request_options
from omnistage.stages.qwen3_omni.talker_model import talker_config
from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, talker_prompt
from omnistage.stages.vllm.compat import AsyncLLM, RequestOutputKind, SamplingParams
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.step.ports import BridgeConfig, Sink
from omnistage.stages.worker.ports import Port

SHORT, LONG = 40, 240  # frames: their difference leaves prefill and start out
REPEATS = 5

Options = Callable[[str], JsonMap]
Tell = Callable[[str, int, float], None]


def measure(
    model: str,
    engine: Mapping[str, object],
    chunk_sizes: Sequence[int],
    batches: Sequence[int],
    tell: Tell,
) -> dict[int, tuple[float, float]]:
    """Seconds a step by batch size: without the bridge, and with it. Runs each engine once.

    Frames leave in chunks of `chunk_sizes`; `tell` hears each measurement as it comes: "without"
    or "with", batch, seconds.
    """
    return asyncio.run(_measure(model, engine, chunk_sizes, batches, tell))


async def _measure(
    model: str,
    engine: Mapping[str, object],
    chunk_sizes: Sequence[int],
    batches: Sequence[int],
    tell: Tell,
) -> dict[int, tuple[float, float]]:
    config = AutoConfig.from_pretrained(model)
    ids = SpeechIds.of(config)
    question = [ids.im_start, ids.user, ids.im_start, ids.assistant, 0]
    prompt = talker_prompt(ids, question, [], min(ids.speakers))

    def bridged(name: str) -> Mapping[str, object]:
        return request_options(name, ids, prompt, tokens=(0,), complete=True).extra_args()

    options = {"skip_tokenizer_init": True, "enable_prefix_caching": False, **engine}
    plain = make_engine(AsyncLLM, model, options, None, talker_config)
    token_ids = [ids.codec_pad] * len(prompt)

    async def steps_s(engine: AsyncLLM, name: str, options: Options) -> list[float]:
        try:
            times = []
            for batch in batches:
                times.append(await _step_s(engine, token_ids, batch, options))
                tell(name, batch, times[-1])
            return times
        finally:
            engine.shutdown()

    without = await steps_s(plain, "without", lambda _: {})
    with _drained_edge() as sink:
        sinks = [Sink("bench", sink, list(chunk_sizes))]
        bridge = BridgeConfig(talker_schema(config.talker_config), sinks=sinks)
        with_bridge = make_engine(AsyncLLM, model, options, bridge, talker_config)
        within = await steps_s(with_bridge, "with", bridged)
    return dict(zip(batches, zip(without, within, strict=True), strict=True))


async def _step_s(engine: AsyncLLM, token_ids: list[int], batch: int, options: Options) -> float:
    """Seconds a decode step: the least of a few runs, warmed up."""
    times = []
    for repeat in range(REPEATS + 1):
        short = await _run_s(engine, token_ids, batch, SHORT, f"{repeat}-{SHORT}", options)
        long = await _run_s(engine, token_ids, batch, LONG, f"{repeat}-{LONG}", options)
        times.append((long - short) / (LONG - SHORT))
    return min(times[1:])


async def _run_s(
    engine: AsyncLLM, token_ids: list[int], batch: int, num_frames: int, name: str, options: Options
) -> float:
    async def one(number: int) -> None:
        request = f"{name}-{number}"
        params = SamplingParams(
            temperature=0,
            max_tokens=num_frames,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            extra_args=dict(options(request)) or None,
        )
        async for _ in engine.generate({"prompt_token_ids": token_ids}, params, request):
            pass

    started = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(batch)))
    return time.perf_counter() - started


@contextmanager
def _drained_edge() -> Iterator[Port]:
    """An edge whose other end takes everything, in a thread, as a stage downstream does."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        connector = make_connector("shm", Path(directory), {})
        connector.create("bench.rows")
        receiver = connector.receiver("bench.rows", EDGE)
        is_done = threading.Event()

        def drain() -> None:
            while not is_done.is_set():
                if receiver.wait(0.1):
                    while (chunk := receiver.receive()) is not None:
                        receiver.grant(chunk.request_id)

        draining = threading.Thread(target=drain)
        draining.start()
        try:
            yield Port("bench.rows", "shm", directory, {})
        finally:
            is_done.set()
            draining.join()
            receiver.close()
