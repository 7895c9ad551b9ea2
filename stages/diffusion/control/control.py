"""Changes a pipeline while it serves: adapters, caches, weights, profiles."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.device.profiler import NO_FOLDER, PROFILE, Profiler
from omnistage.stages.diffusion.control.adapters import MAX_ADAPTERS, PipelineAdapters
from omnistage.stages.diffusion.control.embedding_cache import EmbeddingCache
from omnistage.stages.diffusion.control.step_cache import StepCache
from omnistage.stages.diffusion.engine.job import Job
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.engine.step_count import Report
from omnistage.stages.diffusion.engine.switchboard import current_setting
from omnistage.stages.diffusion.loading.engine_options import EngineOptions
from omnistage.stages.diffusion.loading.loading import LoadedPipeline
from omnistage.stages.diffusion.loading.weights import Weights
from omnistage.stages.diffusion.merging.setting import Scales, Setting
from omnistage.stages.diffusion.pipeline import HasComponents, Pipeline
from omnistage.stages.diffusion.ranks.adapters import AdaptersOnRanks
from omnistage.stages.diffusion.ranks.peers import RankError
from omnistage.stages.diffusion.ranks.ranks import Ranks, end_stage
from omnistage.stages.worker.extension import (
    NO_EXTENSION,
    call_failed,
    check_method,
    plain_result,
)
from omnistage.stages.worker.failure import RequestError


@dataclass(frozen=True, slots=True)
class ControlOptions(EngineOptions):
    """Engine arguments: how many adapters at most, the caches, where traces are written."""

    max_loras: int = MAX_ADAPTERS
    embedding_cache_mb: int = 0
    step_cache: str = ""
    step_cache_options: Mapping[str, object] = field(default_factory=dict)
    profile_folder: str = ""

    def __post_init__(self) -> None:
        for name, least in (("max_loras", 1), ("embedding_cache_mb", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name}: must be an integer of at least {least}, not {value!r}")
        if self.step_cache_options and not self.step_cache:
            raise ValueError("step_cache_options: has no effect without step_cache")


class Control:
    """Prepares a pipeline before its engine is made, then `attach`es to the engine."""

    def __init__(
        self,
        loaded: LoadedPipeline,
        options: ControlOptions,
        read: Callable[[str | None], HasComponents],
        stage: str,
        ranks: Ranks | None = None,
        on_failure: Callable[[str], None] = end_stage,
    ) -> None:
        """`read`: as for Weights. `ranks`: of the denoisers, which do what is done here.

        `on_failure` is called when weights are half exchanged: the stage cannot go on. Raises
        ValueError for a step cache that the pipeline refuses.
        """
        self._pipeline = pipeline = loaded.pipeline
        self._turns = loaded.turns
        self._ranks = ranks
        self._on_failure = on_failure
        loras = None if ranks is None else AdaptersOnRanks(pipeline, ranks)
        self._adapters = PipelineAdapters(pipeline, options.max_loras, loras)
        self._embeddings: EmbeddingCache | None = None
        if options.embedding_cache_mb:
            max_bytes = options.embedding_cache_mb << 20
            self._embeddings = EmbeddingCache(max_bytes, self._variant)
        self._step_caches: dict[str, StepCache] = {}
        if options.step_cache:
            name, more = options.step_cache, options.step_cache_options
            self._step_caches = {
                part: StepCache(module, name, more) for part, module in loaded.parts.dit.items()
            }
        self._weights = Weights(pipeline, read)
        self._is_quantized = loaded.is_quantized
        self._profiler: Profiler | None = None
        if options.profile_folder:
            self._profiler = Profiler(Path(options.profile_folder), stage)

    def attach(self, engine: StepBatcher) -> None:
        """From now on commands are obeyed, in the engine's thread."""
        self._engine = engine
        if self._embeddings is not None:
            self._embeddings.install(self._pipeline)

    def close(self) -> None:
        """Before the engine's end."""
        if self._embeddings is not None:
            self._embeddings.close()

    @property
    def embeddings(self) -> EmbeddingCache | None:
        """The cache of what text encoders make, if the engine's arguments ask for one."""
        return self._embeddings

    # Requests

    def submit(
        self,
        body: JsonMap,
        pipeline: Pipeline | None = None,
        on_step: Report | None = None,
        /,
        **arguments: object,
    ) -> Job:
        """Submits to the engine, with the LoRAs and the step cache that the body names.

        `on_step`: as the engine's. Raises RequestError for what is not there.
        """
        if body.get("step_cache") and not self._step_caches:
            message = "this stage has no step cache"
            raise RequestError(400, message, param="step_cache", code="invalid_value")
        scales = self._adapters.use(body.get("lora") or ())
        has_step_cache = bool(self._step_caches) and body.get("step_cache") is not False
        setting = Setting(scales, has_step_cache, self._switch)
        job = self._engine.submit(pipeline, setting, on_step, **arguments)
        job.result.add_done_callback(lambda _: self._adapters.give_back(scales))
        return job

    def _switch(self, part: str, setting: Setting) -> None:
        self._adapters.put(part, setting.adapters)
        if part in self._step_caches:
            self._step_caches[part].put(setting.has_step_cache)

    def _variant(self, part: str) -> Scales:
        return self._adapters.of_part(part, current_setting().adapters)

    # Commands

    @property
    def commands(self) -> dict[str, str]:
        """All of them, each with why it is refused, or with nothing."""
        no_cache = "" if self._embeddings else "its engine has no embedding_cache_mb"
        no_profile = "" if self._profiler else NO_FOLDER
        is_cut = self._ranks is not None and self._ranks.is_tensor_parallel
        whole = "its denoiser's weights are sharded (parallel.tensor)" if is_cut else ""
        own = whole or ("its denoiser's weights are quantized" if self._is_quantized else "")
        loras = dict.fromkeys(
            ("add_lora", "remove_lora", "pin_lora", "list_loras"), own or self._adapters.refusal
        )
        has_rpc = self._ranks is not None and self._ranks.extension is not None
        return {
            **dict.fromkeys(("sleep", "wake"), whole),
            "load_weights": own,
            "rpc": "" if has_rpc else NO_EXTENSION,
            **loras,
            **dict.fromkeys(("count_cache", "clear_cache"), no_cache),
            **dict.fromkeys(PROFILE, no_profile),
        }

    async def obey(self, command: str, arguments: JsonMap) -> JsonMap:
        """Do it between two steps; RequestError refuses it."""
        if command.endswith("_lora") and self._weights.asleep:
            raise RequestError(409, "the stage is asleep; wake it first", code="sleeping")
        run: Callable[..., JsonMap] = getattr(self, f"_{command}")

        def obey() -> JsonMap:
            if self._turns is not None:  # what is on the device now is a copy
                self._turns.end()
            return run(**arguments)

        return await asyncio.shield(asyncio.wrap_future(self._engine.between_steps(obey)))

    def _sleep(self, level: int, tags: Sequence[str] | None) -> JsonMap:
        if level > 1 and self._is_quantized:
            message = "level must be 1: quantized weights are not read again"
            raise RequestError(400, message, param="level", code="invalid_value")
        self._weights.sleep(level, tags)
        self._follow("sleep", level, tags)
        return {"asleep": self._weights.asleep}

    def _wake(self, tags: Sequence[str] | None) -> JsonMap:
        self._weights.wake(tags)
        self._follow("wake", tags)
        return {"asleep": self._weights.asleep}

    def _load_weights(self, path: str | None) -> JsonMap:
        self._weights.prepare(path)
        self._prepare_on_ranks(path)
        try:
            self._weights.exchange()
        except Exception as error:
            self._on_failure(f"weights are half exchanged: {error}")
            raise
        self._follow("exchange_weights")
        if self._embeddings is not None:
            self._embeddings.clear()
        return {"asleep": self._weights.asleep}

    def _prepare_on_ranks(self, path: str | None) -> None:
        """Every rank has read and checked the weights, or none of them will take any."""
        if self._ranks is None:
            return
        try:
            self._ranks.others("prepare_weights", path)
        except RankError as error:
            self._weights.forget()
            self._ranks.follow("forget_weights")
            raise RequestError(400, str(error), param="path", code="invalid_value") from error

    def _follow(self, method: str, *arguments: object) -> None:
        """The other ranks do what is done; before that whatever may be refused is refused."""
        if self._ranks is not None:
            self._ranks.follow(method, *arguments)

    def _rpc(self, method: str, args: Sequence[object], reply: bool, from_all: bool) -> JsonMap:
        assert self._ranks is not None
        check_method(method, self._ranks.extension)
        try:
            result = self._ranks.rpc(method, *args, reply=reply, from_all=from_all)
            return {"result": plain_result(result)}
        except (RankError, ValueError) as error:
            raise call_failed(str(error)) from error

    def _add_lora(self, name: str, path: str, weight_name: str | None, pinned: bool) -> JsonMap:
        self._adapters.add(name, path, weight_name, pinned)
        return self._list_loras()

    def _remove_lora(self, name: str) -> JsonMap:
        self._adapters.remove(name)
        return self._list_loras()

    def _pin_lora(self, name: str, pinned: bool) -> JsonMap:
        self._adapters.pin(name, pinned)
        return self._list_loras()

    def _list_loras(self) -> JsonMap:
        return {"loras": self._adapters.listed}

    def _count_cache(self) -> JsonMap:
        assert self._embeddings is not None
        return {"embeddings": self._embeddings.counts}

    def _clear_cache(self) -> JsonMap:
        assert self._embeddings is not None
        self._embeddings.clear()
        return self._count_cache()

    def _start_profile(self, prefix: str | None) -> JsonMap:
        assert self._profiler is not None
        return self._profiler.start(prefix)

    def _stop_profile(self) -> JsonMap:
        assert self._profiler is not None
        return self._profiler.stop()
