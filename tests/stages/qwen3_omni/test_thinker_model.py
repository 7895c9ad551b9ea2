"""The thinker's own part of vLLM's model, without an engine."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.api.prompts import (
    PICTURE,
    QUESTIONS,
    Question,
    image_part,
    sound,
    text,
    video_bytes,
    video_part,
)
from support.api.prompts import question as ask
from support.oracles.reference import Reference

from omnistage.stages.qwen2_5_omni import thinker_model as qwen2_5
from omnistage.stages.qwen3_omni import thinker_model as qwen3
from omnistage.stages.qwen3_omni.thinker_model import Qwen3OmniThinker

FRAMES = np.random.default_rng(3).integers(0, 255, (6, 64, 96, 3), dtype=np.uint8)
VIDEO = ask(
    "video and image",
    [video_part(video_bytes(2, 32)), text("then"), image_part(PICTURE)],
    videos=[FRAMES],
    images=[PICTURE],
)


def features(inputs: Any, config: Any, is_heard: bool = False) -> list[Any]:
    """Every medium of a prompt in the form in which vLLM's runner has it."""
    ids = inputs["input_ids"][0].tolist()
    found = []
    opens = (config.vision_start_token_id, config.audio_start_token_id)
    for modality in ("image", "video", "audio"):
        token = getattr(config, f"{modality}_token_id")
        starts = [i for i, one in enumerate(ids) if one == token and ids[i - 1] in opens]
        if modality == "audio" and is_heard:  # of a video, whose first token is its patch
            starts = [i for i, one in enumerate(ids) if one == config.audio_start_token_id]
        for number, start in enumerate(starts):
            data = fields(inputs, modality, number)
            if modality == "video":
                data["use_audio_in_video"] = SimpleNamespace(data=torch.tensor(is_heard))
                start -= is_heard  # vLLM's begins with the token that opens its sound
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
    assert_positions_equal(reference, reference.inputs(question), is_heard=False)


@pytest.mark.parametrize("num_samples", [1600, 8000, 60000])
@pytest.mark.parametrize("fps", [1.0, 2.0, 26.0])
def test_positions_of_videos_that_are_heard_equal_the_reference(
    num_samples: int, fps: float, reference: Reference
) -> None:
    """Sounds shorter and longer than the videos, whose frames are far apart and close together."""
    parts = [video_part(b""), text("and"), image_part(PICTURE), video_part(b""), text("What?")]
    sounds = [sound(num_samples) / 32768, sound(16000) / 32768]
    media: dict[str, list[Any]] = {
        "videos": [FRAMES, FRAMES[:2]],
        "images": [PICTURE],
        "audio": sounds,
    }
    asked = ask("heard", parts, **media)
    inputs = reference.inputs(asked, use_audio_in_video=True, fps=fps)
    assert_positions_equal(reference, inputs, is_heard=True)


def assert_positions_equal(reference: Reference, inputs: Any, is_heard: bool) -> None:
    config = reference.model.config.thinker_config
    mask = inputs.get("feature_attention_mask")
    expected, _ = reference.model.thinker.get_rope_index(
        inputs["input_ids"],
        inputs.get("image_grid_thw"),
        inputs.get("video_grid_thw"),
        inputs["attention_mask"],
        use_audio_in_video=is_heard,
        audio_seqlens=None if mask is None else mask.sum(-1),
        second_per_grids=inputs.get("video_second_per_grid"),
    )
    thinker = Qwen3OmniThinker.__new__(Qwen3OmniThinker)
    thinker.config = config
    ids = inputs["input_ids"][0].tolist()
    positions, delta = thinker.get_mrope_input_positions(ids, features(inputs, config, is_heard))
    assert positions.tolist() == expected[:, 0].long().tolist()
    assert delta == int(positions.max()) + 1 - len(ids)


@pytest.mark.parametrize("thinker_config", [qwen2_5.thinker_config, qwen3.thinker_config])
def test_the_configuration_of_a_draft_model_stays_as_it_is(thinker_config: Any) -> None:
    drafter = SimpleNamespace(architectures=["Qwen3ForCausalLM"])
    assert thinker_config(drafter).architectures == ["Qwen3ForCausalLM"]
    omni = SimpleNamespace(architectures=["its own"], thinker_config=None)
    assert thinker_config(omni).architectures[0].startswith("Omnistage")


def test_a_step_of_one_cuda_graph_leaves_no_picture_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a step is replayed: the forward that would clear what deepstack adds does not run."""

    def embed(self: Any, input_ids: Any, embeddings: Any, *, is_multimodal: Any) -> torch.Tensor:
        if embeddings:
            self._set_deepstack_input_embeds(torch.ones(2, len(input_ids), 4))
        return torch.zeros(len(input_ids), 4)

    owner = next(kind for kind in Qwen3OmniThinker.__mro__[1:] if "embed_input_ids" in vars(kind))
    monkeypatch.setattr(owner, "embed_input_ids", embed)
    thinker: Any = Qwen3OmniThinker.__new__(Qwen3OmniThinker)
    torch.nn.Module.__init__(thinker)
    thinker.deepstack_num_level = 2
    thinker.deepstack_input_embeds = [torch.zeros(8, 4), torch.zeros(8, 4)]
    thinker.deepstack_input_embeds_num_tokens = 0
    thinker.embed_input_ids(torch.arange(5), [torch.ones(5, 12)])
    assert [int(rows.sum()) for rows in thinker.deepstack_input_embeds] == [20, 20]
    thinker.embed_input_ids(torch.arange(2), [torch.ones(2, 12)])
    assert [int(rows.sum()) for rows in thinker.deepstack_input_embeds] == [8, 8]
    thinker.embed_input_ids(torch.arange(2))
    assert [int(rows.abs().sum()) for rows in thinker.deepstack_input_embeds] == [0, 0]
