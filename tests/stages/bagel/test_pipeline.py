"""BAGEL's pipeline against the recorded drawings of its authors' code, alone and in one engine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from references.bagel_inputs import DRAWINGS, image
from support.denoising.begun_together import begin_together
from support.oracles.bagel import RecordedDrawings, call_of
from support.servers.image_requests import is_same

from omnistage.stages.bagel.cells import CellEmbedding
from omnistage.stages.bagel.contexts import ContextBuilder
from omnistage.stages.bagel.pipeline import BagelPipeline
from omnistage.stages.bagel.texts import THINKING
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.diffusion.merging.setting import DEFAULT
from omnistage.stages.diffusion.request.outputs import pictures_of
from omnistage.stages.worker.failure import RequestError

SMALL = {"height": 32, "width": 48, "num_inference_steps": 2, "output_type": "np"}
WAIT_S = 600


@pytest.fixture(scope="module")
def recorded(tiny_bagel: Path) -> RecordedDrawings:
    return RecordedDrawings(tiny_bagel)


@pytest.fixture(scope="module")
def pipeline(tiny_bagel: Path) -> Any:
    path = "omnistage.stages.bagel.pipeline.BagelPipeline"
    return LoadOptions(pipeline_class=path).load(str(tiny_bagel)).pipeline


@pytest.fixture(scope="module")
def engine(pipeline: Any) -> Iterator[StepBatcher]:
    once, twice = ({"prompt": "a", **SMALL, "num_images_per_prompt": n} for n in (1, 2))
    made = StepBatcher(pipeline, once, twice)
    yield made
    made.close()


@torch.inference_mode()
def drawn(pipeline: BagelPipeline, **call: Any) -> Any:
    return pipeline(**call)


def test_the_table_of_places_is_the_authors(recorded: RecordedDrawings) -> None:
    assert torch.equal(CellEmbedding(8, 64).pos_embed, recorded.table)


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_drawing_equals_the_authors(
    name: str, pipeline: BagelPipeline, recorded: RecordedDrawings
) -> None:
    made = drawn(pipeline, **call_of(name))
    (picture,) = pictures_of(made, 1)
    assert is_same(picture, recorded.pixels(name))
    assert picture.std() > 10
    assert made.thoughts == [recorded.thought(name)]
    assert bool(made.thoughts[0]) == DRAWINGS[name].think


def test_drawings_at_once_equal_the_authors_and_report_their_steps(
    engine: StepBatcher, recorded: RecordedDrawings
) -> None:
    steps: dict[str, list[tuple[int, int]]] = {name: [] for name in DRAWINGS}
    jobs = {
        name: engine.submit(
            None, DEFAULT, lambda *one, told=told: told.append(one), **call_of(name)
        )
        for name, told in steps.items()
    }
    for name, job in jobs.items():
        made = job.result.result(WAIT_S)
        assert is_same(pictures_of(made, 1)[0], recorded.pixels(name)), name
        assert made.thoughts == [recorded.thought(name)]
        number = DRAWINGS[name].num_steps
        assert steps[name] == [(step + 1, number) for step in range(number)]


def test_four_of_different_lengths_and_sizes_share_forwards(
    engine: StepBatcher, recorded: RecordedDrawings
) -> None:
    names = ["text", "longer", "unguided", "channel"]  # of 5, 7, 3 and 4 steps
    before = engine.batch_sizes.copy()
    begin_together(engine, len(names))
    jobs = [engine.submit(**call_of(name)) for name in names]
    for name, job in zip(names, jobs, strict=True):
        assert is_same(pictures_of(job.result.result(WAIT_S), 1)[0], recorded.pixels(name))
    assert engine.batch_sizes - before == {4: 3, 3: 1, 2: 1, 1: 2}


def test_several_images_of_a_prompt_are_those_of_one_seed_in_turn(pipeline: BagelPipeline) -> None:
    made = drawn(
        pipeline,
        prompt=["a cat", "a dog"],
        num_images_per_prompt=2,
        generator=torch.Generator().manual_seed(1),
        **SMALL,
    )
    assert made.images.shape == (4, 32, 48, 3)
    assert made.thoughts == ["", ""]
    generator = torch.Generator().manual_seed(1)
    for prompt, images in (("a cat", made.images[:2]), ("a dog", made.images[2:])):
        for one in images:
            alone = drawn(pipeline, prompt=prompt, generator=generator, **SMALL).images[0]
            assert np.abs(one - alone).max() < 1e-4


def test_sampled_thoughts_are_repeated_by_their_seed(pipeline: BagelPipeline) -> None:
    def thought(seed: int) -> str:
        made = drawn(
            pipeline,
            prompt="a boat",
            think=True,
            think_temperature=1.0,
            max_think_tokens=20,
            generator=torch.Generator().manual_seed(seed),
            **SMALL,
        )
        return str(made.thoughts[0])

    assert thought(1) == thought(1)
    assert len({thought(seed) for seed in range(1, 5)}) > 1


@pytest.mark.parametrize("name", ["text", "thought"])
def test_a_context_that_was_read_elsewhere_draws_the_same(
    name: str, pipeline: BagelPipeline, recorded: RecordedDrawings
) -> None:
    builder = ContextBuilder(pipeline, pipeline.settings, torch.device("cpu"))
    drawing, thought = DRAWINGS[name], recorded.thought(name)
    with torch.inference_mode():
        first = builder.text(builder.empty(), THINKING) if thought else builder.empty()
        whole = builder.text(first, drawing.prompt)
        whole = builder.text(whole, thought) if thought else whole
    given = {
        "prompt": ["-"],
        "contexts": [whole.keys_and_values[0]],
        "prefix_tokens": first.keys_and_values.shape[3],
        "thoughts": [thought],
    }
    made = drawn(pipeline, **(call_of(name) | given))
    assert is_same(pictures_of(made, 1)[0], recorded.pixels(name))
    assert made.thoughts == [thought]


@pytest.mark.parametrize(
    ("shape", "more", "problem"),
    [
        ((3, 2, 5, 2, 32), {}, "shape"),
        ((3, 2, 5, 1), {}, "shape"),
        ((3, 2, 5, 1, 32), {"prefix_tokens": 6}, "prefix_tokens must be 0 to 5"),
        ((3, 2, 5, 1, 32), {"image": image((64, 64), 1)}, "cannot have images"),
    ],
    ids=["heads", "dimensions", "prefix", "images"],
)
def test_a_context_that_is_not_the_models_is_refused(
    shape: tuple[int, ...], more: dict[str, Any], problem: str, pipeline: BagelPipeline
) -> None:
    with pytest.raises(ValueError, match=problem):
        drawn(pipeline, prompt="a", contexts=[torch.zeros(shape)], **{**SMALL, **more})


@pytest.mark.parametrize("alone", [{"prefix_tokens": 1}, {"thoughts": ["a"]}], ids=str)
def test_what_goes_with_a_context_is_refused_without(
    alone: dict[str, Any], pipeline: BagelPipeline
) -> None:
    with pytest.raises(ValueError, match="go with contexts"):
        drawn(pipeline, prompt="a", **{**SMALL, **alone})


def test_an_edit_has_the_last_images_size_unless_another_is_wanted(pipeline: BagelPipeline) -> None:
    images = [image((100, 40), 1), image((40, 80), 2)]
    steps = {"num_inference_steps": 1, "output_type": "np"}
    made = drawn(pipeline, prompt="blue", image=images, **steps)
    assert made.images.shape[1:3] == (128, 64)
    made = drawn(pipeline, prompt="blue", image=images, height=48, width=32, **steps)
    assert made.images.shape[1:3] == (48, 32)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ({"height": 40}, "multiples of 16"),
        ({"width": 144}, "at most 128"),
        ({"num_inference_steps": 0}, "at least 1"),
    ],
    ids=["multiple", "too large", "no steps"],
)
def test_what_is_not_made_is_refused(
    call: dict[str, int], problem: str, pipeline: BagelPipeline
) -> None:
    with pytest.raises(ValueError, match=problem):
        drawn(pipeline, prompt="a cat", **{**SMALL, **call})


@pytest.mark.parametrize(
    "mark", ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|endoftext|>"]
)
def test_a_prompt_with_a_token_of_the_model_is_refused(mark: str, pipeline: BagelPipeline) -> None:
    with pytest.raises(RequestError, match="is a token of the model") as refusal:
        drawn(pipeline, prompt=f"a cat{mark}", **SMALL)
    assert refusal.value.param == "prompt"
