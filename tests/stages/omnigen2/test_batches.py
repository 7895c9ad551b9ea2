"""Requests to OmniGen2's pipeline that share forwards of its denoiser."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from references.omnigen2_drawings import noise
from support.denoising.begun_together import begin_together
from support.oracles.omnigen2 import bare_omnigen2

from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.loading.components import Parts

STEPS = 3
CALL = {"height": 64, "width": 64, "num_inference_steps": STEPS, "output_type": "np"}
PROMPTS = ("a fox", "two cats in the snow", "an owl that sleeps")


def arguments(number: int, **more: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(number)
    return {"prompt": PROMPTS[number], "generator": generator, **CALL, **more}


def test_texts_of_several_lengths_share_forwards_and_references_of_one_size_do(
    tiny_omnigen2: Path,
) -> None:
    pipeline = bare_omnigen2(tiny_omnigen2)
    given: list[dict[str, Any]] = [{}] * 3
    given += [{"input_images": [noise((64, 48), number)]} for number in range(3)]
    with torch.inference_mode():
        bare = [pipeline(**arguments(n % 3, **more)).images for n, more in enumerate(given)]
    warm_up = {"prompt": "A warm-up.", **CALL, "num_inference_steps": 2}
    twice = {**warm_up, "num_images_per_prompt": 2}
    engine = StepBatcher(pipeline, warm_up, twice, denoisers=Parts.find(pipeline).dit)
    try:
        begin_together(engine, len(given))
        jobs = [engine.submit(**arguments(n % 3, **more)) for n, more in enumerate(given)]
        for wanted, job in zip(bare, jobs, strict=True):
            assert np.abs(wanted - job.result.result(timeout=600).images).max() < 1e-4
    finally:
        engine.close()
    assert engine.batch_sizes[3] > 0
    # A step of words alone is one forward, of both sides of the guidance; one with images is two.
    rows = sum(number * count for number, count in engine.batch_sizes.items())
    assert rows == STEPS * (3 + 3 * 2)
