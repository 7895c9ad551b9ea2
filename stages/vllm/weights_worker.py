"""What vLLM's workers do for other weights: the engine argument `worker_extension_cls`."""

import copy
from typing import Any

from torch import nn
from vllm.platforms import current_platform

from omnistage.stages.vllm.loading import CountedLoader

EXTENSION = "omnistage.stages.vllm.weights_worker.WeightsWorker"
LOAD = "omnistage_load_weights"


class WeightsWorker:
    """Mixed into a worker of any platform; called by its engine's `collective_rpc`."""

    model_runner: Any
    model_config: Any
    load_config: Any
    reload_weights: Any

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
