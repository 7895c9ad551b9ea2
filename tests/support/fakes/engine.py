"""An engine that notes what it is told."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import save_file

from omnistage.stages.vllm.engine.control import EngineControl
from omnistage.stages.vllm.workers.weights_worker import EXTENSION, TOGETHER


class FakeEngine:
    """Notes what it is told."""

    def __init__(self, can_sleep: bool = True, profiler: str | None = "torch") -> None:
        self.told: list[Any] = []
        self.unreadable: set[str] = set()
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enable_sleep_mode=can_sleep),
            parallel_config=SimpleNamespace(worker_extension_cls=EXTENSION),
            kv_transfer_config=None,
            profiler_config=SimpleNamespace(profiler=profiler, torch_profiler_dir="/traces"),
        )

    async def sleep(self, level: int) -> None:
        self.told.append(("sleep", level))

    async def wake_up(self, tags: list[str]) -> None:
        self.told.append(("wake", *tags))

    async def start_profile(self, profile_prefix: str | None = None) -> None:
        self.told.append(("start", profile_prefix))

    async def stop_profile(self) -> None:
        self.told.append("stop")

    async def collective_rpc(self, method: str, args: tuple[str, ...]) -> None:
        assert method == TOGETHER
        self.told.append(args)
        if args[1] in self.unreadable:
            raise RuntimeError("the file ends early")

    async def reset_prefix_cache(self) -> None:
        self.told.append("reset")


def made(engine: FakeEngine, weights: Any = "a reason") -> EngineControl:
    return EngineControl(engine, weights, stage="thinker@0")


def write_weights(folder: Path, **shapes: tuple[int, ...]) -> str:
    folder.mkdir()
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors")
    return str(folder)
