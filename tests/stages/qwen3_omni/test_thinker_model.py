"""The thinker's own part of vLLM's model, without an engine."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.prompts import PICTURE, QUESTIONS, Question, image_part, text, video_bytes, video_part
from support.prompts import question as ask
from support.reference import Reference

from omnistage.stages.qwen3_omni.thinker_model import Qwen3OmniThinker

FRAMES = np.random.default_rng(3).integers(0, 255, (6, 64, 96, 3), dtype=np.uint8)
VIDEO = ask(
    "video and image",
    [video_part(video_bytes(2, 32)), text("then"), image_part(PICTURE)],
    videos=[FRAMES],
    images=[PICTURE],
)


def features(inputs: Any, config: Any) -> list[Any]:
    """Every medium of a prompt in the form in which vLLM's runner has it."""
    ids = inputs["input_ids"][0].tolist()
    found = []
    for modality in ("image", "video", "audio"):
        token = getattr(config, f"{modality}_token_id")
        starts = [i for i, one in enumerate(ids) if one == token and ids[i - 1] != token]
        for number, start in enumerate(starts):
            data = fields(inputs, modality, number)
            where = SimpleNamespace(offset=start)
            found.append(SimpleNamespace(modality=modality, mm_position=where, data=data))
    return found


def fields(inputs: Any, modality: str, number: int) -> dict[str, Any]:
    if modality == "audio":
        length = inputs["feature_attention_mask"][number].sum()
        return {"audio_feature_lengths": SimpleNamespace(data=length)}
    values = {f"{modality}_grid_thw": inputs[f"{modality}_grid_thw"][number]}
    if modality == "video":
        values["second_per_grid_ts"] = torch.as_tensor(inputs["video_second_per_grid"][number])
    return {name: SimpleNamespace(data=value) for name, value in values.items()}


@pytest.mark.parametrize("question", [*QUESTIONS, VIDEO], ids=lambda question: question.name)
def test_positions_equal_the_reference(question: Question, reference: Reference) -> None:
    config = reference.model.config.thinker_config
    inputs = reference.inputs(question)
    mask = inputs.get("feature_attention_mask")
    expected, _ = reference.model.thinker.get_rope_index(
        inputs["input_ids"],
        inputs.get("image_grid_thw"),
        inputs.get("video_grid_thw"),
        inputs["attention_mask"],
        use_audio_in_video=False,
        audio_seqlens=None if mask is None else mask.sum(-1),
        second_per_grids=inputs.get("video_second_per_grid"),
    )
    thinker = Qwen3OmniThinker.__new__(Qwen3OmniThinker)
    thinker.config = config
    ids = inputs["input_ids"][0].tolist()
    positions, delta = thinker.get_mrope_input_positions(ids, features(inputs, config))
    assert positions.tolist() == expected[:, 0].long().tolist()
    assert delta == int(positions.max()) + 1 - len(ids)
