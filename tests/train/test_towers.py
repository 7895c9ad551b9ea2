"""The towers in training compute what transformers' own code computes."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from batches import Batches
from pictures import SIZES, draw, scene
from samples import HOP, Writer, picture_marks, sound_marks
from thinker import Reader, new_thinker
from towers import Mel, patches, speed_up
from transformers import Qwen2VLImageProcessor, WhisperFeatureExtractor
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

CLASSES = (
    modeling.Qwen3OmniMoeThinkerTextExperts,
    modeling.Qwen3OmniMoeTalkerTextExperts,
    modeling.Qwen3OmniMoeAudioAttention,
    modeling.Qwen3OmniMoeVisionAttention,
    modeling.Qwen3OmniMoeVisionPatchEmbed,
)


@pytest.fixture
def as_they_were() -> Iterator[None]:
    """The forwards that training replaces are put back."""
    forwards = [(one, one.forward) for one in CLASSES]
    yield
    for one, forward in forwards:
        one.forward = forward


def sounds() -> list[np.ndarray[Any, Any]]:
    """Two of different lengths, in whole hops, silent at their ends as questions are."""
    noise = np.random.default_rng(0)
    made = [noise.normal(0, 3000, HOP * count).astype(np.int16) for count in (37, 250)]
    for one in made:
        one[-2 * HOP :] = 0
    return made


def test_mel_rows_equal_the_feature_extractor() -> None:
    waves = [one / 32768 for one in sounds()]
    padded = np.zeros((2, len(waves[1])), np.float32)
    for row, one in enumerate(waves):
        padded[row, : len(one)] = one
    made = Mel()(torch.from_numpy(padded), torch.tensor([len(one) for one in waves]))
    extractor = WhisperFeatureExtractor(feature_size=128)
    for row, one in enumerate(waves):
        theirs = extractor(one, sampling_rate=16_000, padding=False, return_tensors="pt")
        count = len(one) // HOP
        ours = made[row, :count].T
        torch.testing.assert_close(ours, theirs.input_features[0][:, :count], atol=2e-4, rtol=0)
    assert not made[0, 37:].any()


def test_patches_equal_the_image_processor() -> None:
    pick = random.Random(0)
    pixels = np.stack([draw(scene(pick), 96, pick) for _ in range(2)])
    processor = Qwen2VLImageProcessor(
        patch_size=16,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
        min_pixels=32**2,
        max_pixels=256**2,
    )
    theirs = processor(images=list(pixels), return_tensors="pt").pixel_values
    torch.testing.assert_close(patches(torch.from_numpy(pixels)), theirs, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("as_they_were")
@torch.no_grad()
def test_a_batch_of_all_kinds_equals_transformers_one_by_one() -> None:
    pick, writer = random.Random(0), Writer()
    pixels = [draw(scene(pick), side, pick) for side in SIZES]
    heard = sounds()
    mark = sound_marks(len(heard[1]))
    samples = [
        writer.sample(("Hello", "Hi.")),
        writer.sample((f"{picture_marks(1, SIZES[2])}What?", "It."), "", SIZES[2], (2,)),
        writer.sample((f"{picture_marks(1, SIZES[0])}{mark}", "It is."), "", SIZES[0], (0,), 1),
        writer.sample((f"{sound_marks(len(heard[0]))}Say", "No."), sound=0),
    ]
    talks = {str(row): [one] for row, one in enumerate(samples)}
    batches = Batches({**talks, "pixels": pixels, "sounds": heard}, dict.fromkeys(talks, 1), 0)
    batch = next(iter(batches))
    thinker = new_thinker().eval()
    alone = [_alone(thinker, one, pixels, heard) for one in samples]
    speed_up()
    reader = Reader(copy.deepcopy(thinker))
    embeds, deep, _ = reader.embeddings(batch, torch.device("cpu"), augment=False)
    hidden = reader.thinker.model(
        inputs_embeds=embeds, position_ids=batch["positions"], use_cache=False, **deep
    ).last_hidden_state
    logits = reader.thinker.lm_head(hidden)
    for row, theirs in enumerate(alone):
        ours = logits[row, : len(theirs)]
        torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-3)


def _alone(thinker: Any, one: Any, pixels: list[Any], heard: list[Any]) -> torch.Tensor:
    """Logits [n, vocabulary] of one sample by transformers' forward and processors' layout."""
    inputs: dict[str, Any] = {"input_ids": torch.from_numpy(one.ids.astype(np.int64))[None]}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if one.pictures:
        picture = torch.tensor(pixels[one.pictures[0]])[None]
        inputs["pixel_values"] = patches(picture)
        inputs["image_grid_thw"] = torch.tensor([[1, len(picture[0]) // 16, len(picture[0]) // 16]])
    if one.sound >= 0:
        extractor = WhisperFeatureExtractor(feature_size=128)
        wave = heard[one.sound] / 32768
        made = extractor(wave, sampling_rate=16_000, padding=False, return_tensors="pt")
        count = len(wave) // HOP
        inputs["input_features"] = made.input_features[..., :count].float()
        inputs["feature_attention_mask"] = torch.ones(1, count, dtype=torch.long)
    thinker.rope_deltas = None
    logits: torch.Tensor = thinker(**inputs).logits[0]
    return logits
