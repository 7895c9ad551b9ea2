"""What every stage that is one engine of vLLM has."""

from collections.abc import Mapping
from typing import Any

from prometheus_client.registry import Collector

from omnistage.stages.vllm.compat import AsyncLLM
from omnistage.stages.vllm.control import EngineControl
from omnistage.stages.vllm.metrics import EngineMetrics


class EngineStage:
    """Answers for its engine: commands, signs of life, metrics, its end. `start` sets both."""

    _engine: AsyncLLM
    _control: EngineControl

    async def control(self, command: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sleep, weights, profiles."""
        return await self._control.obey(command, arguments)

    async def alive(self) -> None:
        """A question that only the engine core's loop can answer."""
        await self._engine.is_sleeping()

    @property
    def metrics(self) -> Collector:
        """Those of vLLM, as it names them."""
        return EngineMetrics()

    async def close(self) -> None:
        """Stop the engine."""
        self._engine.shutdown()
