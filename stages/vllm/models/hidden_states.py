"""The last hidden states of any model of vLLM's, on their way out through the step table.

They are what the model's forward returns: those after the final norm, which its head reads. A hook
of torch's on the loaded model copies them; the load formats of this folder set it before vLLM
captures graphs, so that it is part of them.
"""

import torch
from torch import nn
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from omnistage.stages.vllm.step.ports import BridgeConfig
from omnistage.stages.vllm.step.ranks import is_end_of_pipeline
from omnistage.stages.vllm.step.step_schema import HIDDEN_STATES
from omnistage.stages.vllm.step.step_table import StepTable


class ExportHook:
    """Copies what a model's forward returns to the lines of its tokens."""

    def __init__(self, config: VllmConfig, device: torch.device) -> None:
        self._table = StepTable(config, device, HIDDEN_STATES)
        self._size = config.model_config.get_hidden_size()
        self._rows = self._table.make_export(self._size)

    def __call__(self, model: nn.Module, inputs: object, hidden: object) -> None:
        """Runs after each forward, vLLM's first for its own measurements among them."""
        if not isinstance(hidden, torch.Tensor) or hidden.shape[1:] != (self._size,):
            name = type(model).__name__
            raise ValueError(f"the forward of {name} does not return its last hidden states alone")
        self._rows[self._table.lines(hidden.shape[0])] = hidden


def export_hidden_states(model: nn.Module, config: VllmConfig) -> None:
    """Set the hook, if the bridge exports hidden states and the model does not do so itself."""
    transfer = config.kv_transfer_config
    if transfer is None or StepTable.is_made(transfer.engine_id):
        return
    if BridgeConfig.from_config(transfer.kv_connector_extra_config).schema != HIDDEN_STATES:
        return
    if type(model).__call__ is not nn.Module.__call__:
        raise ValueError(
            f"{type(model).__name__} is compiled as a whole: torch calls no hook of it"
        )
    device = next(model.parameters()).device
    if is_end_of_pipeline():
        model.register_forward_hook(ExportHook(config, device))
    else:
        StepTable(config, device, HIDDEN_STATES)  # from which nothing leaves


class ExportingLoader(BaseModelLoader):
    """A loader of vLLM's whose models export their hidden states where the bridge wants them."""

    def load_model(
        self, vllm_config: VllmConfig, model_config: ModelConfig, *args: object, **kwargs: object
    ) -> nn.Module:
        """Loads like vLLM."""
        model: nn.Module = super().load_model(vllm_config, model_config, *args, **kwargs)
        export_hidden_states(model, vllm_config)
        return model
