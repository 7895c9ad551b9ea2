"""The audio that a stage sent, and how near it is to a bare call's."""

import numpy as np
import numpy.typing as npt
from support.stages.stage_outputs import Outputs

from omnistage.stages.messages.to_gateway import Sound

SAMPLE = 1e-4  # of samples from -1 to 1


def pcm_of(outputs: Outputs, request_id: str) -> npt.NDArray[np.int16]:
    """All samples of a request."""
    sent = [one for one in outputs.chunks[request_id] if isinstance(one.message, Sound)]
    assert [one.last for one in sent] == [False] * (len(sent) - 1) + [True]
    return np.concatenate([one.tensors["pcm"].numpy() for one in sent])


def check(pcm: npt.NDArray[np.int16], bare: npt.NDArray[np.float32]) -> None:
    """Compare samples [n] or [n, 2] with a bare call's [channels, n]."""
    wanted = bare.clip(-1, 1).T
    assert pcm.reshape(len(pcm), -1).shape == wanted.shape
    assert np.abs(wanted).max() > 0.01, "the bare call is not silent"
    assert np.abs(pcm.reshape(wanted.shape) / 32767 - wanted).max() < SAMPLE
