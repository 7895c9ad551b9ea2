"""Commands to an engine: vLLM's own sleep and profiler."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from omnistage.stages.vllm.compat import AsyncLLM, accepted
from omnistage.stages.worker.failure import RequestError

TAGS = ("weights", "kv_cache")  # vLLM's names
# With 0.32 on a CPU a tiny Qwen3-Omni answers otherwise after it has read its own weights again.
NO_RELOAD = "vLLM's reload of weights does not bring the same model back"


class EngineControl:
    """What of a running engine can be changed; there is no request in it while it sleeps."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._asleep: tuple[str, ...] = ()

    @property
    def commands(self) -> dict[str, str]:
        """All of them, each with why it is refused, or with nothing."""
        config = self._engine.vllm_config
        can_sleep = config.model_config.enable_sleep_mode
        profiler = getattr(config, "profiler_config", None)
        can_profile = profiler is not None and profiler.profiler is not None
        no_sleep = "" if can_sleep else "its engine has no enable_sleep_mode: true"
        no_profile = "" if can_profile else "its engine has no profiler_config"
        return {
            **dict.fromkeys(("sleep", "wake"), no_sleep),
            "load_weights": NO_RELOAD,
            **dict.fromkeys(("start_profile", "stop_profile"), no_profile),
        }

    async def obey(self, command: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Do it; RequestError refuses it."""
        run: Callable[..., Any] = getattr(self, f"_{command}")
        result: Mapping[str, Any] = await run(**arguments)
        return result

    async def _sleep(self, level: int, tags: Collection[str] | None) -> Mapping[str, Any]:
        if tags is not None:
            message = "an engine of vLLM's sleeps as a whole; tags are for wake"
            raise RequestError(400, message, param="tags", code="invalid_value")
        if level == 2:
            message = f"level 2 drops the weights, and {NO_RELOAD}"
            raise RequestError(400, message, param="level", code="invalid_value")
        if not self._asleep:
            await self._engine.sleep(level)
            self._asleep = TAGS
        return {"asleep": list(self._asleep)}

    async def _wake(self, tags: Collection[str] | None) -> Mapping[str, Any]:
        for tag in tags or ():
            if tag not in TAGS:
                message = f"no part {tag!r}; allowed: {', '.join(TAGS)}"
                raise RequestError(400, message, param="tags", code="invalid_value")
        waking = [tag for tag in self._asleep if tags is None or tag in tags]
        if waking:
            await self._engine.wake_up(waking)
            self._asleep = tuple(tag for tag in self._asleep if tag not in waking)
        return {"asleep": list(self._asleep)}

    async def _start_profile(self, prefix: str | None) -> Mapping[str, Any]:
        options = accepted(self._engine.start_profile, {"profile_prefix": prefix})
        await self._engine.start_profile(**options)
        return {"folder": self._engine.vllm_config.profiler_config.torch_profiler_dir}

    async def _stop_profile(self) -> Mapping[str, Any]:
        await self._engine.stop_profile()
        return {"folder": self._engine.vllm_config.profiler_config.torch_profiler_dir}
