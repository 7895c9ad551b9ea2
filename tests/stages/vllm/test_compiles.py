"""Nothing is compiled for a request: what the first of its kind needs is there before ready."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.faults.slow_compiler import COMPILE_SLOWLY, SLOW_COMPILER
from support.models.text_loras import write_text_lora
from support.servers.request_kinds import ADAPTER, KINDS, compiled_by
from support.stages.text_stage import LORA, TextHarness, running_text
from support.waiting import until
from transformers import Qwen3ForCausalLM

from omnistage.stages.messages.to_gateway import Alive, Compiling
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.process.compiles import PLACE, begin_counting, read_compiles
from omnistage.stages.worker.signs import INTERVAL_S, send_signs

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

TOOLS = {"tool_parser": "hermes", "enable_auto_tools": True}
OF_ADAPTERS = [kind for kind in KINDS if kind.startswith("adapter")]
OTHERS = [kind for kind in KINDS if kind not in OF_ADAPTERS]


@pytest.fixture(scope="module")
def compiling(run_directory: Path, cpu_engine: None) -> Iterator[None]:
    """The environment of a stage whose engine compiles, as no tiny graph's does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TORCHDYNAMO_DISABLE")
        patch.setenv(PLACE, "")  # what it was comes back afterwards
        begin_counting(run_directory, "text")
        yield


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def text(tiny_text: Path, run_directory: Path, compiling: None) -> AsyncIterator[TextHarness]:
    engine = {"worker_extension_cls": SLOW_COMPILER}
    async with running_text(tiny_text, run_directory, engine, TOOLS) as running:
        yield running


async def test_the_warm_up_has_compiled_and_is_done(text: TextHarness) -> None:
    assert read_compiles().begun >= 1  # else the counts below would mean nothing
    assert not read_compiles().is_running


@pytest.mark.parametrize("kind", OTHERS)
async def test_a_request_of_this_kind_compiles_nothing(kind: str, text: TextHarness) -> None:
    assert await compiled_by(text, kind) == 0


async def test_an_engine_that_compiles_shows_life_until_it_answers_again(text: TextHarness) -> None:
    signs: list[Alive | Compiling] = []
    sending = asyncio.create_task(send_signs(text.stage.alive, signs.append))
    await text.stage._engine.collective_rpc(COMPILE_SLOWLY, args=(4 * INTERVAL_S,))
    assert signs.count(Compiling()) >= 2
    seen = len(signs)
    await until(lambda: len(signs) > seen)
    assert signs[-1] == Alive()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def test_a_request_for_an_adapter_compiles_nothing(
    tiny_text: Path, run_directory: Path, compiling: None, tmp_path: Path
) -> None:
    lora = write_text_lora(Qwen3ForCausalLM.from_pretrained(tiny_text), tmp_path / ADAPTER, seed=0)
    options = {**TOOLS, "lora_modules": {ADAPTER: str(lora)}}
    before = read_compiles().begun
    directory = run_directory / "of-adapters"
    directory.mkdir()
    async with running_text(tiny_text, directory, LORA, options) as text:
        assert read_compiles().begun > before
        assert {kind: await compiled_by(text, kind) for kind in OF_ADAPTERS} == dict.fromkeys(
            OF_ADAPTERS, 0
        )
        with pytest.raises(RequestError, match="not supported on a CPU") as caught:
            await compiled_by(text, "echo with logprobs")  # it would end the engine beside others
        assert (caught.value.status, caught.value.param) == (400, "echo")
        assert await text.chunks("still there", KINDS["greedy"][0])
