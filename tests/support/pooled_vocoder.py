"""Qwen3-Omni's vocoder as a model of vLLM's pooling runner: a request is a chunk with its context.

vLLM keeps keys and values for a request and nothing else, so the model has no state: a request's
prompt are the codes of a chunk of frames and of those before it, frame by frame, and what it pools
are the samples of the chunk alone. vLLM computes nothing of it: the model's forward hands the codes
on, and its pooler, which is told where each request ends, decodes them with our own layers.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from vllm import ModelRegistry

from omnistage.stages.qwen3_omni.vocoder import StreamingVocoder
from omnistage.stages.vllm.compat import AsyncLLM, PoolingParams
from omnistage.stages.vllm.engine.engine import configured
from omnistage.stages.vocoder.state import StreamBatch

ARCHITECTURE = "OmnistageCode2Wav"
CONTEXT = "num_context"
TASK = "plugin"


class Extension:
    """Nothing is added to vLLM's workers: they import this module, which makes the model known."""


class Code2Wav(nn.Module):
    """Reads the vocoder of the checkpoint itself, so vLLM has no parameters to load."""

    is_pooling_model = True
    attn_type = "attention_free"
    is_attention_free = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        has_weights = vllm_config.load_config.load_format != "dummy"
        model = vllm_config.model_config
        device = vllm_config.device_config.device
        vocoder = StreamingVocoder.from_checkpoint(
            model.model, device, model.dtype, num_slots=1, has_weights=has_weights
        )
        self.pooler = SamplePooler(vocoder)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The codes themselves [n, 1]."""
        return input_ids[:, None]

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Any = None,
    ) -> torch.Tensor:
        """The codes [n, 1] of all requests, one request after another."""
        return input_ids[:, None]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """None of those that vLLM has found are read."""
        return set()


class SamplePooler(nn.Module):
    """Decodes the requests of a step, those of equal length as one batch."""

    def __init__(self, vocoder: StreamingVocoder) -> None:
        super().__init__()
        self._vocoder = vocoder

    def get_supported_tasks(self) -> set[str]:
        """The task of models whose output is their own."""
        return {TASK}

    def get_pooling_updates(self, task: str) -> Any:
        """Nothing beyond the codes is needed."""
        from vllm.model_executor.layers.pooler import PoolingParamsUpdate

        return PoolingParamsUpdate()

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: Any) -> list[torch.Tensor]:
        """Of each request float32 [n + 1]: its samples, and its part of the decode's seconds."""
        lengths = pooling_metadata.get_pooling_cursor().num_scheduled_tokens_cpu.tolist()
        codes = hidden_states[:, 0].split(lengths)
        by_length: dict[int, list[int]] = defaultdict(list)
        for index, length in enumerate(lengths):
            by_length[length].append(index)
        pooled = [codes[0].new_empty(0)] * len(lengths)
        for indices in by_length.values():
            began_at = time.perf_counter()
            pcm = self._decode(torch.stack([codes[index] for index in indices]))
            share_s = (time.perf_counter() - began_at) / len(indices)
            for row, index in enumerate(indices):
                heard = pcm[row, self._num_dropped(pooling_metadata.pooling_params[index]) :]
                pooled[index] = torch.cat([heard, heard.new_tensor([share_s])])
        return pooled

    def _decode(self, codes: torch.Tensor) -> torch.Tensor:
        """Float32 [B, samples] of codes [B, frames * codebooks], each row from a stream's start."""
        codebooks = self._vocoder.codec.num_codebooks
        num_frames = codes.shape[1] // codebooks  # vLLM tries a step with prompts of any length
        frames = codes[:, : num_frames * codebooks].view(len(codes), num_frames, codebooks)
        rows = self._vocoder.slots.rows
        state = rows.new_zeros(len(codes), rows.shape[1])
        positions = torch.zeros(len(codes), dtype=torch.int64, device=codes.device)
        batch = StreamBatch(state, positions, state.new_zeros(len(codes), 1, 1))
        pcm = self._vocoder.forward(frames.transpose(1, 2).long(), batch)
        if pcm.device.type == "cuda":
            torch.cuda.synchronize()
        return pcm

    def _num_dropped(self, params: Any) -> int:
        """Samples of the context; of a stream's first chunk those that are no sound."""
        num_context = (params.extra_kwargs or {}).get(CONTEXT, 0)
        codec = self._vocoder.codec
        return num_context * codec.samples_per_frame or codec.num_held_back


def make_engine(model: str, num_codebooks: int, frames: int, more: Mapping[str, Any]) -> AsyncLLM:
    """An engine for prompts of up to so many frames; `more`: further engine arguments.

    Its process begins as those of our own stages.
    """
    arguments = {
        "model": model,
        "runner": "pooling",
        "skip_tokenizer_init": True,
        "hf_overrides": Overrides(frames * num_codebooks),
        "worker_extension_cls": f"{__name__}.{Extension.__name__}",
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
        "max_model_len": frames * num_codebooks,
        **more,
    }
    return AsyncLLM.from_vllm_config(configured(arguments, None), disable_log_stats=True)


class Overrides:
    """The vocoder's config in place of the whole model's; a class, since vLLM pickles it."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length

    def __call__(self, config: Any) -> Any:
        """The config that vLLM goes by."""
        vocoder = getattr(config, "code2wav_config", None)
        if vocoder is None:  # vLLM tries it with an empty one
            return config
        vocoder.architectures = [ARCHITECTURE]
        vocoder.vocab_size = vocoder.codebook_size
        vocoder.max_position_embeddings = self._max_length
        return vocoder


async def decode(
    engine: AsyncLLM, name: str, codes: Sequence[int], num_context: int
) -> tuple[torch.Tensor, float]:
    """The samples of a chunk, float32, and its part of the decode's seconds.

    `codes`: of its frames behind `num_context` others, one frame after another.
    """
    params = PoolingParams(task=TASK, extra_kwargs={CONTEXT: num_context})
    async for output in engine.encode({"prompt_token_ids": codes}, params, name):
        pooled = output.outputs.data
    return pooled[:-1], float(pooled[-1])


ModelRegistry.register_model(ARCHITECTURE, Code2Wav)
