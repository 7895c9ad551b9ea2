"""Qwen-Image's denoiser as a model of vLLM's pooling runner: a request is one step of one image.

vLLM keeps nothing of a request for the next, so each step brings all that its forward reads, as
embeddings of a prompt: the rows of the text and, in rows of the same width, the latents. vLLM hands
them on to the pooler, which knows where requests end and calls Diffusers' module, once for all
requests of the same sizes. What is pooled is the predicted noise.
"""

import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from diffusers import QwenImageTransformer2DModel
from transformers import LlamaConfig
from vllm import ModelRegistry
from vllm.model_executor.layers.pooler import PoolingParamsUpdate

from omnistage.stages.vllm.compat import AsyncLLM, PoolingParams
from omnistage.stages.vllm.engine.engine import configured

ARCHITECTURE, TASK = "OmnistageDenoiser", "plugin"
CHANNELS, SEED, MAX_ROWS = 64, 7, 8192
REAL, SMALL = (24, 3584), (2, 128)  # heads, and width of the text


def make_denoiser(layers: int, heads: int, width: int, dtype: torch.dtype, device: Any) -> Any:
    """Random weights, the same in every process; the real widths but for what is given."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        sizes = {"num_layers": layers, "num_attention_heads": heads, "joint_attention_dim": width}
        denoiser = QwenImageTransformer2DModel(in_channels=CHANNELS, **sizes)
    return denoiser.to(device, dtype).eval().requires_grad_(False)


class Extension:
    """Nothing is added to vLLM's workers: they import this module, which makes the model known."""


class PooledDenoiser(torch.nn.Module):
    """The model that vLLM loads: its forward hands the rows of all requests on."""

    is_pooling_model = is_attention_free = True
    attn_type = "attention_free"

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__()
        model, device = vllm_config.model_config, vllm_config.device_config.device
        self._width = model.get_hidden_size()
        layers, heads, width = model.hf_config.denoiser
        denoiser = make_denoiser(layers, heads, width, model.dtype, device)
        self.pooler = NoisePooler(denoiser)

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Rows for tokens, which only vLLM's own trial has."""
        return torch.zeros(len(input_ids), self._width, device=input_ids.device)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The rows."""
        return self.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Nothing is read."""
        return set()


class NoisePooler(torch.nn.Module):
    """Calls the denoiser for the requests of a step of vLLM's."""

    def __init__(self, denoiser: Any) -> None:
        super().__init__()
        self._dtype = denoiser.dtype
        self._call = denoiser.__call__  # no part of this module: vLLM draws weights of its own

    def get_supported_tasks(self) -> set[str]:
        """The task of models whose output is their own."""
        return {TASK}

    def get_pooling_updates(self, task: str) -> PoolingParamsUpdate:
        """No token ids are needed."""
        return PoolingParamsUpdate()

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: Any) -> list[torch.Tensor]:
        """Float32 [n + 2] of each: its noise, its forward's seconds, how many shared that."""
        lengths = pooling_metadata.get_pooling_cursor().num_scheduled_tokens_cpu.tolist()
        rows = hidden_states.split(lengths)
        given = [one.extra_kwargs for one in pooling_metadata.pooling_params]
        alike: dict[tuple[int, int], list[int]] = defaultdict(list)
        for index, step in enumerate(given):
            if step is not None:  # one without is vLLM's trial of a start
                alike[step["text"], step["side"]].append(index)
        pooled = [hidden_states.new_empty(0)] * len(lengths)
        for (text, side), indices in alike.items():
            began_at = time.perf_counter()
            times = [given[index]["timestep"] for index in indices]
            noise = self._noise(torch.stack([rows[index] for index in indices]), text, side, times)
            if noise.is_cuda:
                torch.cuda.synchronize()
            told = noise.new_tensor([time.perf_counter() - began_at, len(indices)])
            for row, index in enumerate(indices):
                pooled[index] = torch.cat([noise[row].ravel(), told])
        return pooled

    def _noise(self, rows: torch.Tensor, text: int, side: int, times: list[float]) -> torch.Tensor:
        rows = rows.to(self._dtype)
        noise: torch.Tensor = self._call(
            hidden_states=rows[:, text:]
            .flatten(1)[:, : side * side * CHANNELS]
            .unflatten(1, (side * side, CHANNELS)),
            encoder_hidden_states=rows[:, :text],
            timestep=rows.new_tensor(times),
            img_shapes=[[(1, side, side)]] * len(rows),
            return_dict=False,
        )[0]
        return noise.float()


def make_engine(folder: Path, sizes: tuple[int, int, int], **more: Any) -> AsyncLLM:
    """An engine of a denoiser of so many layers, heads and width; `folder` is for its config."""
    config = LlamaConfig(
        architectures=[ARCHITECTURE],
        vocab_size=32,
        hidden_size=sizes[2],
        num_attention_heads=sizes[2] // 8,
        num_hidden_layers=1,
        max_position_embeddings=MAX_ROWS,
        denoiser=sizes,
    )
    config.save_pretrained(folder)
    arguments = {
        "model": str(folder),
        "runner": "pooling",
        "skip_tokenizer_init": True,
        "worker_extension_cls": f"{__name__}.{Extension.__name__}",
        "load_format": "dummy",
        "enable_prompt_embeds": True,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "enable_chunked_prefill": False,
        "max_model_len": MAX_ROWS,
        **more,
    }
    return AsyncLLM.from_vllm_config(configured(arguments, None), disable_log_stats=True)


async def predict(
    engine: AsyncLLM, name: str, text: torch.Tensor, latents: torch.Tensor, timestep: float
) -> tuple[torch.Tensor, float, int]:
    """The noise of one step, its forward's seconds, and how many steps shared that."""
    padded = torch.nn.functional.pad(latents.ravel(), (0, -latents.numel() % text.shape[1]))
    rows = torch.cat([text, padded.view(-1, text.shape[1])]).cpu()
    step = {"text": len(text), "side": round(len(latents) ** 0.5), "timestep": timestep}
    params = PoolingParams(task=TASK, extra_kwargs=step)
    async for output in engine.encode({"prompt_embeds": rows}, params, name):
        pooled = output.outputs.data
    return pooled[:-2].view(len(latents), -1).to(latents), float(pooled[-2]), int(pooled[-1])


ModelRegistry.register_model(ARCHITECTURE, PooledDenoiser)
