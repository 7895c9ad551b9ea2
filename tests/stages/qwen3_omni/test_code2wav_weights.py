"""code2wav asleep and awake, and with other weights: its samples, and what of it is where."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.vocoder.checkpoint_vocoder import CheckpointWeights
from omnistage.stages.vocoder.code_decoder import Codec
from omnistage.stages.vocoder.control import TAGS, DecoderControl
from omnistage.stages.vocoder.start import DecoderOptions
from omnistage.stages.vocoder.streams import DecodedAudio
from omnistage.stages.worker.failure import RequestError

SAMPLES_A_FRAME = 1920


class Made:
    """The stage's engine over a checkpoint, and its control."""

    def __init__(self, folder: Path, **more: Any) -> None:
        options = DecoderOptions(num_slots=2, device="cpu", **more)
        self.engine = StreamingVocoder.engine(str(folder), "code2wav", options)
        self.control = DecoderControl(
            self.engine, CheckpointWeights(StreamingVocoder, str(folder), options)
        )

    @property
    def vocoder(self) -> StreamingVocoder:
        """The engine's."""
        assert isinstance(self.engine.decoder, StreamingVocoder)
        return self.engine.decoder

    def samples(self) -> npt.NDArray[np.int16]:
        """Of a few frames, always the same, in two chunks."""
        codec = self.vocoder.codec
        assert isinstance(codec, Codec)
        shape = (6, codec.num_codebooks)
        codes = np.random.default_rng(1).integers(0, codec.codebook_size, shape, np.int32)
        self.engine.open("one")
        parts = []
        for part, last in ((codes[:2], False), (codes[2:], True)):
            self.engine.push("one", part, last)
            (answer,) = self.engine.step()
            assert isinstance(answer, DecodedAudio)
            parts.append(answer.pcm)
        return np.concatenate(parts)

    def obey(self, command: str, **arguments: Any) -> list[str]:
        """What sleeps then."""
        asleep: list[str] = self.control.obey(command, arguments)["asleep"]
        return asleep


@pytest.fixture
def made(tiny_checkpoint: Path) -> Made:
    return Made(tiny_checkpoint)


def num_stored(made: Made) -> int:
    """Bytes of weights and states that the engine's vocoder holds."""
    parts = [*made.vocoder.model.parameters(), made.vocoder.slots.rows]
    return sum(part.nbytes for part in parts if not part.is_meta)


@pytest.mark.parametrize("level", [1, 2])
def test_one_that_slept_makes_the_same_samples(level: int, made: Made) -> None:
    before, stored = made.samples(), num_stored(made)
    assert len(before) > 5 * SAMPLES_A_FRAME
    assert before.any()
    assert made.obey("sleep", level=level, tags=None) == list(TAGS)
    assert stored > 0
    assert num_stored(made) == 0
    assert (made.control._model is None) == (level == 2)
    assert made.obey("wake", tags=["kv_cache"]) == ["weights"]
    assert num_stored(made) == 0
    assert made.obey("wake", tags=["weights"]) == []
    assert num_stored(made) == stored
    assert (made.samples() == before).all()


def test_dummy_weights_come_back_from_level_2(tiny_checkpoint: Path) -> None:
    made = Made(tiny_checkpoint, load_format="dummy")
    before = made.samples()
    made.obey("sleep", level=2, tags=None)
    made.obey("wake", tags=None)
    assert (made.samples() == before).all()


def test_other_weights_make_the_samples_of_their_checkpoint(
    made: Made, tiny_checkpoints: Callable[[int], Path]
) -> None:
    own, other = made.samples(), Made(tiny_checkpoints(1)).samples()
    assert not np.array_equal(own, other)
    made.obey("load_weights", path=str(tiny_checkpoints(1)))
    assert (made.samples() == other).all()
    made.obey("sleep", level=2, tags=None)
    made.obey("wake", tags=None)
    assert (made.samples() == other).all()
    made.obey("sleep", level=2, tags=None)
    made.obey("wake", tags=["weights"])
    assert made.obey("load_weights", path=str(tiny_checkpoints(0))) == ["kv_cache"]
    made.obey("wake", tags=None)
    assert (made.samples() == own).all()
    made.obey("load_weights", path=None)
    assert (made.samples() == own).all()


@pytest.mark.parametrize(
    ("command", "arguments", "param"),
    [
        ("sleep", {"level": 1, "tags": ["weights"]}, "tags"),
        ("wake", {"tags": ["vae"]}, "tags"),
        ("load_weights", {"path": "/none"}, "path"),
        ("load_weights", {"path": "/"}, "path"),
    ],
)
def test_what_is_wrong_is_named_and_changes_nothing(
    command: str, arguments: dict[str, Any], param: str, made: Made
) -> None:
    before = made.samples()
    with pytest.raises(RequestError) as caught:
        made.obey(command, **arguments)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert (made.samples() == before).all()


def test_weights_whose_folder_is_gone_are_not_dropped(
    made: Made, tiny_checkpoints: Callable[[int], Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_checkpoints(1), other)
    made.obey("load_weights", path=str(other))
    shutil.rmtree(other)
    before = made.samples()
    with pytest.raises(RequestError, match="is gone"):
        made.obey("sleep", level=2, tags=None)
    made.obey("sleep", level=1, tags=None)
    made.obey("wake", tags=None)
    assert (made.samples() == before).all()


def test_nothing_is_done_while_a_request_is_there_or_it_sleeps(
    made: Made, tiny_checkpoint: Path
) -> None:
    made.engine.open("other")
    with pytest.raises(RequestError) as caught:
        made.obey("sleep", level=1, tags=None)
    assert caught.value.code == "busy"
    made.engine.cancel("other")
    made.obey("sleep", level=1, tags=None)
    with pytest.raises(RequestError) as caught:
        made.obey("load_weights", path=str(tiny_checkpoint))
    assert caught.value.code == "sleeping"
