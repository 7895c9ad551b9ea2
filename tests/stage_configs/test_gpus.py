"""The GPUs of a stage."""

import pytest

from omnistage.stage_configs.gpus import gpu_environment, visible_gpus


def test_a_stage_sees_its_gpus_among_those_that_the_server_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6,GPU-8f,")
    assert visible_gpus() == ["4", "6", "GPU-8f"]
    assert gpu_environment((2, 0)) == {"CUDA_VISIBLE_DEVICES": "GPU-8f,4"}


def test_a_stage_that_names_none_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_environment(()) == {}


def test_no_gpu_may_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []
