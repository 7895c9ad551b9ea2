"""The audio VAE's decoder: the package's samples, in pieces of any size, whoever decodes beside."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from references.voxcpm2_talks import SAMPLES_A_PATCH, STRIDE, TALKS, Talk, key

from omnistage.stages.vocoder.decoder import StreamPiece
from omnistage.stages.vocoder.slots import Slot
from omnistage.stages.voxcpm2.vocoder import StreamingVae

CPU = torch.device("cpu")
TOLERANCE = 5e-5  # of samples up to 1
WITHOUT_SOUND = [talk for talk in TALKS if talk.sound_text is None]  # nothing goes ahead
Spoken = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def vae(voxcpm2_checkpoint: Path) -> StreamingVae:
    return StreamingVae.from_checkpoint(str(voxcpm2_checkpoint), CPU, torch.float32, 4)


def patches(spoken: Spoken, talk: Talk) -> npt.NDArray[np.float32]:
    return np.asarray(spoken[key(talk, "latents")].numpy(), np.float32)


def decode(
    vae: StreamingVae, slots: list[Slot], batch: list[npt.NDArray[np.float32]]
) -> torch.Tensor:
    pieces = [StreamPiece(slot, own) for slot, own in zip(slots, batch, strict=True)]
    pcm: torch.Tensor = vae.decode(pieces).pcm
    for piece in pieces:
        vae.advance(piece)
    return pcm


def whole(vae: StreamingVae, frames: npt.NDArray[np.float32]) -> torch.Tensor:
    slot = vae.open()
    samples = decode(vae, [slot], [frames])
    vae.close(slot)
    return samples[0]


@pytest.mark.parametrize("talk", WITHOUT_SOUND, ids=lambda talk: talk.name)
def test_samples_equal_the_package(vae: StreamingVae, talk: Talk, voxcpm2_spoken: Spoken) -> None:
    frames = patches(voxcpm2_spoken, talk)
    samples = whole(vae, frames)
    assert samples.shape == (len(frames) * SAMPLES_A_PATCH,)
    expected = voxcpm2_spoken[key(talk, "samples")]
    assert (samples[::STRIDE] - expected).abs().max() < TOLERANCE
    assert expected.std() > 0.1


@pytest.mark.parametrize("size", [1, 2, 5])
def test_pieces_together_equal_the_whole(
    vae: StreamingVae, size: int, voxcpm2_spoken: Spoken
) -> None:
    frames = patches(voxcpm2_spoken, WITHOUT_SOUND[2])
    slot = vae.open()
    parts = [
        decode(vae, [slot], [frames[start : start + size]])[0]
        for start in range(0, len(frames), size)
    ]
    vae.close(slot)
    assert [len(part) for part in parts][:1] == [size * SAMPLES_A_PATCH]
    assert (torch.cat(parts) - whole(vae, frames)).abs().max() < TOLERANCE


def test_streams_in_one_batch_do_not_hear_each_other(
    vae: StreamingVae, voxcpm2_spoken: Spoken
) -> None:
    some = [patches(voxcpm2_spoken, talk)[:4] for talk in WITHOUT_SOUND[:3]]
    slots = [vae.open() for _ in some]
    first = decode(vae, slots, [one[:1] for one in some])
    rest = decode(vae, slots, [one[1:] for one in some])
    for slot in slots:
        vae.close(slot)
    for own, *parts in zip(some, first, rest, strict=True):
        assert (torch.cat(parts) - whole(vae, own)).abs().max() < TOLERANCE


def test_a_decode_can_be_done_again(vae: StreamingVae, voxcpm2_spoken: Spoken) -> None:
    """Whatever a decode wrote, a stream that has not advanced is where it was."""
    frames = patches(voxcpm2_spoken, WITHOUT_SOUND[0])
    slot = vae.open()
    decode(vae, [slot], [frames[:2]])
    piece = StreamPiece(slot, frames[2:4])
    once = vae.decode([piece]).pcm
    vae.decode([StreamPiece(slot, np.zeros_like(frames[2:4]))])
    assert torch.equal(once, vae.decode([piece]).pcm)
    vae.close(slot)


@pytest.mark.parametrize(
    ("frames", "message"),
    [
        (np.zeros((2, 4, 15), np.float32), r"latents of shape \(2, 4, 15\), expected \[n, 4, 16\]"),
        (np.zeros((2, 64), np.float32), r"latents of shape \(2, 64\)"),
        (np.full((1, 4, 16), np.nan, np.float32), "a latent is not finite"),
        (np.full((1, 4, 16), -np.inf, np.float32), "a latent is not finite"),
    ],
)
def test_what_is_no_patch_is_refused(
    vae: StreamingVae, frames: npt.NDArray[np.float32], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        vae.check(frames)


def test_random_weights_need_only_the_config(voxcpm2_checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((voxcpm2_checkpoint / "config.json").read_bytes())
    made = StreamingVae.from_checkpoint(str(tmp_path), CPU, torch.bfloat16, 1, has_weights=False)
    samples = whole(made, np.ones((2, 4, 16), np.float32))
    assert samples.isfinite().all()
    assert 0 < samples.abs().max() < 1


def test_its_memory_is_told_before_it_is_taken(vae: StreamingVae, voxcpm2_checkpoint: Path) -> None:
    told = StreamingVae.memory(str(voxcpm2_checkpoint), torch.float32, 4)
    assert told == {
        "weights": sum(one.nbytes for one in vae.model.parameters()),
        "slots": 4 * vae.slots.bytes_each,
    }


def test_a_codec_of_another_kind_is_refused(voxcpm2_checkpoint: Path, tmp_path: Path) -> None:
    config = (voxcpm2_checkpoint / "config.json").read_text()
    for old, new, name in (
        ('"use_noise_block": false', '"use_noise_block": true', "use_noise_block"),
        ('"scale_bias"', '"concat"', "cond_type 'concat'"),
        ('"voxcpm2"', '"voxcpm"', "architecture 'voxcpm'"),
    ):
        assert old in config
        (tmp_path / "config.json").write_text(config.replace(old, new))
        with pytest.raises(ValueError, match=name):
            StreamingVae.from_checkpoint(str(tmp_path), CPU, torch.float32, 1, has_weights=False)
