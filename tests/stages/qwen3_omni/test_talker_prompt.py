"""The talker's prompt rows and positions against those transformers gives its talker."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor, Qwen3OmniMoeForConditionalGeneration

from omnistage.stages.qwen3_omni.talker_prompt import SpeechIds, TalkerPrompt, talker_prompt
from omnistage.stages.vllm.models.grids import video_ids
from omnistage.stages.vllm.models.rope import Grid

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
SOUND = "<|audio_start|><|audio_pad|><|audio_end|>"
VIDEO = "<|vision_start|><|video_pad|><|vision_end|>"


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def picture(height: int, width: int) -> Image.Image:
    noise = np.random.default_rng(height).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise)


SOUND_SAMPLES = (0.3 * np.sin(np.arange(8000) * 0.05)).astype(np.float32)
LONG_SOUND = (0.3 * np.sin(np.arange(48000) * 0.03)).astype(np.float32)
VIDEO_FRAMES = np.random.default_rng(3).integers(0, 255, (4, 64, 64, 3), dtype=np.uint8)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (turn("user", "Hello, who are you?"), {}),
    "turns": (
        turn("system", "Be kind.")
        + turn("user", "One.")
        + turn("assistant", "Two.")
        + turn("user", "Three?"),
        {},
    ),
    "image": (turn("user", IMAGE + "What is it?"), {"images": [picture(64, 96)]}),
    "images in turns": (
        turn("system", "Look.")
        + turn("user", "A " + IMAGE)
        + turn("assistant", "Seen.")
        + turn("user", IMAGE + "Differ?"),
        {"images": [picture(64, 64), picture(96, 160)]},
    ),
    "sound": (turn("user", SOUND + "Said?"), {"audio": [SOUND_SAMPLES]}),
    "sound and image": (
        turn("user", SOUND + IMAGE + "Both?"),
        {"audio": [SOUND_SAMPLES], "images": [picture(64, 64)]},
    ),
    "video": (turn("user", VIDEO + "Happens?"), {"videos": [VIDEO_FRAMES]}),
}
# Of videos that are heard: alone, around images, with sounds shorter and longer than themselves.
HEARD: dict[str, tuple[str, dict[str, Any]]] = {
    "heard": (
        turn("user", VIDEO + "Happens?"),
        {"videos": [VIDEO_FRAMES], "audio": [SOUND_SAMPLES]},
    ),
    "heard before an image": (
        turn("user", VIDEO + "then" + IMAGE + "What?"),
        {"videos": [VIDEO_FRAMES], "audio": [LONG_SOUND], "images": [picture(64, 96)]},
    ),
    "heard after an image": (
        turn("user", IMAGE + "What?") + turn("assistant", "Seen.") + turn("user", VIDEO),
        {"videos": [VIDEO_FRAMES], "audio": [SOUND_SAMPLES], "images": [picture(64, 96)]},
    ),
    "two heard around an image": (
        turn("user", VIDEO + IMAGE + VIDEO + "Which is louder?"),
        {
            "videos": [VIDEO_FRAMES, VIDEO_FRAMES[:2]],
            "audio": [SOUND_SAMPLES, LONG_SOUND],
            "images": [picture(64, 96)],
        },
    ),
}


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Any) -> Any:
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        tiny_checkpoint, dtype=torch.float32
    ).eval()
    if not hasattr(model.talker.config, "audio_config"):  # the reference's own lack: sound + image
        model.talker.config.audio_config = model.config.thinker_config.audio_config
    return model


@pytest.fixture(scope="module")
def processor(tiny_checkpoint: Any) -> Any:
    return AutoProcessor.from_pretrained(tiny_checkpoint)


def grids_of(inputs: Any, config: Any) -> list[Grid]:
    merge = config.vision_config.spatial_merge_size
    grids = []
    seconds = {"image": [1.0] * 8, "video": inputs.get("video_second_per_grid", [2.0] * 8)}
    ids = inputs["input_ids"][0].tolist()
    opens = (config.vision_start_token_id, config.audio_start_token_id)
    for kind, token in (("image", config.image_token_id), ("video", config.video_token_id)):
        starts = [i for i, x in enumerate(ids) if x == token and ids[i - 1] in opens]
        sizes = inputs.get(f"{kind}_grid_thw", [])
        for start, thw, second in zip(starts, sizes, seconds[kind], strict=False):
            t, h, w = (int(x) for x in thw)
            step = float(second) * config.position_id_per_seconds
            size = (t, h // merge, w // merge)
            if kind == "image":
                grids.append(Grid(start, size, step))
                continue
            is_heard = ids[start - 1] == config.audio_start_token_id
            grids.append(video_ids(config).grid(ids, start - is_heard, size, step))
    return sorted(grids, key=lambda grid: grid.offset)


class TalkerCall(Exception):
    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments


def talker_call(
    model: Any, inputs: Any, monkeypatch: pytest.MonkeyPatch, is_heard: bool
) -> dict[str, Any]:
    """What transformers' generate hands to its talker, and the thinker's results."""
    kept: dict[str, Any] = {}
    thinker = model.thinker.generate

    def thinks(**options: Any) -> Any:
        kept["thinker"] = thinker(**options)
        return kept["thinker"]

    def speaks(**options: Any) -> Any:
        raise TalkerCall(options)

    monkeypatch.setattr(model.thinker, "generate", thinks)
    monkeypatch.setattr(model.talker, "generate", speaks)
    with pytest.raises(TalkerCall) as call:
        model.generate(
            **inputs,
            speaker="chelsie",
            use_audio_in_video=is_heard,
            thinker_max_new_tokens=5,
            thinker_do_sample=False,
            thinker_eos_token_id=model.config.im_end_token_id,
        )
    return {**call.value.arguments, **kept}


def rows_of(prompt: TalkerPrompt, model: Any, hidden: torch.Tensor, first: int) -> torch.Tensor:
    talker, embed = model.talker, model.thinker.get_input_embeddings()
    text = torch.from_numpy(prompt.text).long()
    text[-1] = first
    rows: torch.Tensor = talker.text_projection(embed(text.clamp_min(0)))
    rows[text < 0] = 0
    codec = torch.from_numpy(prompt.codec).long()
    embedded = talker.get_input_embeddings()(codec.clamp_min(0))
    rows = rows + torch.where(codec[:, None] >= 0, embedded, 0)
    sources = torch.from_numpy(prompt.hidden_sources).long()
    rows[torch.from_numpy(prompt.hidden_positions).long()] += talker.hidden_projection(
        hidden[sources]
    )
    return rows


@pytest.mark.parametrize("case", [*CASES, *HEARD])
@torch.no_grad()
def test_rows_and_positions_equal_the_reference(
    case: str, reference: Any, processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_heard = case in HEARD
    text, media = (HEARD if is_heard else CASES)[case]
    text += "<|im_start|>assistant\n"
    inputs = processor(text=text, return_tensors="pt", use_audio_in_video=is_heard, **media)
    call = talker_call(reference, inputs, monkeypatch, is_heard)
    config = reference.config
    layer = config.talker_config.accept_hidden_layer
    steps = call["thinker"].hidden_states
    hidden = torch.cat([step[layer] for step in steps], 1)[0]
    prompt_ids = inputs["input_ids"][0].tolist()
    first = int(call["thinker"].sequences[0, len(prompt_ids)])

    prompt = talker_prompt(
        SpeechIds.of(config), prompt_ids, grids_of(inputs, config.thinker_config), "Chelsie"
    )

    torch.testing.assert_close(
        rows_of(prompt, reference, hidden, first), call["inputs_embeds"][0], atol=1e-5, rtol=1e-5
    )
    positions = reference.talker.compute_3d_position_ids(
        call["inputs_embeds"],
        talker_input_ids=call["talker_input_ids"],
        attention_mask=call["attention_mask"],
        image_grid_thw=call.get("image_grid_thw"),
        video_grid_thw=call.get("video_grid_thw"),
        audio_feature_lengths=call.get("audio_feature_lengths"),
        video_second_per_grid=call.get("video_second_per_grid"),
    )
    assert np.array_equal(prompt.positions, positions[:, 0].long().numpy())
    assert prompt.position_delta == int(reference.talker.rope_deltas)
    assert not prompt.lead
