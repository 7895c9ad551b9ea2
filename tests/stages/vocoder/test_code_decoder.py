"""What decoders of codec frames share: slots, retries, and which frames they take."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.models.toy_decoders import RunningSum, codes_of

from omnistage.stages.vocoder.decoder import StreamPiece


def test_a_decode_that_nobody_goes_on_from_has_changed_nothing() -> None:
    decoder = RunningSum(2)
    slots = [decoder.open(), decoder.open()]
    for seed in range(3):
        pieces = [StreamPiece(slot, codes_of(4, seed + index)) for index, slot in enumerate(slots)]
        decoder.decode([StreamPiece(slot, codes_of(4, 9)) for slot in slots])
        once = decoder.decode(pieces)
        again = decoder.decode(pieces)
        assert torch.equal(once.pcm, again.pcm)
        assert once.heard == again.heard == [slice(0 if seed else 1, None)] * 2
        for piece in pieces:
            decoder.advance(piece)


def test_a_reused_slot_starts_fresh() -> None:
    decoder = RunningSum(1)
    fresh = []
    for _ in range(3):
        slot = decoder.open()
        assert decoder.num_free == 0
        pcm = []
        for frames in (codes_of(3, 1), codes_of(2, 2)):
            piece = StreamPiece(slot, frames)
            pcm.append(decoder.decode([piece]).pcm)
            decoder.advance(piece)
        fresh.append(torch.cat(pcm, 1))
        decoder.close(slot)
    assert torch.equal(fresh[0], fresh[1])
    assert torch.equal(fresh[0], fresh[2])


def test_rows_of_a_batch_are_those_of_streams_alone() -> None:
    together, alone = RunningSum(4), RunningSum(4)
    slots = [together.open() for _ in range(4)]
    batch = together.decode(
        [StreamPiece(slot, codes_of(5, seed)) for seed, slot in enumerate(slots)]
    )
    for seed in range(4):
        one = alone.decode([StreamPiece(alone.open(), codes_of(5, seed))])
        assert torch.equal(batch.pcm[seed], one.pcm[0])


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.zeros((2, 3), np.int32), r"expected \[n, 2\]"),
        (np.full((1, 2), 100, np.int32), "0..99"),
        (np.full((1, 2), -1, np.int32), "0..99"),
    ],
)
def test_wrong_codes_are_refused(codes: npt.NDArray[np.int32], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunningSum(1).check(codes)
