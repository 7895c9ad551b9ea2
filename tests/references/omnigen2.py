"""Records what OmniGen2's own code makes of a tiny checkpoint: omnigen2.safetensors.

The code is that of github.com/VectorSpaceLab/OmniGen2 (0f72fa9), without flash attention and
without kernels of Triton, on a CPU. Both are hidden, as if they were not installed:

    omnistage tiny omnigen2 FOLDER
    PYTHONPATH=tests:CHECKOUT python -m references.omnigen2 FOLDER

It draws all noise from torch's global generator, an image to refer to first.
"""

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from references.omnigen2_drawings import CHATS, DRAWINGS, STEPS, Drawing, checkpoint_hash
from safetensors.torch import save_file

HIDDEN = ("triton", "flash_attn")
find_spec = importlib.util.find_spec


def find_others(name: str, package: str | None = None) -> ModuleSpec | None:
    """Find a module that is not hidden."""
    return None if name in HIDDEN else find_spec(name, package)


importlib.util.find_spec = find_others

from diffusers import AutoencoderKL  # noqa: E402
from omnigen2.models.transformers.transformer_omnigen2 import (  # noqa: E402
    OmniGen2Transformer2DModel,
)
from omnigen2.pipelines.omnigen2.pipeline_omnigen2 import OmniGen2Pipeline  # noqa: E402
from omnigen2.pipelines.omnigen2.pipeline_omnigen2_chat import (  # noqa: E402
    OmniGen2ChatPipeline,
)
from omnigen2.schedulers.scheduling_flow_match_euler_discrete import (  # noqa: E402
    FlowMatchEulerDiscreteScheduler,
)
from transformers import (  # noqa: E402
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
)

importlib.util.find_spec = find_spec

MAX_LENGTH = 1024  # as the repository's scripts have it


def loaded(made: Any, folder: Path) -> Any:
    """Return a pipeline of a folder, by its class."""
    pipeline = made(
        OmniGen2Transformer2DModel.from_pretrained(folder, subfolder="transformer"),
        AutoencoderKL.from_pretrained(folder, subfolder="vae"),
        FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler"),
        Qwen2_5_VLForConditionalGeneration.from_pretrained(folder / "mllm").float(),
        Qwen2_5_VLProcessor.from_pretrained(folder / "processor"),
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def answered(pipeline: Any, drawing: Drawing) -> Any:
    """Return what a pipeline makes of a drawing."""
    arguments = dict(drawing.arguments)
    if "guidance_scale" in arguments:
        arguments["text_guidance_scale"] = arguments.pop("guidance_scale")
    torch.manual_seed(drawing.seed)
    return pipeline(
        prompt=drawing.prompt,
        input_images=drawing.images or None,
        align_res=drawing.size is None,
        num_inference_steps=STEPS,
        max_sequence_length=MAX_LENGTH,
        output_type="np",
        **drawing.sides,
        **arguments,
    )


def pixels_of(images: Any) -> torch.Tensor:
    """Return images, which are floats or Pillow's, as bytes [n, height, width, 3]."""
    if isinstance(images, list):
        return torch.from_numpy(np.stack([np.asarray(one) for one in images]))
    return torch.from_numpy((images * 255).round().astype(np.uint8)).contiguous()


@torch.inference_mode()
def main(folder: Path) -> None:
    torch.set_num_threads(1)
    pipeline = loaded(OmniGen2Pipeline, folder)
    recorded = {one.name: pixels_of(answered(pipeline, one).images) for one in DRAWINGS}
    pipeline, texts = loaded(OmniGen2ChatPipeline, folder), {}
    for chat in CHATS:
        answer = answered(pipeline, chat)
        texts[chat.name] = answer.text
        if answer.images is not None:
            recorded[f"chat: {chat.name}"] = pixels_of(answer.images)
    metadata = {"checkpoint": checkpoint_hash(folder), "texts": json.dumps(texts)}
    save_file(recorded, Path(__file__).with_suffix(".safetensors"), metadata)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
