"""Common parts of all stages that are one engine of vLLM."""

from collections.abc import Iterator, Mapping

from prometheus_client import REGISTRY, Metric
from prometheus_client.registry import Collector
from vllm.platforms import current_platform

from omnistage.stages.messages.to_gateway import Lora
from omnistage.stages.vllm.adapters.adapters import Adapters
from omnistage.stages.vllm.answers.chat import ChatServing
from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.engine.control import EngineControl
from omnistage.stages.vllm.engine.warm_up import warm_up_adapters
from omnistage.stages.vllm.engine.weights import EngineWeights, model_shapes
from omnistage.stages.worker.stage import StagePorts

LORA_MODULES = "lora_modules"  # of a stage's options: adapters from the start, by their names
VLLM_METRIC = "vllm:"


class EngineMetrics(Collector):
    """The metrics of vLLM in the registry of the process, where vLLM's logger keeps them."""

    def collect(self) -> Iterator[Metric]:
        """Yields the present values; none if the engine has `disable_log_stats`."""
        return (metric for metric in REGISTRY.collect() if metric.name.startswith(VLLM_METRIC))


class EngineStage:
    """Answers for its engine: commands, signs of life, metrics, its end. `start` sets both."""

    _engine: AsyncLLM
    _control: EngineControl
    _adapters: Adapters

    async def _take_control(self, ports: StagePorts, chat: ChatServing, prefix: str = "") -> None:
        """Takes control of an engine of texts: adapters, those of the graph file too, other
        weights.

        `prefix`: as for EngineWeights.
        """
        base = model_shapes(self._engine)
        self._adapters = Adapters(
            self._engine, ports.model, base, chat.loras, has_spare=current_platform.is_cpu()
        )
        await self._adapters.add_all(ports.options.get(LORA_MODULES) or {})
        await warm_up_adapters(self._engine, self._adapters.loaded)
        self._control = EngineControl(
            self._engine,
            EngineWeights(self._engine, prefix),
            self._adapters,
            stage=ports.name,
        )

    @property
    def _loras(self) -> list[Lora] | None:
        """For `Ready`: adapters that are models of their own."""
        return None if self._adapters.refusal else self._adapters.listed

    async def control(self, command: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """Sleep, weights, adapters, profiles."""
        return await self._control.obey(command, arguments)

    async def alive(self) -> None:
        """A question that only the engine core's loop can answer."""
        await self._engine.is_sleeping()

    @property
    def is_dead(self) -> bool:
        """Returns whether a process of it has ended, as soon as vLLM says so."""
        return bool(self._engine.errored)

    @property
    def metrics(self) -> Collector:
        """Returns vLLM's metrics under vLLM's names."""
        return EngineMetrics()

    async def close(self) -> None:
        """Stop the engine."""
        self._engine.shutdown()
