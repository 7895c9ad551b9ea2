"""Every import of vLLM whose place or arguments differ between the supported versions."""

import inspect
from collections.abc import Mapping
from typing import Any

import vllm.exceptions
from vllm.config import ModelConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.serve.tokenize import serving as tokenize_serving
from vllm.entrypoints.serve.tokenize.protocol import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)
from vllm.lora.request import LoRARequest
from vllm.pooling_params import PoolingParams
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import PrometheusStatLogger

# What vLLM raises for a request that it refuses; VLLMClientError came between 0.26 and 0.28 as the
# base of the others, which then were no ValueError any more.
CLIENT_ERRORS: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    NotImplementedError,
    OverflowError,
    getattr(vllm.exceptions, "VLLMClientError", vllm.exceptions.VLLMNotFoundError),
)

# A ValueError, too, in the versions before; vLLM's serving classes answer both with a 400.
GrammarRefused: type[Exception] = getattr(vllm.exceptions, "VLLMValidationError", ValueError)

# In older versions its name begins with OpenAI, as the others' do.
ServingTokenization: Any = getattr(tokenize_serving, "ServingTokenization", None) or getattr(
    tokenize_serving, "OpenAIServingTokenization", None
)

__all__ = [
    "CLIENT_ERRORS",
    "AsyncEngineArgs",
    "AsyncLLM",
    "BaseModelPath",
    "ChatCompletionRequest",
    "CompletionRequest",
    "DetokenizeRequest",
    "EngineArguments",
    "GrammarRefused",
    "LoRARequest",
    "OnlineRenderer",
    "OpenAIServingChat",
    "OpenAIServingCompletion",
    "OpenAIServingModels",
    "PoolingParams",
    "PrometheusStatLogger",
    "RequestOutputKind",
    "SamplingParams",
    "ServingTokenization",
    "StructuredOutputsParams",
    "TokenizeChatRequest",
    "TokenizeCompletionRequest",
    "accepted",
]


def accepted(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that this version's function knows; newer options are left out in older."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in names}


class EngineArguments(AsyncEngineArgs):
    """vLLM's engine arguments, also for weights that it quantizes while it loads them."""

    def create_model_config(self) -> ModelConfig:
        """The model's configuration, as our function of `hf_overrides` has changed it.

        vLLM 0.26 looks for how to quantize in `hf_overrides` too, and refuses a function there.
        """
        config = super().create_model_config()
        if config.quantization is not None and callable(config.hf_overrides):
            config.hf_overrides = {}
        return config
