"""The frames of a video that a model gets, as transformers' and vLLM's processors choose them."""

from itertools import product

import numpy as np
import pytest
from transformers import Qwen2VLVideoProcessor, Qwen3VLVideoProcessor
from transformers.video_utils import VideoMetadata
from vllm.multimodal.video import VIDEO_LOADER_REGISTRY
from vllm.multimodal.video_decoders import VideoSourceMetadata, VideoTargetMetadata

from omnistage.server.media.video.watching import MAX_FRAMES, FrameChooser, Watching
from omnistage.stages.messages.to_gateway import Sampler

RATES = (4.0, 24.0, 25.0, 29.97, 30_000 / 1001, 60.0)
ASKED = list(product((0.5, 1.0, 2.0, 3.3, 30.0), ((4, MAX_FRAMES), (2, 10), (40, 41))))


@pytest.mark.parametrize("total", [2, 3, 5, 24, 100, 451, 1800, 9000])
@pytest.mark.parametrize("rate", RATES)
def test_frames_are_those_of_transformers_processors(total: int, rate: float) -> None:
    two, three = Qwen2VLVideoProcessor(), Qwen3VLVideoProcessor()
    for fps, (least, most) in ASKED:
        metadata = VideoMetadata(total_num_frames=total, fps=rate)
        watching = Watching(fps, least, most)
        wanted = two.sample_frames(metadata, fps=fps, min_frames=least, max_frames=most)
        ours = FrameChooser("qwen2_vl", {}).indices(total, rate, watching)
        assert ours.tolist() == wanted.clamp(max=total - 1).tolist()
        three.min_frames, three.max_frames = least, most
        ours = FrameChooser("qwen3_vl", {}).indices(total, rate, watching)
        assert ours.tolist() == three.sample_frames(metadata, fps=fps).tolist()


@pytest.mark.parametrize("sampler", ["qwen2_vl", "qwen3_vl", "uniform"])
@pytest.mark.parametrize("total", [2, 5, 24, 451])
def test_frames_are_those_of_vllm_s_loaders(sampler: Sampler, total: int) -> None:
    loader = VIDEO_LOADER_REGISTRY.load("opencv" if sampler == "uniform" else sampler)
    for rate, (fps, (least, most)), count in product(RATES, ASKED, (-1, 8, 32)):
        source = VideoSourceMetadata(total, rate, total / rate)
        options = {"fps": fps, "num_frames": count}
        wanted = loader.compute_frames_index_to_sample(
            source, VideoTargetMetadata(count, fps, 300), min_frames=least, max_frames=most
        )
        ours = FrameChooser(sampler, options).indices(total, rate, Watching(fps, least, most))
        assert ours.tolist() == wanted


def test_a_model_without_a_sampler_of_its_own_sees_32_frames_unless_its_operator_says() -> None:
    even = np.linspace(0, 99, 32, dtype=int)
    assert FrameChooser("uniform", {}).indices(100, 25.0, Watching()).tolist() == even.tolist()
    assert len(FrameChooser("uniform", {"num_frames": 6}).indices(100, 25.0, Watching())) == 6
    assert len(FrameChooser("uniform", {"fps": 2}).indices(100, 25.0, Watching())) == 8
