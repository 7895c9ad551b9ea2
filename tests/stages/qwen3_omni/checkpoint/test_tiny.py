"""The tiny checkpoint: transformers loads it as it is, and what it says can be read and heard."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from support.api.prompts import (
    PICTURE,
    QUESTIONS,
    SHORT,
    Question,
    image_part,
    question,
    sound_part,
)
from support.api.prompts import text as text_part
from support.oracles.reference import Reference
from transformers import AutoProcessor, Qwen3OmniMoeForConditionalGeneration

HELLO = QUESTIONS[0]
PIXELS = np.random.default_rng(0).integers(0, 255, (4, 64, 64, 3), dtype=np.uint8)
VIDEO = Question(
    "video",
    [],
    [{"role": "user", "content": [{"type": "video"}, {"type": "text", "text": "What moves?"}]}],
    {"videos": [PIXELS]},
)


def test_it_is_a_megabyte_or_two(tiny_checkpoint: Path) -> None:
    size = sum(path.stat().st_size for path in tiny_checkpoint.iterdir())
    assert 1e6 < size < 2.5e6


def test_it_has_every_file_of_a_hugging_face_folder(tiny_checkpoint: Path) -> None:
    assert {path.name for path in tiny_checkpoint.iterdir()} == {
        "chat_template.jinja",
        "chat_template.json",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "video_preprocessor_config.json",
    }


def test_it_has_speakers(tiny_checkpoint: Path) -> None:
    config = json.loads((tiny_checkpoint / "config.json").read_text())
    speakers = config["talker_config"]["speaker_id"]
    assert {"ethan", "chelsie"} <= set(speakers)
    assert len(set(speakers.values())) == len(speakers)


def test_every_weight_is_loaded_and_none_is_left_over(tiny_checkpoint: Path) -> None:
    _, info = Qwen3OmniMoeForConditionalGeneration.from_pretrained(
        tiny_checkpoint, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]


def test_a_seed_is_one_checkpoint(tiny_checkpoints: Callable[[int], Path], tmp_path: Path) -> None:
    from omnistage.stages.qwen3_omni.checkpoint.tiny import write_tiny_checkpoint

    write_tiny_checkpoint(tmp_path, seed=0)
    again = (tmp_path / "model.safetensors").read_bytes()
    assert again == (tiny_checkpoints(0) / "model.safetensors").read_bytes()
    assert again != (tiny_checkpoints(1) / "model.safetensors").read_bytes()


def test_the_tokenizer_keeps_every_byte(tiny_checkpoint: Path) -> None:
    tokenizer = AutoProcessor.from_pretrained(tiny_checkpoint).tokenizer
    line = "<|im_start|>user\nhé, 世界! <|image_pad|><|im_end|>"
    ids = tokenizer(line).input_ids
    assert tokenizer.decode(ids) == line
    for word in ("user", "system", "assistant", "<|im_start|>", "<|audio_pad|>", "<tts_pad>"):
        assert len(tokenizer(word).input_ids) == 1


def test_the_template_has_turns_and_media(tiny_checkpoint: Path) -> None:
    processor = AutoProcessor.from_pretrained(tiny_checkpoint)
    turns = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Hi"}]},
    ]
    assert processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Hi<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_greeting_is_answered_in_text_and_sound(
    tiny_checkpoints: Callable[[int], Path], seed: int
) -> None:
    answer = Reference(str(tiny_checkpoints(seed))).answer(HELLO, max_tokens=24, max_frames=60)
    assert len(answer.text) >= 7
    assert len(set(answer.text)) >= 5
    assert answer.text.isascii()
    assert answer.text.isprintable()
    assert len(answer.codes) >= 8
    assert len(np.unique(answer.codes[:, 0])) >= 5
    assert 0.05 < np.abs(answer.pcm).max() < 0.9


@pytest.mark.parametrize(
    "asked",
    [
        question("image", [image_part(PICTURE), text_part("What?")], images=[PICTURE]),
        question("sound", [sound_part(SHORT), text_part("What?")], audio=[SHORT / 32768]),
        question(
            "both",
            [sound_part(SHORT), image_part(PICTURE), text_part("What?")],
            audio=[SHORT / 32768],
            images=[PICTURE],
        ),
        VIDEO,
    ],
    ids=lambda asked: asked.name,
)
def test_media_are_understood_by_the_whole_model(reference: Reference, asked: Question) -> None:
    answer = reference.answer(asked, max_tokens=12, max_frames=20)
    assert answer.text
    assert len(answer.codes) >= 2
    assert np.abs(answer.pcm).max() > 0.05


def test_an_answer_depends_on_the_picture_and_on_the_sound(reference: Reference) -> None:
    def answers(kind: str, *media: object) -> set[str]:
        asked = [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": "What?"}]}]
        key = {"image": "images", "audio": "audio"}[kind]
        return {
            reference.answer(Question(kind, [], asked, {key: [one]}), 12, 2).text for one in media
        }

    noise = np.random.default_rng(1).standard_normal(8000).astype(np.float32) / 4
    assert len(answers("image", PICTURE, PICTURE.rotate(90), PICTURE.point(lambda x: x // 4))) == 3
    assert len(answers("audio", SHORT / 32768, noise)) == 2


def test_answers_end_by_themselves(tiny_checkpoints: Callable[[int], Path]) -> None:
    reference = Reference(str(tiny_checkpoints(1)))
    inputs = reference.inputs(HELLO)
    with torch.no_grad():
        tokens = reference.model.thinker.generate(
            **inputs, max_new_tokens=200, do_sample=False, eos_token_id=reference._eos
        )
    assert tokens.shape[1] - inputs["input_ids"].shape[1] < 200
    assert len(reference.answer(HELLO, max_tokens=24, max_frames=200).codes) < 200
