"""Dummy weights of a model some of whose layers are quantized while they load."""

from typing import Any

import torch
from torch import nn
from vllm.config.load import LoadConfig
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload.layerwise import (
    get_layerwise_info,
    initialize_online_processing,
)

from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.vllm.loading.dummy_loader import DummyLoader

SCALE = 1000


class Rounding(QuantizeMethodBase):  # type: ignore[misc]
    """Makes integers of a weight that begins on no device, as vLLM's methods do."""

    uses_meta_device = True

    def create_weights(self, layer: Any, *sizes: Any, **more: Any) -> None:
        weight = nn.Parameter(torch.empty(*sizes, device="meta"), requires_grad=False)
        layer.register_parameter("weight", weight)
        initialize_online_processing(layer)

    def process_weights_after_loading(self, layer: Any) -> None:
        whole = (layer.weight.data * SCALE).round().to(torch.int8)
        layer.weight = nn.Parameter(whole, requires_grad=False)

    def apply(self, layer: Any, *args: Any, **more: Any) -> torch.Tensor:
        raise NotImplementedError


class Quantized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.ones(4))
        self.quant_method = Rounding()
        self.quant_method.create_weights(self, 4, 6)


def made(inner: nn.Module) -> nn.Module:
    return nn.ModuleDict({"first": nn.Linear(6, 4), "inner": inner})


def test_a_layer_is_quantized_from_the_weights_that_it_would_have_had() -> None:
    plain = made(nn.Linear(6, 4))
    fill_with_dummy_weights(plain.named_parameters())
    model: Any = made(Quantized())
    assert get_layerwise_info(model["inner"]).can_load()
    DummyLoader(LoadConfig()).load_weights(model, None)
    expected: Any = plain
    assert torch.equal(model["first"].weight, expected["first"].weight)
    rounded = (expected["inner"].weight * SCALE).round().to(torch.int8)
    assert torch.equal(model["inner"].weight, rounded)
    assert rounded.unique().numel() > 5
    assert model["inner"].bias.tolist() == [0.0] * 4
    assert not get_layerwise_info(model["inner"]).can_load()
