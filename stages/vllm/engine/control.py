"""Commands to an engine: vLLM's own sleep, reload of weights, LoRA, profiler and calls."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from vllm.platforms import current_platform

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.device.profiler import already_profiling, not_profiling
from omnistage.stages.vllm.adapters.adapters import Adapters
from omnistage.stages.vllm.compat import AsyncLLM, accepted
from omnistage.stages.vllm.engine.weights import EngineWeights
from omnistage.stages.vllm.workers.weights_worker import RPC, Called
from omnistage.stages.vllm.workers.worker_extension import user_class_of
from omnistage.stages.worker.extension import (
    NO_EXTENSION,
    call_failed,
    check_method,
    plain_result,
)
from omnistage.stages.worker.failure import RequestError

TRACES = "*.json*"
MAX_PREFIX = 128  # characters, as vLLM has it
TAGS = ("weights", "kv_cache")  # vLLM's names
LORA = ("add_lora", "remove_lora", "pin_lora", "list_loras")
NO_SLEEP = "its engine has no enable_sleep_mode: true"
NO_SLEEP_ON_A_CPU = f"{NO_SLEEP}, which vLLM has for GPUs only"
# What the bridge's tables, which are no weights, hold from the start.
NO_LEVEL_2 = "level 2 would drop what its engine exchanges with other stages; level 1 keeps it"


class EngineControl:
    """The changes to a running engine; there is no request in it while it sleeps."""

    def __init__(
        self,
        engine: AsyncLLM,
        weights: EngineWeights | str,
        adapters: Adapters | None = None,
        *,
        stage: str,
    ) -> None:
        """`weights`: a text says why other ones are refused. `stage`: the replica's name."""
        self._engine = engine
        self._weights = weights
        self._adapters = adapters
        self._asleep: tuple[str, ...] = ()
        self._is_dropped = False  # the weights, by level 2
        # In the names of this engine's traces, beside which others may lie.
        self._mark = f"{stage.replace('@', '.')}-{os.getpid()}"
        self._traces: frozenset[str] = frozenset()  # that lay there before a profile began
        self._is_profiling = False

    @property
    def commands(self) -> dict[str, str]:
        """All of them, each with why it is refused, or with nothing."""
        return {
            **dict.fromkeys(("sleep", "wake"), self._no_sleep),
            "load_weights": self._no_weights,
            **dict.fromkeys(LORA if self._adapters is not None else (), self._no_lora),
            **dict.fromkeys(("start_profile", "stop_profile"), self._no_profile),
            "rpc": "" if self._extension is not None else NO_EXTENSION,
        }

    @property
    def _extension(self) -> type | None:
        parallel = self._engine.vllm_config.parallel_config
        return user_class_of(parallel.worker_extension_cls)

    @property
    def _no_sleep(self) -> str:
        if self._engine.vllm_config.model_config.enable_sleep_mode:
            return ""
        return NO_SLEEP_ON_A_CPU if current_platform.is_cpu() else NO_SLEEP

    @property
    def _no_weights(self) -> str:
        return self._weights if isinstance(self._weights, str) else ""

    @property
    def _no_lora(self) -> str:
        return "" if self._adapters is None else self._adapters.refusal

    @property
    def _no_profile(self) -> str:
        profiler = getattr(self._engine.vllm_config, "profiler_config", None)
        if profiler is not None and profiler.profiler is not None:
            return ""
        return "its engine has no profiler_config"

    async def obey(self, command: str, arguments: JsonMap) -> Mapping[str, object]:
        """Do it; RequestError refuses it."""
        if "weights" in self._asleep and command in (*LORA[:3], "load_weights"):
            raise RequestError(409, "the weights are asleep; wake them first", code="sleeping")
        run: Callable[..., Any] = getattr(self, f"_{command}")
        result: Mapping[str, object] = await run(**arguments)
        return result

    async def _sleep(self, level: int, tags: Collection[str] | None) -> Mapping[str, object]:
        if tags is not None:
            message = "an engine of vLLM's sleeps as a whole; tags are for wake"
            raise RequestError(400, message, param="tags", code="invalid_value")
        if level == 2 and self._no_level_2:
            raise RequestError(400, self._no_level_2, param="level", code="invalid_value")
        if not self._asleep:
            await self._engine.sleep(level)
            self._asleep = TAGS
            self._is_dropped = level == 2
        return {"asleep": list(self._asleep)}

    @property
    def _no_level_2(self) -> str:
        """Why the weights must not be dropped; empty if they can be read again."""
        if isinstance(self._weights, str):
            return f"level 2 drops the weights: {self._weights}"
        if self._engine.vllm_config.kv_transfer_config is not None:
            return NO_LEVEL_2
        return self._weights.no_source

    async def _wake(self, tags: Collection[str] | None) -> Mapping[str, object]:
        for tag in tags or ():
            if tag not in TAGS:
                message = f"no part {tag!r}; allowed: {', '.join(TAGS)}"
                raise RequestError(400, message, param="tags", code="invalid_value")
        waking = [tag for tag in self._asleep if tags is None or tag in tags]
        if waking:
            await self._engine.wake_up(waking)
            self._asleep = tuple(tag for tag in self._asleep if tag not in waking)
        if self._is_dropped and "weights" not in self._asleep:  # also if it failed before
            await self._read_again()
        return {"asleep": list(self._asleep)}

    async def _read_again(self) -> None:
        """From the folder that the engine had last: vLLM gives back memory with nothing in it."""
        assert isinstance(self._weights, EngineWeights)
        await self._weights.read_again()
        self._is_dropped = False
        await self._restore_adapters()

    async def _load_weights(self, path: str | None) -> Mapping[str, object]:
        assert isinstance(self._weights, EngineWeights)
        folder = self._weights.checked(path)
        try:
            await self._weights.load(folder)
        finally:
            await self._restore_adapters()
        return {"asleep": list(self._asleep)}

    async def _restore_adapters(self) -> None:
        if self._adapters is not None:
            await self._adapters.restore()

    async def _add_lora(
        self, name: str, path: str, weight_name: str | None, pinned: bool
    ) -> Mapping[str, object]:
        if weight_name is not None:
            message = "weight_name is for a pipeline; here a path is a folder as peft writes it"
            raise RequestError(400, message, param="weight_name", code="invalid_value")
        await self._known_adapters.add(name, path, pinned)
        return await self._list_loras()

    async def _remove_lora(self, name: str) -> Mapping[str, object]:
        await self._known_adapters.remove(name)
        return await self._list_loras()

    async def _pin_lora(self, name: str, pinned: bool) -> Mapping[str, object]:
        await self._known_adapters.pin(name, pinned)
        return await self._list_loras()

    async def _list_loras(self) -> Mapping[str, object]:
        return {"loras": msgspec.to_builtins(self._known_adapters.listed)}

    @property
    def _known_adapters(self) -> Adapters:
        assert self._adapters is not None
        return self._adapters

    async def _start_profile(self, prefix: str | None) -> Mapping[str, object]:
        """One that is cancelled may still take effect, so only a failure means that none runs."""
        if self._is_profiling:
            raise already_profiling()
        own = f"-{self._mark}"
        name = self._mark if prefix is None else f"{prefix[: MAX_PREFIX - len(own)]}{own}"
        options = accepted(self._engine.start_profile, {"profile_prefix": name})
        self._traces = self._traces_there()
        self._is_profiling = True
        try:
            await self._engine.start_profile(**options)
        except Exception:
            self._is_profiling = False
            raise
        return {"folder": self._profile_folder}

    async def _stop_profile(self) -> Mapping[str, object]:
        """The `files`: a trace of each process of the engine, as far as the folder is a path.

        Without a folder (`profiler: cuda`) there are none. vLLM 0.26 gives no name to those of a
        CPU: all are meant then that have come since.
        """
        if not self._is_profiling:
            raise not_profiling()
        await self._engine.stop_profile()
        self._is_profiling = False
        if not self._profile_folder:
            return {"folder": ""}
        written = self._traces_there() - self._traces
        own = {name for name in written if self._mark in name} or written
        files = [str(Path(self._profile_folder, name)) for name in sorted(own)]
        return {"folder": self._profile_folder, "files": files}

    async def _rpc(
        self, method: str, args: Sequence[object], reply: bool, from_all: bool
    ) -> Mapping[str, object]:
        """Call a method of the user's extension on all ranks, between two steps.

        Rank 0's result or a list of all, of several lanes those of the first.
        """
        check_method(method, self._extension)
        if from_all and self._engine.vllm_config.parallel_config.data_parallel_size > 1:
            message = "must be false: with a data_parallel_size vLLM answers for the first lane"
            raise RequestError(400, message, param="from_all", code="invalid_value")
        try:
            answers = await self._engine.collective_rpc(RPC, args=(method, list(args)))
            found = [msgspec.json.decode(answer, type=Called) for answer in answers]
            problem = found[0].problem  # the first of all ranks
            result = [one.result for one in found] if from_all else found[0].result
            if not problem:
                return {"result": plain_result(result if reply else None)}
        except Exception as error:  # of another lane, or too much from all
            raise call_failed(str(error)) from error
        raise call_failed(problem)

    @property
    def _profile_folder(self) -> str:
        folder: str = self._engine.vllm_config.profiler_config.torch_profiler_dir
        return folder

    def _traces_there(self) -> frozenset[str]:
        folder = Path(self._profile_folder)
        found = folder.glob(TRACES) if self._profile_folder and folder.is_dir() else ()
        return frozenset(file.name for file in found)
