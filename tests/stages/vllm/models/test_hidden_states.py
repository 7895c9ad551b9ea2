"""Hidden states of a text model, from a graph file to the stage that receives them."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import torch
import yaml
from prometheus_client import REGISTRY
from support.api.bodies import chat_request
from support.gateway.serving import outputs_of
from support.models.tiny_text import likeliest
from support.servers.drafts import Drafted
from support.servers.parallel import sizes
from support.stages.in_process import served
from support.stages.probe_stage import Kept, Probe
from support.stages.text_stage import ENGINE
from torch import nn
from transformers import AutoTokenizer, Qwen3ForCausalLM

from omnistage.server.runtime.request import AudioOutput, Output, TextOutput
from omnistage.server.runtime.runtime import Runtime
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.kinds import Kind, Payload, payloads
from omnistage.stages.vllm.models import hidden_states
from omnistage.stages.vllm.models.hidden_states import ExportHook, export_hidden_states
from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES
from omnistage.stages.vllm.step.step_table import StepTable
from omnistage.stages.vllm.text import check_edges, refuse_several
from omnistage.stages.worker.failure import RequestError

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

DOCS = Path(__file__).parents[4] / "docs" / "adding-a-model.md"
NUM_TOKENS = 12
PROBE = Kind(
    "support.stages.probe_stage:Probe",
    frozenset({"audio"}),
    takes=(payloads(Payload.ROWS),),
    is_entry=False,
)
WAIT_S = 600.0  # for an engine beside whatever else computes
SAMPLING = {"max_completion_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}


def documented_graph() -> dict[str, Any]:
    """The graph that the documentation shows, with the tiny engine's arguments."""
    (section,) = re.findall(r"^## All hidden states.*?(?=^## |\Z)", DOCS.read_text(), re.M | re.S)
    (block,) = re.findall(r"(?:^    .*\n)+", section, re.M)
    graph: dict[str, Any] = yaml.safe_load(block)
    graph["stages"]["text"]["engine"] = ENGINE | sizes()
    graph["deadlines"] = {"hang_s": WAIT_S, "first_chunk_s": WAIT_S, "next_chunk_s": WAIT_S}
    return graph


class Harness:
    """The graph as it is served, and transformers over the same folder."""

    def __init__(self, runtime: Runtime, folder: Path) -> None:
        self._runtime = runtime
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = Qwen3ForCausalLM.from_pretrained(folder).eval()

    async def ask(self, name: str, body: dict[str, Any], *outputs: str) -> list[Output]:
        """All that leaves the graph for one request; by default with the probe's."""
        request = chat_request(name, outputs or ("text", "audio"), {**SAMPLING, **body})
        async with asyncio.timeout(WAIT_S):
            return [output async for output in outputs_of(self._runtime, request)]

    async def kept(self, name: str, body: dict[str, Any]) -> Kept:
        """What the probe got of one request."""
        found = await self.ask(name, body)
        assert any(isinstance(output, AudioOutput) and output.last for output in found)
        return Probe.kept.pop(name)

    def prompt(self, text: str) -> list[int]:
        """Ids of a chat with one message."""
        ids = self._tokenizer.apply_chat_template(
            chat(text)["messages"], add_generation_prompt=True
        )
        prompt: list[int] = ids if isinstance(ids, list) else ids["input_ids"]
        return prompt

    @torch.inference_mode()
    def expected(self, prompt: list[int]) -> torch.Tensor:
        """transformers' last hidden states, after the norm, of the prompt and what it fed back."""
        ids = [*prompt, *likeliest(self.model, prompt, NUM_TOKENS)[:-1]]
        result = self.model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        states: torch.Tensor = result.hidden_states[-1][0]
        assert torch.equal(self.model.lm_head(states), result.logits[0])
        return states


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def check(kept: Kept, prompt: list[int], expected: torch.Tensor) -> None:
    """Every position once, in order, and each row as transformers has it."""
    assert kept.prompt == prompt
    assert kept.positions == list(range(len(prompt) + NUM_TOKENS - 1))
    torch.testing.assert_close(kept.rows, expected, atol=1e-4, rtol=1e-4)


def written_graph(directory: Path, engine: dict[str, Any]) -> Path:
    graph = documented_graph()
    graph["stages"]["text"]["engine"] |= engine
    directory.mkdir()
    file = directory / "graph.yaml"
    file.write_text(yaml.safe_dump(graph))
    return file


@asynccontextmanager
async def serving(folder: Path, directory: Path, **engine: Any) -> AsyncIterator[Harness]:
    """The documented graph over a model's folder, with these arguments of its engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(KINDS, "docs.probe", PROBE)
        file = written_graph(directory, engine)
        async with served(load_graph(file, str(folder)), directory) as runtime:
            yield Harness(runtime, folder)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def graph(tiny_text: Path, run_directory: Path, cpu_engine: None) -> AsyncIterator[Harness]:
    async with serving(tiny_text, run_directory / "graph") as harness:
        yield harness


async def test_rows_of_prompts_in_pieces_and_of_their_answers_equal_transformers(
    graph: Harness,
) -> None:
    """Eight at once in an engine of four, whose steps take 64 tokens."""
    texts = [f"Number {number}? " * (1 + 5 * number) for number in range(8)]
    prompts = [graph.prompt(text) for text in texts]
    assert len(prompts[0]) < 64 < 2 * 64 < len(prompts[-1])
    asked = (graph.kept(f"row-{number}", chat(text)) for number, text in enumerate(texts))
    for prompt, kept in zip(prompts, await asyncio.gather(*asked), strict=True):
        check(kept, prompt, graph.expected(prompt))


async def test_a_prompt_that_the_prefix_cache_has_gives_all_its_rows_again(graph: Harness) -> None:
    text = "The same question every time. " * 8
    prompt = graph.prompt(text)
    expected = graph.expected(prompt)
    for number in range(2):
        check(await graph.kept(f"again-{number}", chat(text)), prompt, expected)


async def test_a_plain_prompt_has_rows_too(graph: Harness) -> None:
    prompt = graph.prompt("Hm")
    body = {"prompt": prompt, "max_tokens": NUM_TOKENS}
    check(await graph.kept("plain", body), prompt, graph.expected(prompt))


async def test_a_request_whose_outputs_do_not_need_them_sends_no_rows(graph: Harness) -> None:
    found = await graph.ask("text-only", chat("Hello"), "text")
    assert any(isinstance(output, TextOutput) and output.last for output in found)
    await graph.kept("after", chat("Hello"))
    assert Probe.kept == {}


@pytest.mark.repeat  # of tests/stages/speech/test_thinker_stage.py
async def test_rows_of_drafts_leave_where_they_were_accepted(
    tiny_text: Path, run_directory: Path, cpu_engine: None
) -> None:
    """A prompt of one word again and again, of which the model proposes another and is wrong."""
    lookup = {"prompt_lookup_min": 1, "prompt_lookup_max": 2}
    drafts = {"method": "ngram", "num_speculative_tokens": 2, **lookup}
    async with serving(
        tiny_text, run_directory / "drafting", speculative_config=drafts
    ) as drafting:
        texts = [f"{number}" * (30 + number) for number in range(8)]
        asked = (drafting.kept(f"draft-{n}", chat(text)) for n, text in enumerate(texts))
        for text, kept in zip(texts, await asyncio.gather(*asked), strict=True):
            prompt = drafting.prompt(text)
            check(kept, prompt, drafting.expected(prompt))
        drafted = Drafted.of(REGISTRY.collect())
        assert drafted.accepted > 0
        assert drafted.rejected > 0


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": 2, "messages": []}, "n"),
        ({"prompt": ["one", "two"]}, "prompt"),
        ({"prompt": [[1], [2]]}, "prompt"),
    ],
)
async def test_several_answers_are_refused_where_rows_leave(body: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        refuse_several(body)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("body", [{"n": 1, "messages": []}, {"prompt": "x"}, {"prompt": [1, 2]}])
async def test_one_answer_is_not_refused(body: Any) -> None:
    refuse_several(body)


@pytest.mark.parametrize(
    ("exports", "engine", "message"),
    [
        (False, {}, "set hidden_states: all"),
        (True, {"load_format": "gguf"}, "load_format is auto or dummy"),
    ],
)
async def test_an_edge_that_cannot_work_is_refused(
    exports: bool, engine: dict[str, Any], message: str
) -> None:
    edge = SimpleNamespace(target="probe", all_hidden_states=exports)
    ports: Any = SimpleNamespace(name="text", engine=engine, carrying=lambda payload: [edge])
    with pytest.raises(ValueError, match=message):
        check_edges(ports)


def config(engine_id: str) -> Any:
    """An engine whose bridge exports hidden states of size 2."""
    extra = BridgeConfig(HIDDEN_STATES).to_config()
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_seqs=2, max_num_batched_tokens=8),
        model_config=SimpleNamespace(dtype=torch.float32, get_hidden_size=lambda: 2),
        kv_transfer_config=SimpleNamespace(engine_id=engine_id, kv_connector_extra_config=extra),
    )


@pytest.mark.parametrize("returned", [(torch.zeros(1, 2),), torch.zeros(1, 3)])
async def test_a_model_that_returns_something_else_is_refused_by_name(returned: Any) -> None:
    hook = ExportHook(config("else"), torch.device("cpu"))
    with pytest.raises(ValueError, match="Identity"):
        hook(nn.Identity(), (), returned)


async def test_of_a_pipeline_only_the_last_rank_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, is_last in (("first", False), ("last", True)):
        monkeypatch.setattr(hidden_states, "is_end_of_pipeline", lambda is_last=is_last: is_last)
        model = nn.Linear(1, 1)
        export_hidden_states(model, config(name))
        assert (StepTable.of_engine(name).export is not None) == is_last
        assert bool(model._forward_hooks) == is_last


async def test_a_model_that_is_compiled_as_a_whole_is_refused_by_name() -> None:
    class Whole(nn.Linear):
        def __call__(self, *inputs: Any) -> Any:
            return self.forward(*inputs)

    with pytest.raises(ValueError, match="Whole"):
        export_hidden_states(Whole(1, 1), config("whole"))
