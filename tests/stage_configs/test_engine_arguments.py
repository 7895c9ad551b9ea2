"""The names of engine arguments that the gateway knows are those that the stages take."""

import subprocess
import sys
from dataclasses import fields

import pytest

from omnistage.stage_configs import engine_arguments
from omnistage.stage_configs.engine_arguments import is_switch, vllm_arguments


def test_a_diffusion_stage_takes_those_that_are_known() -> None:
    from omnistage.stages.diffusion.stage import OPTIONS

    assert engine_arguments.engine_arguments("diffusers") == OPTIONS


def test_code2wav_takes_those_that_are_known() -> None:
    from omnistage.stages.vocoder.start import DecoderOptions

    taken = {field.name for field in fields(DecoderOptions)}
    assert engine_arguments.engine_arguments("qwen3_omni.code2wav") == taken


def test_those_of_vllm_are_read_without_importing_it() -> None:
    program = (
        "import sys\n"
        "from omnistage.stage_configs.engine_arguments import engine_arguments\n"
        "print('max_model_len' in engine_arguments('vllm.text'), 'vllm' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"]


def test_switches_are_told_from_what_has_a_value() -> None:
    assert is_switch("enforce_eager")
    assert not is_switch("max_model_len")
    assert not is_switch("none of vLLM's")


def test_without_vllm_none_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    engine_arguments._vllm_types.cache_clear()
    monkeypatch.setattr(engine_arguments, "find_spec", lambda name: None)
    assert vllm_arguments() == frozenset()
    engine_arguments._vllm_types.cache_clear()
