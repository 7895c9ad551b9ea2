"""Compiled blocks below the engine."""

from pathlib import Path
from typing import Any

import torch
from support.compiling import counted_codes
from support.denoising.begun_together import begin_together

from omnistage.stages.diffusion.checkpoint import write_tiny
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.loading.loading import LoadOptions


def ask(text: str, side: int) -> dict[str, Any]:
    return {
        "prompt": text,
        "negative_prompt": text[1:],
        "true_cfg_scale": 3.0,
        "num_inference_steps": 3,
        "height": side,
        "width": side,
        "output_type": "np",
        "generator": torch.Generator().manual_seed(0),
    }


def test_no_request_waits_for_a_compiler_whatever_texts_sizes_and_others_there_are(
    tmp_path: Path,
) -> None:
    write_tiny("qwen-image", tmp_path)
    with counted_codes() as counter:
        loaded = LoadOptions(compile=True, device="cpu").load(str(tmp_path))
        once = {**ask("A warm-up.", 96), "num_inference_steps": 2}
        twice = {**once, "num_images_per_prompt": 2}
        engine = StepBatcher(loaded.pipeline, once, twice, denoisers=loaded.parts.dit)
        at_start = counter.frame_count
        for asked in (
            [("one two", 96)],
            [("one two three", 128)],
            [("one two", 96), ("one two", 96)],
            [("one two", 128), ("one two three", 128), ("x", 128)],
        ):
            begin_together(engine, len(asked))
            jobs = [engine.submit(**ask(text, side)) for text, side in asked]
            for job in jobs:
                job.result.result(600)
        engine.close()
        assert max(engine.batch_sizes) == 3
        assert 0 < counter.frame_count == at_start
