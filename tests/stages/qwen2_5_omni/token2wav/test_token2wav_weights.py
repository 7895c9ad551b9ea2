"""token2wav read from a checkpoint, asleep and awake, and what it takes."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors import safe_open
from support.models.token2wav import asked, speak
from transformers import Qwen2_5OmniForConditionalGeneration

from omnistage.stages.device.start import DoesNotFit
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen2_5_omni.token2wav.token2wav import Token2Wav
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_options import Token2WavOptions
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_stage import make_engine
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_voices import name_of
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_weights import (
    Token2WavWeights,
    load_speakers,
    load_token2wav,
    memory,
)
from omnistage.stages.vocoder import start as starting
from omnistage.stages.vocoder.control import TAGS, DecoderControl
from omnistage.stages.vocoder.start import DecoderOptions
from omnistage.stages.vocoder.streams import DecodedAudio

CPU = torch.device("cpu")
CODES = np.random.default_rng(0).integers(0, 96, (14, 1), np.int32)
WHOLE = Token2WavOptions.of({"chunk": "whole"})


class Made:
    """The stage's engine over a checkpoint, and its control."""

    def __init__(self, folder: Path, **more: Any) -> None:
        options = DecoderOptions(num_slots=2, device="cpu", **more)
        self.engine = make_engine(str(folder), "token2wav", options, WHOLE)
        self.control = DecoderControl(self.engine, Token2WavWeights(str(folder), options, WHOLE))

    @property
    def decoder(self) -> Token2Wav:
        assert isinstance(self.engine.decoder, Token2Wav)
        return self.engine.decoder

    def samples(self) -> npt.NDArray[np.int16]:
        self.engine.open("one", request=Request(None, [], seed=1, speaker="Ethan"))
        self.engine.push("one", CODES, last=True)
        (answer,) = self.engine.step()
        assert isinstance(answer, DecodedAudio)
        return answer.pcm

    def obey(self, command: str, **arguments: Any) -> Any:
        return self.control.obey(command, arguments)["asleep"]


def test_its_samples_are_those_of_the_whole_model(tiny_qwen2_5_omni: Path) -> None:
    folder = tiny_qwen2_5_omni
    model: Any = Qwen2_5OmniForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    voice = torch.load(folder / "spk_dict.pt", weights_only=True)["Ethan"]
    codes = torch.from_numpy(CODES.T).long()
    torch.manual_seed(1)
    expected = model.token2wav(codes, voice["cond"], voice["ref_mel"]).detach().numpy()
    assert np.abs(expected).max() > 0.1
    assert np.abs(Made(folder).samples() - 32767 * expected).max() < 1


def test_no_tensor_of_the_other_stages_is_read(
    tiny_qwen2_5_omni: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    class Watched:
        def __init__(self, *args: Any, **named: Any) -> None:
            self._file: Any = safe_open(*args, **named)

        def __enter__(self) -> "Watched":
            self._file.__enter__()
            return self

        def __exit__(self, *args: Any) -> None:
            self._file.__exit__(*args)

        def keys(self) -> Any:
            return self._file.keys()

        def get_tensor(self, name: str) -> Any:
            read.append(name)
            return self._file.get_tensor(name)

    monkeypatch.setattr("omnistage.stages.vocoder.checkpoint.safe_open", Watched)
    model: Any = load_token2wav(str(tiny_qwen2_5_omni), CPU, torch.float32)
    assert sorted(read) == sorted(f"token2wav.{name}" for name, _ in model.named_parameters())


def test_only_matrices_of_the_layers_are_of_another_dtype(tiny_qwen2_5_omni: Path) -> None:
    model: Any = load_token2wav(str(tiny_qwen2_5_omni), CPU, torch.bfloat16)
    low = {name for name, one in model.named_parameters() if one.dtype == torch.bfloat16}
    layers = "code2wav_dit_model.transformer_blocks."
    assert low == {
        name
        for name, _ in model.named_parameters()
        if name.startswith(layers) and (".attn." in name or ".ff." in name)
    }
    exact = Made(tiny_qwen2_5_omni).samples().astype(float)
    error = np.abs(Made(tiny_qwen2_5_omni, dtype="bfloat16").samples() - exact)
    assert 0 < np.sqrt((error**2).mean()) < 0.1 * exact.std()


def test_memory_is_what_it_takes(tiny_qwen2_5_omni: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Token2WavOptions()
    wanted = memory(str(tiny_qwen2_5_omni), options, torch.float32, 3)
    made = Made(tiny_qwen2_5_omni)
    model: Any = made.decoder.model
    weights = sum(one.nbytes for one in model.parameters())
    assert wanted["weights"] == weights + made.decoder.dit.table_bytes
    blocks = 2 * 2 * 36 + 4 * (6 + 1)
    assert wanted["slots"] == 3 * blocks * 24 * 80 * 4
    monkeypatch.setattr(starting, "free_bytes", lambda device: 1000)
    with pytest.raises(DoesNotFit, match="stage token2wav does not fit"):
        Made(tiny_qwen2_5_omni)


def test_dummy_weights_come_back_and_are_not_clipped(tiny_qwen2_5_omni: Path) -> None:
    """Of this narrow model they are next to silence."""
    made = Made(tiny_qwen2_5_omni, load_format="dummy")
    samples = speak(made.decoder, CODES, asked(1))
    assert samples.std() > 0
    assert samples.abs().max() < 1
    made.obey("sleep", level=2, tags=None)
    made.obey("wake", tags=None)
    assert torch.equal(speak(made.decoder, CODES, asked(1)), samples)


@pytest.mark.parametrize("level", [1, 2])
def test_one_that_slept_makes_the_same_samples(level: int, tiny_qwen2_5_omni: Path) -> None:
    made = Made(tiny_qwen2_5_omni)
    before = made.samples()
    assert made.obey("sleep", level=level, tags=None) == [*TAGS]
    assert made.decoder.device.type == "meta"
    assert made.obey("wake", tags=None) == []
    assert (made.samples() == before).all()


def test_a_checkpoint_without_speakers_or_of_another_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="has no token2wav_config"):
        load_token2wav(str(tmp_path), CPU, torch.float32)
    with pytest.raises(FileNotFoundError, match="nobody to speak as"):
        load_speakers(str(tmp_path))


def test_a_speaker_is_known_in_any_case_and_nobody_is_the_first() -> None:
    names = ("Ethan", "Chelsie")
    assert [name_of(name, names) for name in ("ethan", "CHELSIE", None)] == (
        ["Ethan", "Chelsie", "Chelsie"]
    )
    with pytest.raises(ValueError, match="unknown voice 'bob'; allowed: Chelsie, Ethan"):
        name_of("bob", names)


@pytest.mark.parametrize(
    "options",
    [{"ahead": -1}, {"chunk": []}, {"chunk": [0]}, {"chunk": "most"}, {"heads": 2}],
    ids=str,
)
def test_options_that_it_does_not_know_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="options of token2wav"):
        Token2WavOptions.of(options)
