"""The towers in training compute what transformers' own code computes."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from batches import collate
from language.samples import HOP, Picture, Sample, Sound, Writer, picture_marks, sound_marks
from pictures import draw, labels, scene
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
    writer = Writer()
    wide, small = picture((96, 160)), picture((64, 64))
    short, long = (Sound(one, "What?") for one in sounds())
    samples = [
        writer.sample("text", ("Hello", "Hi.")),
        writer.sample("seen", (f"{picture_marks(wide)}What?", "It."), "", (wide,)),
        writer.sample(
            "both", (picture_marks(small) + sound_marks(long), "It is."), "", (small,), (long,)
        ),
        writer.sample("heard", (f"{sound_marks(short)}Say", "No."), sounds=(short,)),
    ]
    batch = collate(samples)
    thinker = new_thinker().eval()
    alone = [_alone(thinker, one) for one in samples]
    speed_up()
    reader = Reader(copy.deepcopy(thinker))
    embeds, deep, *_ = reader.embeddings(batch, torch.device("cpu"), augment=False)
    hidden = reader.thinker.model(
        inputs_embeds=embeds, position_ids=batch["positions"], use_cache=False, **deep
    ).last_hidden_state
    logits = reader.thinker.lm_head(hidden)
    for row, theirs in enumerate(alone):
        ours = logits[row, : len(theirs)]
        torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-3)


def picture(size: tuple[int, int]) -> Picture:
    """One of this height and width."""
    pick = random.Random(0)
    made = scene(pick)
    return Picture(draw(made, size[0], pick, size[1]), labels(made))


def _alone(thinker: Any, one: Sample) -> torch.Tensor:
    """Logits [n, vocabulary] of one sample by transformers' forward and processors' layout."""
    inputs: dict[str, Any] = {"input_ids": torch.from_numpy(one.ids)[None]}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    for seen in one.pictures:
        inputs["pixel_values"] = patches(torch.tensor(seen.pixels)[None])
        rows, columns = seen.cells
        inputs["image_grid_thw"] = torch.tensor([[1, 2 * rows, 2 * columns]])
    for heard in one.sounds:
        extractor = WhisperFeatureExtractor(feature_size=128)
        wave = heard.samples / 32768
        made = extractor(wave, sampling_rate=16_000, padding=False, return_tensors="pt")
        count = len(wave) // HOP
        inputs["input_features"] = made.input_features[..., :count].float()
        inputs["feature_attention_mask"] = torch.ones(1, count, dtype=torch.long)
    thinker.rope_deltas = None
    logits: torch.Tensor = thinker(**inputs).logits[0]
    return logits
