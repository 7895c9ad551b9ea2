"""What `omnistage verify` asks of the package qwen-tts, which is not installed here."""

import base64
import io
import sys
import wave
from importlib import import_module, metadata
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from omnistage.stages.messages.to_reference import AskedQuestion, ReferenceJob, Task

GREEDY = {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": 41}
SAMPLES = np.array([0.5, -0.25], np.float32)


def wav_url(samples: list[int]) -> str:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16_000)
        file.writeframes(np.array(samples, "<i2").tobytes())
    return f"data:audio/wav;base64,{base64.b64encode(buffer.getvalue()).decode()}"


class Package:
    """Its model, of which the calls are kept."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}
        self.calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def from_pretrained(self, model: str, **options: Any) -> "Package":
        self.loaded = {"model": model, **options}
        return self

    def __getattr__(self, name: str) -> Any:
        def generate(*given: Any, **more: Any) -> tuple[list[Any], int]:
            self.calls.append((name, given, more))
            return [SAMPLES], 24_000

        return generate


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Package:
    made, version = Package(), metadata.version
    monkeypatch.setitem(sys.modules, "qwen_tts", SimpleNamespace(Qwen3TTSModel=made))
    monkeypatch.delitem(sys.modules, "omnistage.stages.qwen3_tts.reference", raising=False)
    monkeypatch.setattr(
        metadata, "version", lambda name: "0.1.1" if name == "qwen-tts" else version(name)
    )
    return made


@pytest.mark.parametrize(
    ("fields", "name", "given"),
    [
        ({"voice": "ryan"}, "generate_custom_voice", ("Hello", "ryan")),
        ({"instructions": "Calm."}, "generate_voice_design", ("Hello", "Calm.")),
        ({"ref_audio": wav_url([16384, -8192])}, "generate_voice_clone", ("Hello",)),
    ],
)
def test_the_package_speaks_greedily_as_the_model_is_asked(
    fields: dict[str, Any], name: str, given: tuple[str, ...], package: Package
) -> None:
    reference = import_module("omnistage.stages.qwen3_tts.reference")
    stages = {"talker": {"temperature": 0, "max_tokens": 40}}
    asked = AskedQuestion(Task.SPEECH, {"input": "Hello", "stage_params": stages, **fields})
    outcome = reference.verify(ReferenceJob("", "folder", "float32", [asked]))
    assert outcome.found[0].samples == SAMPLES.tobytes()
    assert (outcome.dtype, outcome.versions["qwen-tts"]) == ("float32", "0.1.1")
    assert package.loaded["model"] == "folder"
    ((called, arguments, options),) = package.calls
    assert (called, arguments) == (name, given)
    assert GREEDY.items() <= options.items()
    if "ref_audio" in fields:
        sound, rate = options["ref_audio"]
        assert (sound.tolist(), rate) == ([0.5, -0.25], 16_000)
        assert options["x_vector_only_mode"]
