"""A pipeline of Diffusers by itself, which `omnistage verify` compares images with."""

from typing import Any

import diffusers
import numpy as np
import torch

from omnistage.stages.messages.to_reference import Findings, Found, ReferenceJob

OWN = ("size", "seed")  # fields of a request that are no arguments of a pipeline's call


def load(model: str, dtype: torch.dtype) -> object:
    """Returns a pipeline; on a GPU each of its models is there only while it computes."""
    pipeline = diffusers.DiffusionPipeline.from_pretrained(model, dtype=dtype)
    pipeline.set_progress_bar_config(disable=True)
    if torch.cuda.is_available():
        pipeline.enable_model_cpu_offload()
    return pipeline


@torch.inference_mode()
def verify(job: ReferenceJob) -> Findings:
    """Returns the images that the pipeline makes for each question."""
    has_gpu = torch.cuda.is_available()
    name = job.dtype if job.dtype != "auto" else ("bfloat16" if has_gpu else "float32")
    pipeline = load(job.model, getattr(torch, name))
    return Findings(
        found=[Found(pixels=images_of(pipeline, asked.fields)) for asked in job.asked],
        dtype=name,
        device="cuda" if has_gpu else "cpu",
        versions={"diffusers": diffusers.__version__, "torch": str(torch.__version__)},
    )


def images_of(pipeline: Any, fields: dict[str, Any]) -> list[bytes]:
    """Returns the pixels [height, width, 3] of each image that a request asks for."""
    width, height = map(int, fields["size"].split("x"))
    made = pipeline(
        **{field: one for field, one in fields.items() if field not in OWN},
        width=width,
        height=height,
        generator=torch.Generator().manual_seed(fields["seed"]),
        output_type="np",
    ).images
    return [image.tobytes() for image in (made * 255).round().astype(np.uint8)]
