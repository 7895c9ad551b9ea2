"""The talker's prompt against what transformers makes of the same one."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniTalkerForConditionalGeneration,
)

from omnistage.stages.qwen2_5_omni.step_schema import TALKER_LAYOUT, TEXT
from omnistage.stages.qwen2_5_omni.talker_prompt import (
    NO_TEXT,
    TEXT_END,
    TEXT_PAD,
    SpeechIds,
    request_options,
    speaker_tokens,
    talker_prompt,
)
from omnistage.stages.vllm.models.rope import Grid

TIME_STEP = 50.0  # positions of two seconds


@pytest.fixture(scope="module")
def ids(tiny_qwen2_5_omni: Path) -> SpeechIds:
    config = AutoConfig.from_pretrained(tiny_qwen2_5_omni)
    return SpeechIds.of(config, speaker_tokens(str(tiny_qwen2_5_omni)))


@pytest.fixture(scope="module")
def reference(tiny_qwen2_5_omni: Path) -> Qwen2_5OmniTalkerForConditionalGeneration:
    """Its positions depend on no weight."""
    config = AutoConfig.from_pretrained(tiny_qwen2_5_omni).talker_config
    with torch.device("meta"):
        return Qwen2_5OmniTalkerForConditionalGeneration(config)


Medium = tuple[str, tuple[int, int, int]]
PROMPTS: dict[str, list[int | Medium]] = {
    "text": [7],
    "image": [3, ("image", (1, 2, 3)), 4],
    "images": [1, ("image", (1, 4, 2)), 2, ("image", (1, 2, 6)), 1],
    "sound": [2, ("audio", (1, 1, 10)), 5],
    "video": [2, ("video", (3, 2, 2)), 5],
    "all": [1, ("video", (2, 2, 3)), 2, ("audio", (1, 1, 10)), 1, ("image", (1, 3, 3)), 6],
}


@pytest.mark.parametrize("parts", PROMPTS.values(), ids=PROMPTS)
def test_positions_and_those_of_decodes_equal_the_reference(
    parts: Sequence[int | Medium],
    ids: SpeechIds,
    reference: Qwen2_5OmniTalkerForConditionalGeneration,
) -> None:
    config = reference.config
    marks = {
        "image": (config.vision_start_token_id, config.vision_end_token_id),
        "video": (config.vision_start_token_id, config.vision_end_token_id),
        "audio": (config.audio_start_token_id, config.audio_end_token_id),
    }
    prompt: list[int] = []
    grids: list[Grid] = []
    sizes: dict[str, list[list[int]]] = {"image": [], "video": [], "audio": []}
    for part in parts:
        if isinstance(part, int):
            prompt += [5] * part
            continue
        kind, size = part
        start, end = marks[kind]
        offset, count = len(prompt) + 1, size[0] * size[1] * size[2]
        prompt += [start, *[getattr(config, f"{kind}_token_index")] * count, end]
        sizes[kind].append([size[0], 2 * size[1], 2 * size[2]])
        if kind != "audio":
            grids.append(Grid(offset, size, TIME_STEP if kind == "video" else 25.0))
    made = talker_prompt(ids, len(prompt), grids, "ethan")
    whole = torch.tensor([[*prompt, ids.speakers["ethan"], 5]])
    positions, delta = reference.get_rope_index(
        whole,
        torch.tensor(sizes["image"]) if sizes["image"] else None,
        torch.tensor(sizes["video"]) if sizes["video"] else None,
        torch.ones_like(whole),
        False,
        torch.tensor([40] * len(sizes["audio"])),  # frames of 10 tokens
        torch.tensor([TIME_STEP / 25] * len(sizes["video"])),
    )
    assert np.array_equal(made.positions, positions[:, 0].long().numpy())
    assert made.position_delta == int(delta.flatten()[0])


def test_token_ids_are_those_whose_repetition_the_reference_counts(ids: SpeechIds) -> None:
    prompt = talker_prompt(ids, 3, [], "chelsie")
    assert prompt.token_ids == [ids.codec_mask] * 3 + [ids.codec_pad, ids.codec_bos]
    assert ids.ends == (ids.codec_pad, ids.codec_eos)


def test_each_voice_and_each_end_has_its_own_line(ids: SpeechIds) -> None:
    assert sorted(ids.speakers) == ["chelsie", "ethan"]
    for speaker, token in ids.speakers.items():
        prompt = talker_prompt(ids, 2, [], speaker)
        assert prompt.text[:2].tolist() == [NO_TEXT] * 2
        assert ids.text[prompt.text[2]] == token
        assert prompt.text[3] == NO_TEXT
    assert (ids.text[TEXT_END], ids.text[TEXT_PAD]) == (ids.text_end, ids.text_pad)


def test_voices_that_share_a_token_with_each_other_or_with_an_end_have_lines() -> None:
    shared = SpeechIds(1, 2, 3, 4, 30, 31, {"a": 40, "b": 40, "c": 31})
    assert [shared.text[shared.voice_line(name)] for name in "abc"] == [40, 40, 31]


def test_rows_of_the_prompt_come_before_the_voice_and_the_others_behind(ids: SpeechIds) -> None:
    prompt = talker_prompt(ids, 4, [], "ethan")
    late = request_options("a", prompt).late
    assert late is not None
    for rows in (late.hidden_positions, late.hidden_sources):
        assert np.frombuffer(rows, np.int32).tolist() == [0, 1, 2, 3]
    assert late.following == (4, 5)
    assert late.ends == {TEXT: (TEXT_END, TEXT_PAD)}
    inputs = np.frombuffer(late.inputs, np.int32).reshape(len(prompt), -1)
    assert TALKER_LAYOUT.of_inputs(inputs, TEXT)[:, 0].tolist() == prompt.text.tolist()
