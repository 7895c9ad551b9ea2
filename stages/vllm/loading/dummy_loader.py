"""vLLM's load format for models without weights; `load_format: dummy` of a stage means this one.

A layer that vLLM quantizes while it loads (`quantization: fp8`) has no weights before that: it gets
those that it would have without, and then quantizes them.
"""

from typing import Any

from torch import nn
from vllm.config import ModelConfig
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.reload.layerwise import (
    _get_original_loader,
    get_layerwise_info,
)
from vllm.model_executor.model_loader.reload.meta import materialize_layer

from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.vllm.models.hidden_states import ExportingLoader

LOAD_FORMAT = "omnistage_dummy"


class DummyLoader(ExportingLoader):
    """Fills every parameter of a model; reads no file."""

    def download_model(self, model_config: ModelConfig) -> None:
        """There is nothing to download."""

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Give every parameter its value."""
        layers = {name: get_layerwise_info(layer) for name, layer in model.named_modules()}
        online = {name: info for name, info in layers.items() if info.can_load()}
        for name, info in online.items():
            _fill_and_quantize(name, model.get_submodule(name), info)
        fill_with_dummy_weights(
            (name, parameter)
            for name, parameter in model.named_parameters()
            if name.rpartition(".")[0] not in online
        )


def _fill_and_quantize(name: str, layer: nn.Module, info: Any) -> None:
    """Does what vLLM does with a layer whose weights have all come."""
    materialize_layer(layer, info)
    parameters: dict[str, Any] = dict(layer.named_parameters(recurse=False))
    fill_with_dummy_weights((f"{name}.{key}", value) for key, value in parameters.items())
    for parameter in parameters.values():
        parameter.weight_loader = _get_original_loader(parameter)
    method = getattr(layer, "quant_method", None)
    if isinstance(method, QuantizeMethodBase):
        method.process_weights_after_loading(layer)
    info.reset()


def register_dummy_loader() -> None:
    """Make the format known to vLLM in this process."""
    register_model_loader(LOAD_FORMAT)(DummyLoader)
