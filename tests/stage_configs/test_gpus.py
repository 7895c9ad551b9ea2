"""The GPUs of a stage."""

from types import SimpleNamespace

import pynvml
import pytest

from omnistage.stage_configs.gpus import gpu_environment, memory_bytes, visible_gpus


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


@pytest.mark.parametrize(("visible", "size"), [("1,0", 141), ("GPU-8f", 80), ("7", None)])
def test_the_memory_is_that_of_the_first_visible_gpu(
    visible: str, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {0: 24, 1: 141, "GPU-8f": 80}

    def handle(name: int | str) -> int | str:
        if name not in sizes:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return name

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", handle)
    about = {name: SimpleNamespace(total=number) for name, number in sizes.items()}
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", about.get)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert memory_bytes() == size


def test_the_memory_is_not_known_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", none)
    assert memory_bytes() is None
