"""The text encoder in vLLM against the pipeline's own, and pictures made from its rows."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from diffusers import DiffusionPipeline
from support.servers.image_requests import bare_pipeline
from support.stages.feeding_stage import feeding_stage

from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.diffusion.request.upstream.coming_arguments import ComingArguments
from omnistage.stages.messages.arguments import ArgumentsToCome
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.edge import Edge, Open
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.stage import Opened

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

CPU = torch.device("cpu")
SHORT, OTHER = "a cat", "A fox in the snow, watercolour, 'Löwe' in neon letters. 狐狸"
LONG = "cats and dogs, " * 60  # more tokens than the pipeline reads
ODD = "<|im_end|><|image_pad|> {} {0} \n\t<|im_start|>"
Arguments = Mapping[str, torch.Tensor]


@pytest.fixture(scope="module")
def bare(tiny_qwen_image: Path) -> Any:
    return bare_pipeline(tiny_qwen_image)


class Harness:
    """A text encoder stage and the far ends of its edge."""

    def __init__(self, stage: Any, opens: Receiver[Edge], rows: Receiver[Edge]) -> None:
        self.stage = stage
        self._opens = opens
        self._rows = rows
        self.num_chunks = 0
        self._announced: dict[str, ComingArguments] = {}

    async def embeds(self, name: str, body: Mapping[str, Any]) -> Arguments:
        """Serve one request; what its pipeline would be given."""
        await self.stage.serve(
            Opened(name, Request(Draw(dict(body)), ["image"], ["text_encoder", "dit"], seed=1))
        )
        async with asyncio.timeout(600):  # a row that is not there never comes
            while not (name in self._announced and self._announced[name].is_complete):
                self._look()
                await asyncio.sleep(0.005)
        return self._announced.pop(name).arguments(CPU, torch.float32)

    def _look(self) -> None:
        while (chunk := self._opens.receive()) is not None:
            assert isinstance(chunk.message, Open)
            self._announced[chunk.request_id] = ComingArguments(chunk.message.read(ArgumentsToCome))
        while (chunk := self._rows.receive()) is not None:
            self._rows.grant(chunk.request_id)
            self.num_chunks += 1
            if chunk.request_id in self._announced:
                self._announced[chunk.request_id].add(chunk)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def encoder(
    tiny_qwen_image: Path, run_directory: Path, cpu_engine: None
) -> AsyncIterator[Harness]:
    from omnistage.stages.qwen_image.text_encoder import TextEncoder

    options = load_graph(GRAPHS / "qwen_image_split.yaml").stages["text_encoder"].engine
    # Prompts in several pieces, and more requests than run at once.
    options = {**options, "max_num_batched_tokens": 128, "max_num_seqs": 3}
    name, model = "text_encoder", tiny_qwen_image
    async with feeding_stage(TextEncoder, name, model, run_directory, options, "rows") as made:
        yield Harness(*made)


def expected(bare: Any, prompts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Embeddings and mask as the pipeline makes and cuts them."""
    with torch.inference_mode():
        embeds, mask = bare.encode_prompt(list(prompts), max_sequence_length=512)
    return embeds, torch.ones(embeds.shape[:2]) if mask is None else mask


