"""Keys and values that leave an engine of vLLM's, compared with those of transformers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from support.stages.text_stage import ENGINE
from support.waiting import until
from transformers import Qwen2Config, Qwen2ForCausalLM

from omnistage.connectors import make_connector
from omnistage.connectors.options import Option
from omnistage.stages.checkpoint.tiny_embedding import fill_weights
from omnistage.stages.diffusion.request.upstream.coming_kv import ComingKv, KvRoom
from omnistage.stages.messages.arguments import KvToCome
from omnistage.stages.messages.edge import KeysAndValues
from omnistage.stages.vllm.answers.text_kv import send_kv
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.engine.engine import make_engine
from omnistage.stages.vllm.step.ports import BridgeConfig, Sink
from omnistage.stages.worker.ledger import Ledger
from omnistage.stages.worker.ports import Port

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

LAYERS, HEADS, SIZE = 3, 2, 32
NAME = "contexts"
SMALL: dict[str, Option] = {"arena_mb": 1}  # of which the longest prompts here take more than half


@pytest.fixture(scope="module")
def tiny_qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen2 with fewer heads of keys than of queries."""
    config = Qwen2Config(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=HEADS,
        max_position_embeddings=1024,
    )
    model = Qwen2ForCausalLM(config).float().eval()
    fill_weights(model, 0)
    folder = tmp_path_factory.mktemp("qwen2")
    model.save_pretrained(folder)
    return folder


class Harness:
    """An engine and the far end of its edge."""

    def __init__(self, llm: AsyncLLM, folder: Path, run: Path, port: Port) -> None:
        self.llm = llm
        self._model = Qwen2ForCausalLM.from_pretrained(folder).float().eval()
        self.receiver = port.receiver()
        self._coming: dict[str, ComingKv] = {}
        self._held = Ledger(run / f"{port.address}.held")
        self._loop = asyncio.get_running_loop()
        self.loop_on()
        self.room = KvRoom(1 << 30, lambda: None)

    def loop_on(self) -> None:
        """Take what comes."""
        self._loop.add_reader(self.receiver.fileno(), self._drain)
        self._drain()

    def loop_off(self) -> None:
        """Take nothing for now."""
        self._loop.remove_reader(self.receiver.fileno())

    def _drain(self) -> None:
        while (chunk := self.receiver.receive()) is not None:
            assert isinstance(chunk.message, KeysAndValues)
            if chunk.request_id in self._coming:
                self._coming[chunk.request_id].add(chunk.message, self.receiver, chunk)
            else:
                self.receiver.forget(chunk.request_id)

    async def kv(self, request_id: str, *prompts: Sequence[int]) -> list[torch.Tensor]:
        """Returns what arrives of these prompts."""
        to_come = {NAME: KvToCome([len(prompt) for prompt in prompts])}
        coming = ComingKv(to_come, self.room, torch.device("cpu"), lambda: None)
        self._coming[request_id] = coming
        texts = {NAME: [{"prompt_token_ids": list(prompt)} for prompt in prompts]}
        await send_kv(self.llm, request_id, texts, ["dit"], None)
        await until(lambda: coming.is_complete)
        tensors = coming.tensors[NAME]
        del self._coming[request_id]
        coming.release()
        return tensors

    def expected(self, prompt: Sequence[int]) -> torch.Tensor:
        """transformers' of the same ids: [layers, 2, n, heads, size]."""
        with torch.inference_mode():
            cache = self._model(input_ids=torch.tensor([prompt]), use_cache=True).past_key_values
        layers = [torch.stack([one.keys[0], one.values[0]]) for one in cache.layers]
        return torch.stack(layers).transpose(2, 3)

    @property
    def held(self) -> dict[str, int]:
        """Returns what the engine counts."""
        return {name: count for name, count in self._held.read().items() if count}

    def close(self) -> None:
        self.loop_off()
        self.receiver.close()
        self._held.close()


