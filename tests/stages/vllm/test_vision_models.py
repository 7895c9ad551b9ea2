"""Videos of models that see, as vLLM's own processors make prompts of what the gateway sends."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.api.prompts import video_part
from support.media.recorded import encoded_video, moving
from support.media.taken_media import taken_of
from support.models.tiny_vision import FAMILIES, write_tiny_vision
from transformers import AutoProcessor
from transformers.video_utils import load_video
from vllm.config import ModelConfig
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import ProcessorInputs, TimingContext

from omnistage.stages.messages.to_gateway import Reading
from omnistage.stages.vllm.media.frames import sampler_of

PROMPT = "<|vision_start|><|video_pad|><|vision_end|>"


def made_by_vllm(folder: Path, video: bytes, fps: float) -> tuple[list[int], dict[str, Any]]:
    """The prompt's tokens and the video's data, from what a stage gets beside a request."""
    config = ModelConfig(model=str(folder), dtype="float32", max_model_len=2048)
    processor = MULTIMODAL_REGISTRY.create_processor(config)
    messages = [{"role": "user", "content": [video_part(video)]}]
    body = {"messages": messages, "media_io_kwargs": {"video": {"fps": fps}}}
    reading = Reading(None, takes_video=True, sampler=sampler_of(config, {}))
    (received,) = taken_of(body, reading)
    (frames,) = received.values()
    given = processor.info.parse_mm_data({"video": [(frames.data(), frames.about["metadata"])]})
    ids = processor.info.get_tokenizer().encode(PROMPT, add_special_tokens=False)
    asked = ProcessorInputs(prompt=ids, mm_data_items=given, hf_processor_mm_kwargs={"fps": fps})
    made = processor.apply(asked, TimingContext())
    return made["prompt_token_ids"], made["mm_kwargs"]["video"][0].get_data()


@pytest.mark.parametrize("fps", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("rate", [8, 25])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_is_that_of_transformers(
    family: str, rate: int, fps: float, tmp_path: Path
) -> None:
    """Its tokens, among them the times of frames, the pixels and the grid."""
    write_tiny_vision(tmp_path / "model", family)
    video = encoded_video(moving(50, 90, 122), "mp4", "libx264", rate)
    path = tmp_path / "video.mp4"
    path.write_bytes(video)
    ids, data = made_by_vllm(tmp_path / "model", video, fps)
    reference = AutoProcessor.from_pretrained(tmp_path / "model")
    frames, metadata = load_video(
        str(path),
        backend="pyav",
        sample_indices_fn=lambda metadata, **_: reference.video_processor.sample_frames(
            metadata, fps=fps
        ).clip(max=49),
    )
    metadata.frames_indices = list(map(int, metadata.frames_indices))
    wanted = reference(
        text=[PROMPT],
        videos=[frames],
        video_metadata=[metadata],
        do_sample_frames=False,
        do_rescale=False,  # vLLM does both on the model's device
        do_normalize=False,
        return_tensors="pt",
    )
    assert ids == wanted["input_ids"][0].tolist()
    assert torch.equal(data["pixel_values_videos"].float(), wanted["pixel_values_videos"].float())
    assert torch.equal(data["video_grid_thw"], wanted["video_grid_thw"][0])