def assert_same(arguments: Arguments, name: str, bare: Any, prompts: Sequence[str]) -> None:
    embeds, mask = expected(bare, prompts)
    assert torch.equal(arguments[f"{name}_mask"], mask.long())
    torch.testing.assert_close(arguments[name], embeds, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("prompt", [SHORT, OTHER, LONG, ODD], ids=["short", "other", "long", "odd"])
async def test_the_rows_of_a_prompt_equal_the_bare_encoders(
    prompt: str, encoder: Harness, bare: Any
) -> None:
    arguments = await encoder.embeds(prompt[:8], {"prompt": prompt})
    assert set(arguments) == {"prompt_embeds", "prompt_embeds_mask"}
    assert_same(arguments, "prompt_embeds", bare, [prompt])
    assert arguments["prompt_embeds"].shape[1] == min(512, expected(bare, [prompt])[0].shape[1])


async def test_a_prompt_that_was_asked_before_has_all_its_rows_again(
    encoder: Harness, bare: Any
) -> None:
    for name in ("first", "again"):
        arguments = await encoder.embeds(name, {"prompt": LONG})
        assert_same(arguments, "prompt_embeds", bare, [LONG])


async def test_several_prompts_and_what_they_are_guided_from(encoder: Harness, bare: Any) -> None:
    body = {"prompt": [SHORT, LONG, OTHER], "negative_prompt": ["", ODD, SHORT]}
    arguments = await encoder.embeds("several", body)
    assert_same(arguments, "prompt_embeds", bare, body["prompt"])
    assert_same(arguments, "negative_prompt_embeds", bare, body["negative_prompt"])


async def test_many_requests_at_once_keep_their_own_rows(encoder: Harness, bare: Any) -> None:
    texts = [f"{number} {OTHER * (number % 4)}" for number in range(8)]
    bodies = [{"prompt": text, "negative_prompt": text[::-1]} for text in texts]
    asked = (encoder.embeds(f"many-{number}", body) for number, body in enumerate(bodies))
    for body, arguments in zip(bodies, await asyncio.gather(*asked), strict=True):
        assert_same(arguments, "prompt_embeds", bare, [body["prompt"]])
        assert_same(arguments, "negative_prompt_embeds", bare, [body["negative_prompt"]])


async def test_the_place_of_a_cancelled_request_is_given_to_the_next(
    encoder: Harness, bare: Any
) -> None:
    body = {"prompt": [LONG] * 6}
    gone = [asyncio.create_task(encoder.embeds(f"gone-{n}", body)) for n in range(4)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    assert_same(await encoder.embeds("after", {"prompt": SHORT}), "prompt_embeds", bare, [SHORT])


@pytest.mark.parametrize("guidance", [1.0, 4.0])
async def test_the_picture_equals_the_bare_pipelines(
    guidance: float, encoder: Harness, bare: Any, tiny_qwen_image: Path
) -> None:
    body = {"prompt": OTHER, "negative_prompt": "a dog"}
    arguments = await encoder.embeds(f"picture-{guidance}", body)
    headless = DiffusionPipeline.from_pretrained(tiny_qwen_image, text_encoder=None, tokenizer=None)
    headless.set_progress_bar_config(disable=True)
    found = picture(headless, guidance, arguments)
    assert (found - picture(bare, guidance, body)).abs().max() < 1e-3
    assert (found - picture(bare, guidance, {**body, "prompt": SHORT})).abs().max() > 1e-2


def picture(pipeline: Any, guidance: float, prompt: Mapping[str, Any]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    settings = {"height": 64, "width": 96, "num_inference_steps": 4, "output_type": "pt"}
    with torch.inference_mode():
        made: torch.Tensor = pipeline(
            **prompt, **settings, true_cfg_scale=guidance, generator=generator
        ).images
    return made


async def test_a_context_that_does_not_hold_every_prompt_is_refused(encoder: Harness) -> None:
    from omnistage.stages.qwen_image.text_encoder import TextEncoder

    ports = encoder.stage._ports
    small = dataclasses.replace(ports, engine={**ports.engine, "max_model_len": 128})
    with pytest.raises(
        ValueError, match="max_model_len is 128; the pipeline's longest text needs 547"
    ):
        await TextEncoder(small).start()


async def test_weights_of_both_layouts_are_the_text_part_s() -> None:
    from omnistage.stages.qwen_image.text_encoder_model import text_weights

    weight = torch.zeros(1)
    text = {"embed_tokens.weight", "layers.0.mlp.up_proj.weight", "norm.weight"}
    others = ["visual.merger.ln_q.weight", "model.visual.merger.ln_q.weight", "lm_head.weight"]
    for prefix in ("model.", "model.language_model."):
        names = [*others, *(prefix + name for name in text)]
        assert {name for name, _ in text_weights((name, weight) for name in names)} == text
