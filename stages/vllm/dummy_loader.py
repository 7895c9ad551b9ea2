"""vLLM's load format for models without weights; `load_format: dummy` of a stage means this one."""

from torch import nn
from vllm.config import ModelConfig
from vllm.model_executor.model_loader import register_model_loader

from omnistage.stages.dummy_weights import fill_with_dummy_weights
from omnistage.stages.vllm.hidden_states import ExportingLoader

LOAD_FORMAT = "omnistage_dummy"


class DummyLoader(ExportingLoader):
    """Fills every parameter of a model; reads no file."""

    def download_model(self, model_config: ModelConfig) -> None:
        """There is nothing to download."""

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        """Give every parameter its value."""
        fill_with_dummy_weights(model.named_parameters())


def register_dummy_loader() -> None:
    """Make the format known to vLLM in this process."""
    register_model_loader(LOAD_FORMAT)(DummyLoader)
