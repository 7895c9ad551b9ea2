"""vLLM's engine arguments, for weights too that it quantizes while it loads them."""

from vllm.config import ModelConfig

from omnistage.stages.vllm.compat import AsyncEngineArgs


class EngineArguments(AsyncEngineArgs):
    """As vLLM's."""

    def create_model_config(self) -> ModelConfig:
        """The model's configuration, as our function of `hf_overrides` has changed it.

        vLLM 0.26 looks for how to quantize in `hf_overrides` too, and refuses a function there.
        """
        config = super().create_model_config()
        if config.quantization is not None and callable(config.hf_overrides):
            config.hf_overrides = {}
        return config
