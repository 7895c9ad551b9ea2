"""Media that come before their requests, piece by piece."""

import numpy as np
import pytest

from omnistage.connectors.chunk import Tensor
from omnistage.stages.messages.to_stage import MediumPiece
from omnistage.stages.worker.requests.coming_media import ComingMedia


def tensor(*values: float) -> Tensor:
    return Tensor.from_numpy(np.array(values, np.float32))


def pixels(*values: int) -> Tensor:
    return Tensor.from_numpy(np.array(values, np.uint8))


@pytest.mark.parametrize("num_pieces", [1, 2, 3])
def test_a_sound_is_all_of_its_pieces(num_pieces: int) -> None:
    coming = ComingMedia()
    for number in range(num_pieces):
        about = {"rate_hz": 16_000} if number == 0 else None
        coming.add("r", MediumPiece("a", "sound", about), tensor(number, number + 0.5))
    ((key, sound),) = coming.take("r").items()
    assert key == ("a", "sound")
    assert sound.about == {"rate_hz": 16_000}
    assert sound.data().tolist() == [n + half for n in range(num_pieces) for half in (0, 0.5)]
    assert len(coming) == 0


def test_frames_are_put_together_wherever_they_are_cut() -> None:
    coming = ComingMedia()
    about = {"shape": [2, 1, 2, 3], "metadata": {"fps": 4.0}}
    coming.add("r", MediumPiece("a", "frames", about), pixels(0, 1, 2, 3, 4))
    coming.add("r", MediumPiece("a", "frames"), pixels(5, 6, 7, 8, 9, 10, 11))
    (frames,) = coming.take("r").values()
    assert frames.data().dtype == np.uint8
    assert np.array_equal(frames.data(), np.arange(12).reshape(2, 1, 2, 3))


def test_media_are_their_request_s_and_a_heard_video_is_two() -> None:
    coming = ComingMedia()
    coming.add("r", MediumPiece("a", "frames", {"shape": [1, 1, 1, 3]}), pixels(1, 2, 3))
    coming.add("r", MediumPiece("a", "sound", {"rate_hz": 1}), tensor(1))
    coming.add("other", MediumPiece("a", "sound", {"rate_hz": 2}), tensor(2))
    assert len(coming) == 2
    assert list(coming.take("r")) == [("a", "frames"), ("a", "sound")]
    assert coming.take("r") == {}
    assert list(coming.take("other")) == [("a", "sound")]
