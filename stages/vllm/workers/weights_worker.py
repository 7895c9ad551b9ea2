"""Extends vLLM's workers for other weights: the engine argument `worker_extension_cls`."""

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from torch import nn
from vllm.config import LoadConfig, ModelConfig, VllmConfig
from vllm.platforms import current_platform

from omnistage.stages.vllm.adapters.adapted_modules import refuse_ignored
from omnistage.stages.vllm.compat import LoRARequest
from omnistage.stages.vllm.loading.loading import CountedLoader
from omnistage.stages.vllm.step.ranks import first_problem, is_read_last, own_lane
from omnistage.stages.worker.extension import plain_result

logger = logging.getLogger(__name__)

EXTENSION = "omnistage.stages.vllm.workers.weights_worker.WeightsWorker"
LOAD = "omnistage_load_weights"
ADD_LORA = "omnistage_add_lora"
PIN_LORA = "omnistage_pin_lora"
TOGETHER = "omnistage_together"
RPC = "omnistage_rpc"


class Called(msgspec.Struct, frozen=True):
    """The outcome of a user's method: a rank's result, or the first rank's problem."""

    result: Any = None
    problem: str = ""


class WeightsWorker:
    """Mixed into a worker of any platform; called by its engine's `collective_rpc`."""

    rank: int
    vllm_config: VllmConfig
    model_runner: Any
    model_config: ModelConfig
    load_config: LoadConfig
    reload_weights: Callable[..., None]
    add_lora: Callable[[LoRARequest], bool]
    pin_lora: Callable[[int], bool]

    def omnistage_together(self, method: str, *arguments: object) -> None:
        """Call a method in every rank; RuntimeError, in the last one, if it failed in any.

        vLLM reads the answers in the order of the ranks and stops at the first that is an error.
        The ones behind it would be taken for the answers to its next call.
        """
        problem = ""
        try:
            getattr(self, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - of whatever kind: it is told
            problem = f"{type(error).__name__}: {error}"
        problem = first_problem(problem)
        if problem and is_read_last():
            raise RuntimeError(problem)

    def omnistage_rpc(self, method: str, arguments: Sequence[object]) -> str:
        """Call a user's method in every rank of this lane; `Called` as JSON.

        An error is an answer like others, because vLLM would read the next ones wrongly: see
        `omnistage_together`. Of other lanes than the first vLLM passes on errors alone.
        """
        result, problem = None, ""
        try:
            result = plain_result(getattr(self, method)(*arguments))
        except Exception as error:
            logger.exception("rank %d: %s failed", self.rank, method)
            told = f"rank {self.rank}: {type(error).__name__}: {error}"
            problem = told.encode(errors="backslashreplace").decode()
        problem = first_problem(problem)
        lane = own_lane(self.vllm_config)
        if problem and lane and is_read_last():
            raise RuntimeError(f"lane {lane}, {problem}")
        return msgspec.json.encode(Called(result, problem)).decode()

    def omnistage_add_lora(self, name: str, number: int, folder: str) -> None:
        """Load an adapter; ValueError for one of which vLLM would ignore a part."""
        self.add_lora(LoRARequest(name, number, folder))
        refuse_ignored(self.model_runner.get_model(), folder)

    def omnistage_pin_lora(self, number: int) -> None:
        """Keep an adapter in its place."""
        self.pin_lora(number)

    def omnistage_load_weights(self, folder: str) -> None:
        """Put the weights of a checkpoint's folder into the model, as vLLM's reload does it."""
        model = self.model_runner.get_model()
        if current_platform.is_cpu():
            pack_experts_again(model)
        config = copy.copy(self.model_config)
        config.model, config.revision, config.model_weights = folder, None, ""
        weights = CountedLoader(self.load_config).get_all_weights(config, model)
        self.reload_weights(weights_iterator=weights)


def pack_experts_again(model: nn.Module) -> None:
    """Have experts packed for a CPU with the next weights as with the first.

    vLLM 0.32 does it only while a layer has no kernel yet; unpacked they are other weights.
    """
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None
