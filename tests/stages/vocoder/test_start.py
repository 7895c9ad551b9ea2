"""A streaming decoder's options, and whether it fits."""

import pytest
import torch

from omnistage.stages.device.start import DoesNotFit
from omnistage.stages.vocoder import start as starting
from omnistage.stages.vocoder.start import DecoderOptions


@pytest.mark.parametrize(
    "wrong", [{"dtype": "float"}, {"load_format": "x"}, {"num_slots": 0}, {"max_batch": 0}]
)
def test_wrong_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DecoderOptions(**wrong)  # type: ignore[arg-type]


def test_it_computes_where_its_slots_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "free_bytes", lambda device: 1000)

    def memory(dtype: torch.dtype, num_slots: int) -> dict[str, int]:
        return {"weights": 400, "slots": num_slots * dtype.itemsize * 50}

    options = DecoderOptions(num_slots=3, device="cpu")
    assert options.fitting_device("singer", memory) == torch.device("cpu")
    assert options.has_weights
    with pytest.raises(DoesNotFit, match=r"stage singer does not fit on cpu: .* lower num_slots"):
        DecoderOptions(num_slots=4, device="cpu").fitting_device("singer", memory)
    half = DecoderOptions(num_slots=6, device="cpu", dtype="bfloat16", load_format="dummy")
    assert half.fitting_device("singer", memory) == torch.device("cpu")
    assert not half.has_weights
