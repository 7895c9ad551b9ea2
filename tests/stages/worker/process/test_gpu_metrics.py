"""What a driver says of GPUs; the driver is a fake."""

from types import SimpleNamespace

import pynvml
import pytest
from support.repository.metrics_docs import documented, exposed, families_in, rendered

from omnistage.stages.worker.process.gpu_metrics import GpuMetrics

IDENTIFIER = "GPU-1b2c"


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two GPUs; the second is a slice that does not tell its use."""

    def rates(handle: str) -> SimpleNamespace:
        if handle == "slice":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=25)

    fakes = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": {3: "whole"}.__getitem__,
        "nvmlDeviceGetHandleByUUID": {IDENTIFIER: "slice"}.__getitem__,
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(used=1 << 30, total=4 << 30),
        "nvmlDeviceGetUtilizationRates": rates,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(pynvml, name, fake)


def test_memory_and_use_of_each_gpu_by_cudas_name(driver: None) -> None:
    read = families_in(rendered(GpuMetrics(["3", IDENTIFIER])))
    values = {
        family.name: {one.labels["gpu"]: one.value for one in family.samples} for family in read
    }
    assert values == {
        "omnistage_gpu_memory_used_bytes": {"3": 1 << 30, IDENTIFIER: 1 << 30},
        "omnistage_gpu_memory_size_bytes": {"3": 4 << 30, IDENTIFIER: 4 << 30},
        "omnistage_gpu_utilization_ratio": {"3": 0.25},
    }


def test_the_documentation_lists_them(driver: None) -> None:
    assert exposed(rendered(GpuMetrics(["3"]))) == documented("GPUs")


def test_without_gpus_or_a_driver_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse)
    assert rendered(GpuMetrics([])) == rendered(GpuMetrics(["0"])) == ""
