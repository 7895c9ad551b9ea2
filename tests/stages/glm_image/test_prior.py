"""The stage of image ids against transformers' loop."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from PIL import Image
from references.omnigen2_drawings import noise
from support.oracles.glm_image import edit_arguments, make_greedy, reference_ids
from support.servers.image_requests import bare_pipeline
from support.stages.feeding_stage import feeding_stage
from support.stages.preempting import num_preempted, num_unfinished, stopped_engine
from support.waiting import until

from omnistage.connectors.chunk import Tensor
from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.diffusion.request.upstream.coming_arguments import ComingArguments
from omnistage.stages.messages.arguments import ArgumentsToCome
from omnistage.stages.messages.body import Draw, GivenMedium
from omnistage.stages.messages.edge import Edge, Open
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.failure import RequestError
from omnistage.stages.worker.stage import Opened

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

CPU = torch.device("cpu")
PROMPT = "A red fox says 'hello'"
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def bare(tiny_glm_image: Path) -> Any:
    return make_greedy(bare_pipeline(tiny_glm_image))


class Harness:
    """A stage of image ids and the far ends of its edge."""

    def __init__(self, stage: Any, opens: Receiver[Edge], feed: Receiver[Edge]) -> None:
        self.stage = stage
        self._opens = opens
        self._feed = feed
        self._announced: dict[str, ComingArguments] = {}

    async def arguments(
        self,
        name: str,
        body: Mapping[str, Any],
        seed: int | None = None,
        images: Sequence[Image.Image] = (),
        field: str = "image",
    ) -> dict[str, Any]:
        """Serve one request; what its pipeline would be given."""
        tensors = {f"{n}": Tensor.from_numpy(np.asarray(one)) for n, one in enumerate(images)}
        draw = Draw(dict(body), [GivenMedium(field, one) for one in tensors])
        request = Request(draw, ["image"], ["prior", "dit"], seed=seed)
        await self.stage.serve(Opened(name, request, tensors=tensors))
        self._look()
        coming = self._announced.pop(name)
        assert coming.is_complete
        return coming.arguments(CPU, torch.float32)

    def _look(self) -> None:
        while (chunk := self._opens.receive()) is not None:
            assert isinstance(chunk.message, Open)
            about = chunk.message.read(ArgumentsToCome)
            assert about.replaces == []  # the pipeline gets the prompt, too
            self._announced[chunk.request_id] = ComingArguments(about)
        while (chunk := self._feed.receive()) is not None:
            if chunk.request_id in self._announced:
                self._announced[chunk.request_id].add(chunk)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def greedy(
    tiny_glm_image: Path, tmp_path_factory: pytest.TempPathFactory, cpu_engine: None
) -> AsyncIterator[Harness]:
    async for harness in harness_of(tiny_glm_image, tmp_path_factory.mktemp("greedy"), GREEDY):
        yield harness


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def sampling(
    tiny_glm_image: Path, tmp_path_factory: pytest.TempPathFactory, cpu_engine: None
) -> AsyncIterator[Harness]:
    async for harness in harness_of(tiny_glm_image, tmp_path_factory.mktemp("sampling"), {}):
        yield harness


async def harness_of(
    model: Path, folder: Path, sampling: dict[str, Any], **more: Any
) -> AsyncIterator[Harness]:
    from omnistage.stages.glm_image.prior import Prior

    options = load_graph(GRAPHS / "glm_image_tiny.yaml").stages["prior"].engine
    # Prompts in several pieces, and more requests than run at once.
    options = {**options, "max_num_batched_tokens": 16, "max_num_seqs": 3, **more}
    if sampling:
        options["override_generation_config"] = sampling
    async with feeding_stage(Prior, "prior", model, folder, options, "feed") as (stage, *ends):
        yield Harness(stage, *ends)


async def test_greedy_ids_of_several_at_once_equal_transformers(greedy: Harness, bare: Any) -> None:
    asked: list[tuple[str, int, int]] = [
        (PROMPT, 96, 64),
        ("two cats " * 6, 64, 64),
        ("Löwe 狐狸", 32, 160),
        ("a", 128, 96),
    ]
    bodies = [{"prompt": text, "height": high, "width": wide} for text, high, wide in asked]
    made = await asyncio.gather(
        *(greedy.arguments(f"many-{n}", body) for n, body in enumerate(bodies))
    )
    for arguments, one in zip(made, asked, strict=True):
        expected = reference_ids(bare, *one)
        assert arguments["prior_token_ids"].dtype == torch.int64
        assert arguments["prior_token_ids"].tolist() == [expected.tolist()]
        assert (arguments["height"], arguments["width"]) == one[1:]
    assert len({str(one["prior_token_ids"].tolist()) for one in made}) == len(asked)
    assert len(made[3]["prior_token_ids"].unique()) > 1  # or any positions would do


async def test_several_prompts_of_a_request_are_rows_of_one_argument(
    greedy: Harness, bare: Any
) -> None:
    prompts = [PROMPT, "a dog"]
    body = {"prompt": prompts, "height": 64, "width": 64}
    arguments = await greedy.arguments("several", body)
    expected = [reference_ids(bare, text, 64, 64).tolist() for text in prompts]
    assert arguments["prior_token_ids"].tolist() == expected


async def test_sampled_ids_repeat_with_their_seed_only(sampling: Harness, bare: Any) -> None:
    body = {"prompt": PROMPT, "height": 128, "width": 128}
    seeds = [1, 1, 2, None]
    made = await asyncio.gather(
        *(sampling.arguments(f"seed-{n}", body, seed) for n, seed in enumerate(seeds))
    )
    first, again, other, without = (str(one["prior_token_ids"].tolist()) for one in made)
    assert first == again
    assert len({first, other, without}) == 3


async def test_preempted_requests_draw_the_ids_that_they_draw_alone(
    tiny_glm_image: Path, tmp_path_factory: pytest.TempPathFactory, cpu_engine: None
) -> None:
    """Four images of some 370 tokens, in a cache of blocks of 32 for one of 1024."""
    token_bytes = 2 * 2 * 32 * 4  # layers, keys and values, size of a head, float32
    small = {"max_num_seqs": 4, "max_model_len": 1024, "block_size": 32}
    small |= {"kv_cache_memory_bytes": 33 * 32 * token_bytes}
    folder = tmp_path_factory.mktemp("preempting")
    async for harness in harness_of(tiny_glm_image, folder, {}, **small):
        await check_preempted_requests(harness)


async def check_preempted_requests(harness: Harness) -> None:
    body = {"prompt": PROMPT, "height": 256, "width": 256}
    seeds = range(4)
    alone = [await harness.arguments(f"alone-{seed}", body, seed) for seed in seeds]
    assert num_preempted(harness.stage) == 0
    with stopped_engine(harness.stage):
        asked = [
            asyncio.create_task(harness.arguments(f"one-{seed}", body, seed)) for seed in seeds
        ]
        await until(lambda: num_unfinished(harness.stage) == len(asked))
    together = await asyncio.gather(*asked)
    assert num_preempted(harness.stage) > 0
    made = [str(one["prior_token_ids"].tolist()) for one in together]
    assert made == [str(one["prior_token_ids"].tolist()) for one in alone]
    assert len(set(made)) == len(made)


async def test_the_place_of_cancelled_requests_is_given_to_the_next(
    greedy: Harness, bare: Any
) -> None:
    body = {"prompt": [PROMPT] * 4, "height": 256, "width": 256}
    with stopped_engine(greedy.stage):
        gone = [asyncio.create_task(greedy.arguments(f"gone-{n}", body)) for n in range(4)]
        await until(lambda: num_unfinished(greedy.stage) == 16)
        for task in gone:
            assert task.cancel()
        await asyncio.wait(gone)
        assert all(task.cancelled() for task in gone)
    after = await greedy.arguments("after", {"prompt": "a", "height": 32, "width": 32})
    assert after["prior_token_ids"].tolist() == [reference_ids(bare, "a", 32, 32).tolist()]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"height": 100}, "size", "height is 100; this model's sides are multiples of 32"),
        ({"width": 48}, "size", "width is 48; this model's sides are multiples of 32"),
        ({"prompt": "a cat<sop>1 1<eop>"}, "prompt", "has '<eop>', which only the model's own"),
        ({"prompt": ["a", "b<|image|>"]}, "prompt", r"has '<\|image\|>', which only"),
        ({"prompt": "x<|dit_token_64|>"}, "prompt", "which only the model's own processor writes"),
        ({"height": 2048}, "prompt", "and 2290 are made; together at most 2048"),
        ({"prompt": "x" * 2000}, "prompt", "has 20.. tokens"),
    ],
    ids=["height", "width", "size tag", "image", "start", "image too large", "prompt too long"],
)
async def test_what_cannot_be_made_is_refused_by_its_field(
    fields: dict[str, Any], param: str, message: str, greedy: Harness
) -> None:
    body = {"prompt": "a cat", "height": 64, "width": 1024, **fields}
    with pytest.raises(RequestError, match=message) as refused:
        await greedy.arguments(f"refused-{param}-{message[:8]}", body)
    assert (refused.value.status, refused.value.param) == (400, param)


async def test_ids_of_edits_equal_transformers(greedy: Harness, bare: Any) -> None:
    asked = [
        (PROMPT, [noise((64, 96), 0)], 64, 96),
        ("both " * 6, [noise((64, 96), 0), noise((96, 64), 1)], 96, 64),
        ("a", [noise((160, 96), 2)], 32, 32),
    ]
    made = await asyncio.gather(
        *(
            greedy.arguments(f"edit-{n}", {"prompt": p, "height": h, "width": w}, images=images)
            for n, (p, images, h, w) in enumerate(asked)
        )
    )
    for arguments, one in zip(made, asked, strict=True):
        wanted = edit_arguments(bare, *one)
        assert wanted.pop("image")
        assert arguments.keys() == wanted.keys()
        for name, value in wanted.items():
            assert str(arguments[name]) == str(value), name
    assert len({str(one["prior_token_image_ids"]) for one in made}) == len(asked)


async def test_an_edit_of_several_prompts_has_images_in_each_row(
    greedy: Harness, bare: Any
) -> None:
    image, prompts = noise((64, 64), 3), ["a", "b"]
    body = {"prompt": prompts, "height": 64, "width": 64}
    arguments = await greedy.arguments("edits", body, images=[image])
    for row, prompt in enumerate(prompts):
        wanted = edit_arguments(bare, prompt, [image], 64, 64)
        assert arguments["prior_token_ids"][row].tolist() == wanted["prior_token_ids"][0].tolist()
        for name in ("prior_token_image_ids", "source_image_grid_thw"):
            assert arguments[name][row].tolist() == wanted[name][0].tolist()


@pytest.mark.parametrize(
    ("field", "size", "message"),
    [
        ("mask", (64, 64), "takes nothing beside them"),
        ("control_image", (64, 64), "takes nothing beside them"),
        ("image", (640, 100), "aspect ratio"),
        ("image", (8, 8), "must be larger"),
    ],
    ids=["mask", "control", "narrow", "small"],
)
async def test_what_cannot_be_edited_is_refused(
    field: str, size: tuple[int, int], message: str, greedy: Harness
) -> None:
    body = {"prompt": "a", "height": 64, "width": 64}
    with pytest.raises(RequestError, match=message) as refused:
        await greedy.arguments("refused", body, images=[noise(size, 0)], field=field)
    assert (refused.value.status, refused.value.param) == (400, field)
