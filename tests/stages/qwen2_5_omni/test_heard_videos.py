"""Videos that are heard: tokens and positions of a prompt against what transformers makes of it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoProcessor
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniTalkerForConditionalGeneration,
)
from vllm.config import ModelConfig
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.processing import ProcessorInputs, TimingContext

from omnistage.stages.qwen2_5_omni.heard_videos import heard_tokens, num_sound_tokens
from omnistage.stages.qwen2_5_omni.positions import prompt_positions
from omnistage.stages.qwen2_5_omni.thinker_model import Qwen2_5OmniThinker, thinker_config
from omnistage.stages.vllm.models.grids import video_ids
from omnistage.stages.vllm.plugin import register

SIZES = [(1, 4, 4), (3, 4, 8), (12, 8, 4), (60, 4, 4)]
MEL_FRAMES = [4, 50, 200, 803, 2000]
# Pairs of frames that are close together, as far apart as a chunk is long, and further.
RATES = [0.1, 0.4, 0.5, 1.0, 2.0, 3.0, 7.0, 25.0, 30.0]


@pytest.fixture(scope="module")
def processor(tiny_qwen2_5_omni: Path) -> Any:
    return AutoProcessor.from_pretrained(tiny_qwen2_5_omni)


@pytest.fixture(scope="module")
def config(tiny_qwen2_5_omni: Path) -> Any:
    return AutoConfig.from_pretrained(tiny_qwen2_5_omni)


@pytest.fixture(scope="module")
def reference(config: Any) -> Any:
    """Its positions depend on no weight."""
    with torch.device("meta"):
        return Qwen2_5OmniTalkerForConditionalGeneration(config.talker_config)


def expected_tokens(
    processor: Any, size: tuple[int, int, int], mel_frames: int, fps: float
) -> list[int]:
    """What the reference's processor puts between the tokens of pictures."""
    opening, closing = processor.vision_bos_token, processor.vision_eos_token
    (text,) = processor.replace_multimodal_special_tokens(
        [opening + processor.video_token + closing],
        iter([num_sound_tokens(mel_frames)]),
        iter([]),
        iter([torch.tensor(size)]),
        video_second_per_grid=iter([2 / fps]),
        use_audio_in_video=True,
        position_id_per_seconds=25,
        seconds_per_chunk=2.0,
    )
    ids: list[int] = processor.tokenizer(text)["input_ids"]
    return ids[1:-1]


@pytest.mark.parametrize("fps", RATES)
@pytest.mark.parametrize("mel_frames", MEL_FRAMES)
def test_tokens_of_a_video_and_its_sound_alternate_as_the_references(
    mel_frames: int, fps: float, processor: Any, config: Any
) -> None:
    for size in SIZES:
        made = heard_tokens(config.thinker_config, size, 2 / fps, num_sound_tokens(mel_frames))
        assert made == expected_tokens(processor, size, mel_frames, fps)


class Prompts:
    """vLLM's processor with our part, as an engine's front has it, and its cache."""

    def __init__(self, folder: Path) -> None:
        lru = pytest.importorskip("vllm.multimodal.cache.lru")  # older ones keep it elsewhere
        register()
        config = ModelConfig(str(folder), hf_overrides=thinker_config, dtype="float32")
        self._processor: Any = MULTIMODAL_REGISTRY.create_processor(config)
        self._cache = lru.LruKeyReplicatedSenderCache(config)

    def ids(
        self, prompt: list[int], frames: Any, sound: Any, options: dict[str, Any]
    ) -> tuple[list[int], bool]:
        """Of a prompt with one heard video, and whether it was taken from the cache."""
        every = list(range(len(frames)))
        about: dict[str, Any] = {
            "fps": 2.0,
            "duration": len(frames) / 2,
            "total_num_frames": len(frames),
        }
        about |= {"frames_indices": every, "do_sample_frames": False, "video_backend": "opencv"}
        media = {"video": [(frames, about)], "audio": [(sound, 16000)]}
        items = self._processor.info.parse_mm_data(media)
        kwargs = {"use_audio_in_video": True, **options}
        inputs = ProcessorInputs(prompt, items, hf_processor_mm_kwargs=kwargs, cache=self._cache)
        made = self._processor.apply(inputs, TimingContext(enabled=False))
        return made["prompt_token_ids"], made["mm_kwargs"]["video"] == [None]