@asynccontextmanager
async def running(
    folder: Path, run: Path, address: str = "kv.rows", **engine: Any
) -> AsyncIterator[Harness]:
    connector = make_connector("shm", run, SMALL)
    connector.create(address)
    port = Port(address, "shm", str(run), SMALL)
    ledger = str(run / f"{address}.held")
    bridge = BridgeConfig(sinks=[Sink("dit", port)], sends_kv=True, ledger=ledger)
    options = {**ENGINE, "skip_tokenizer_init": True, **engine}
    llm = make_engine(AsyncLLM, str(folder), options, bridge)
    harness = Harness(llm, folder, run, port)
    try:
        yield harness
    finally:
        llm.shutdown()
        harness.close()
        connector.destroy(address)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def source(tiny_qwen2: Path, run_directory: Path, cpu_engine: None) -> AsyncIterator[Harness]:
    async with running(tiny_qwen2, run_directory) as harness:
        yield harness


def ids(count: int, seed: int) -> list[int]:
    return torch.randint(0, 256, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("length", [1, 31, 64, 200, 500])
async def test_keys_and_values_equal_transformers(source: Harness, length: int) -> None:
    prompt = ids(length, length)
    (got,) = await source.kv(f"one-{length}", prompt)
    assert got.shape == (LAYERS, 2, length, HEADS, SIZE)
    torch.testing.assert_close(got, source.expected(prompt), atol=1e-4, rtol=1e-4)
    await until(lambda: not source.held)


async def test_a_hit_of_the_prefix_cache_leaves_as_it_was_computed(source: Harness) -> None:
    prompt = ids(300, 7)
    (first,) = await source.kv("first", prompt)
    longer = prompt + ids(60, 8)
    (second,) = await source.kv("second", longer)
    assert torch.equal(second[:, :, :256], first[:, :, :256])  # two blocks of 128
    torch.testing.assert_close(second, source.expected(longer), atol=1e-4, rtol=1e-4)


async def test_several_texts_and_requests_at_once_stay_apart(source: Harness) -> None:
    prompts = [[ids(20 + 30 * one + two, 10 * one + two) for two in range(2)] for one in range(6)]
    asked = (source.kv(f"many-{one}", *two) for one, two in enumerate(prompts))
    for got, prompt in zip(await asyncio.gather(*asked), prompts, strict=True):
        for tensor, one in zip(got, prompt, strict=True):
            torch.testing.assert_close(tensor, source.expected(one), atol=1e-4, rtol=1e-4)
    await until(lambda: not source.held)


async def test_requests_that_are_aborted_leave_no_blocks_held(source: Harness) -> None:
    """In the prefill, and while nobody takes what leaves."""
    source.loop_off()
    names = [f"gone-{number}" for number in range(8)]
    texts = {NAME: [{"prompt_token_ids": ids(450, 50)}, {"prompt_token_ids": ids(450, 51)}]}
    asked = [asyncio.create_task(send_kv(source.llm, name, texts, ["dit"], None)) for name in names]
    await until(lambda: source.held.get("streams"))
    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    source.loop_on()  # as a stage whose requests are gone: it takes all, and keeps nothing
    await until(lambda: not source.held)
    (got,) = await source.kv("after", ids(200, 52))
    torch.testing.assert_close(got, source.expected(ids(200, 52)), atol=1e-4, rtol=1e-4)
    await until(lambda: not source.held)
    assert await source.llm.reset_prefix_cache()  # refused while blocks are held


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.repeat)])
async def test_a_cache_of_half_precision_leaves_in_its_dtype(
    tiny_qwen2: Path, run_directory: Path, cpu_engine: None, dtype: str
) -> None:
    async with running(tiny_qwen2, run_directory, address=dtype, dtype=dtype) as harness:
        prompt = ids(150, 3)
        (got,) = await harness.kv("half", prompt)
        assert str(got.dtype) == f"torch.{dtype}"
        expected = harness.expected(prompt)
        far = (got.float() - expected).flatten(2).norm(dim=2) / expected.flatten(2).norm(dim=2)
        assert far.max() < 0.2  # of keys, or values, of a layer; of others it is above 1
        (again,) = await harness.kv("again", prompt)
        assert torch.equal(again[:, :, :128], got[:, :, :128])
