"""How many frames of a video a model gets, as transformers' processor samples them."""

from itertools import product

import pytest
from transformers import Qwen2VLVideoProcessor
from transformers.video_utils import VideoMetadata

from omnistage.server.media.watching import Watching


@pytest.mark.parametrize("total", [2, 5, 24, 451, 9000])
def test_a_video_has_so_many_frames_as_the_processor_samples(total: int) -> None:
    processor = Qwen2VLVideoProcessor()
    for rate, fps, (least, most) in product(
        (4.0, 29.97), (0.5, 2.0, 30.0), ((4, 768), (2, 10), (40, 41))
    ):
        metadata = VideoMetadata(total_num_frames=total, fps=rate)
        sampled = processor.sample_frames(metadata, fps=fps, min_frames=least, max_frames=most)
        counted = Watching(fps, least, most).num_frames(total, rate)
        assert counted // 2 * 2 <= len(sampled) <= counted + 1  # frames go in pairs


def test_a_video_of_unknown_rate_may_be_seen_whole() -> None:
    assert Watching().num_frames(100, 0) == 100