def test_a_prompt_is_the_references_whatever_the_same_video_was_heard_with_before(
    tiny_qwen2_5_omni: Path, processor: Any
) -> None:
    prompts = Prompts(tiny_qwen2_5_omni)
    frames = np.random.default_rng(0).integers(0, 255, (8, 64, 64, 3), dtype=np.uint8)
    opening, closing = processor.vision_bos_token, processor.vision_eos_token
    text = f"a{opening}{processor.video_token}{closing}b"
    tokens: list[int] = processor.tokenizer(text)["input_ids"]
    rates: list[dict[str, Any]] = [{}, {"fps": 0.5}]
    cached = []
    for options in rates:
        for num_samples in (8000, 59840, 8000):
            sound = np.random.default_rng(num_samples).normal(size=num_samples)
            found, is_cached = prompts.ids(tokens, frames, sound.astype(np.float32), options)
            expected = processor(
                text=text, videos=[frames], audio=[sound], use_audio_in_video=True, **options
            )
            assert found == expected["input_ids"][0]
            cached.append(is_cached)
    assert cached == [False, False, True] * 2


def feature(modality: str, offset: int, **data: Any) -> Any:
    """A medium in the form in which vLLM's runner has it."""
    fields = {name: SimpleNamespace(data=torch.as_tensor(value)) for name, value in data.items()}
    where = SimpleNamespace(offset=offset)
    return SimpleNamespace(modality=modality, mm_position=where, data=fields)


@pytest.mark.parametrize("fps", [0.1, 0.5, 1.0, 2.0, 10.0])
@pytest.mark.parametrize("mel_frames", MEL_FRAMES)
def test_positions_of_thinker_and_talker_equal_the_reference(
    mel_frames: int, fps: float, config: Any, reference: Any
) -> None:
    """Two videos that are heard, and an image between them."""
    thinker = config.thinker_config
    start, end = thinker.vision_start_token_id, thinker.vision_end_token_id
    frames, seconds = [mel_frames, 120], 2 / fps
    for size in SIZES:
        heard = [heard_tokens(thinker, size, seconds, num_sound_tokens(n)) for n in frames]
        prompt = [5, 6, start, *heard[0], end, 7, start, *[thinker.image_token_index] * 6, end]
        prompt += [start, *heard[1], end, 8, 9, 5, 5]
        image_at = prompt.index(thinker.image_token_index)
        videos_at = [at for at, one in enumerate(prompt) if one == thinker.audio_start_token_id]
        video = {"video_grid_thw": size, "second_per_grid_ts": seconds, "use_audio_in_video": True}
        features = [feature("image", image_at, image_grid_thw=(1, 4, 6))]
        for at, num in zip(videos_at, frames, strict=True):
            sound = feature("audio", at, audio_feature_lengths=num)
            features += [feature("video", at, **video), sound]

        expected, delta = reference.get_rope_index(
            torch.tensor([prompt]),
            torch.tensor([[1, 4, 6]]),
            torch.tensor([size, size]),
            torch.ones(1, len(prompt), dtype=torch.long),
            True,
            torch.tensor(frames),
            torch.tensor([seconds, seconds]),
        )
        model = Qwen2_5OmniThinker.__new__(Qwen2_5OmniThinker)
        model.config = thinker
        positions, found_delta = model.get_mrope_input_positions(prompt, features)
        assert np.array_equal(positions.numpy(), expected[:, 0].long().numpy())
        assert found_delta == int(delta)


def test_what_is_not_heard_has_the_positions_of_other_media(config: Any) -> None:
    ids = video_ids(config.thinker_config)
    video = ids.grid([1, ids.patch, ids.patch, 2], 1, (2, 1, 1), 50.0)
    positions = prompt_positions(4, [video])
    assert positions[0].tolist() == [0, 1, 51, 52]
