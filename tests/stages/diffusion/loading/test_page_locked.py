"""Pieces of page-locked memory, with a fake CUDA that notes what it locks."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from omnistage.stages.diffusion.loading import dummy_components
from omnistage.stages.diffusion.loading import page_locked as page_locked_module
from omnistage.stages.diffusion.loading.dummy_components import fill
from omnistage.stages.diffusion.loading.page_locked import ALIGNMENT, page_locked
from omnistage.stages.dummy_weights import fill_with_dummy_weights

SIZES = (3, 0, 128, 129, 500)
HOST = torch.device("cpu")
MAKER = torch.device("cpu", 0)  # the same one by another name


class Cuda:
    """What locks memory; `error` is what it answers."""

    cudaError = SimpleNamespace(success=0)

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.locked: dict[int, int] = {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        if not self.error:
            self.locked[address] = size
        return self.error

    def cudaHostUnregister(self, address: int) -> None:
        del self.locked[address]


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake = Cuda()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(page_locked_module, "PIECE_BYTES", 4 * ALIGNMENT)
    return fake


def test_pieces_are_as_long_as_what_is_in_them(cuda: Cuda) -> None:
    wanted = [torch.empty(size, device="meta") for size in (*SIZES, 10_000)]
    made = list(page_locked(wanted))
    assert [(one.shape, one.dtype, one.device) for one in made] == [
        (one.shape, one.dtype, HOST) for one in wanted
    ]
    for value, one in enumerate(made):
        one.fill_(value)
    assert all((one == value).all() for value, one in enumerate(made))
    assert [size // ALIGNMENT for size in cuda.locked.values()] == [3, 2, 4, 79]


def test_what_nobody_has_any_more_is_unlocked(cuda: Cuda) -> None:
    made = list(page_locked([torch.empty(100), torch.empty(20)]))
    view = made[1][:5]
    del made
    assert cuda.locked
    del view
    assert not cuda.locked


def test_memory_that_cannot_be_locked_is_torchs_own(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cuda.error = 2
    asked: list[dict[str, Any]] = []

    def empty(size: int, **options: Any) -> torch.Tensor:
        asked.append({"size": size, **options})
        return torch.zeros(size, dtype=torch.uint8)

    def report(*size: int, **options: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(torch, "ones", report)
    (made,) = page_locked([torch.zeros(3)])
    assert made.shape == (3,)
    assert asked == [{"size": ALIGNMENT, "dtype": torch.uint8, "pin_memory": True}]
    assert "locks no memory of ours" in caplog.text


def test_weights_are_made_one_by_one_and_kept_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []

    def fill_and_note(parameters: Any) -> None:
        named = dict(parameters)
        counts.append(len(named))
        fill_with_dummy_weights(named.items())

    monkeypatch.setattr(dummy_components, "fill_with_dummy_weights", fill_and_note)
    modules = [two_of_three_weights_shared() for _ in range(2)]
    for module, home in zip(modules, (MAKER, HOST), strict=True):
        fill(module, MAKER, home)
        assert module[2].weight is module[0].weight
        assert not any(one.is_meta or one.requires_grad for one in module.parameters())
    there, here = (module.state_dict() for module in modules)
    assert all(torch.equal(there[name], here[name]) for name in there)
    assert len({one.untyped_storage().data_ptr() for one in here.values()}) == 1
    assert counts == [1] * 8


def two_of_three_weights_shared() -> nn.Sequential:
    with torch.device("meta"):
        module = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3)), nn.LayerNorm(4))
    module[2].weight = module[0].weight
    return module
