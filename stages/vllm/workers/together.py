"""An engine whose ranks carry out a command together, or tell of one failure together."""

from omnistage.stages.vllm.compat import AsyncLLM, LoRARequest
from omnistage.stages.vllm.workers.weights_worker import ADD_LORA, PIN_LORA, TOGETHER


async def call_together(engine: AsyncLLM, method: str, *arguments: object) -> None:
    """Call a method of `WeightsWorker` in all ranks; raises what went wrong in any of them.

    The engine's next calls get their own answers after that, too.
    """
    await engine.collective_rpc(TOGETHER, args=(method, *arguments))


class TogetherLLM(AsyncLLM):
    """AsyncLLM that outlives an adapter which its ranks refuse."""

    async def add_lora(self, lora_request: LoRARequest) -> bool:
        """Adds like AsyncLLM."""
        one = lora_request
        await call_together(self, ADD_LORA, one.lora_name, one.lora_int_id, one.lora_path)
        return True

    async def pin_lora(self, lora_id: int) -> bool:
        """Pins like AsyncLLM."""
        await call_together(self, PIN_LORA, lora_id)
        return True
