"""Checks what an engine needs of its device at least, before vLLM starts it.

vLLM's own check is that of `gpu_memory_utilization`. Here only what certainly has to be there is
counted: the layers of the language model and a KV cache of a given size. Embeddings, heads and
towers of media may be shared or left out, so they are not.
"""

import copy
import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml
import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from transformers import AutoModel
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from omnistage.stages.device.memory import host_free_bytes
from omnistage.stages.device.start import Start
from omnistage.stages.device.stored_weights import stored_tensors

logger = logging.getLogger(__name__)

ADVICE = "lower kv_cache_memory_bytes, or take a smaller model or a device with more memory"
READ_WHOLE = ("auto", "safetensors", "dummy")  # load formats that keep each weight's size
NUMBER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class ModelPart:
    """The part of a checkpoint that an engine loads.

    `prefix`: of its weights' names. `without`: what is in names of those that it leaves out.
    """

    prefix: str = ""
    text_model: type | None = None  # of transformers, if AutoModel does not know it
    without: str = ""


WHOLE = ModelPart()


def check_fit(
    stage: str, config: VllmConfig, options: Mapping[str, object], part: ModelPart = WHOLE
) -> None:
    """Log what the engine wants and what is free; raises DoesNotFit if that cannot work.

    `options` are the engine arguments that `config` was made of.
    """
    model = config.model_config
    wanted = {
        "layers": layer_bytes(config, options, part),
        "KV cache": config.cache_config.kv_cache_memory_bytes or 0,
    }
    device = torch.device("cpu" if current_platform.is_cpu() else current_platform.device_type)
    Start(stage, device, model.dtype, _free_bytes(), ADVICE, wanted, model.seed).check()


def _free_bytes() -> int | None:
    """Returns the free bytes of the engine's first device, without a CUDA context; None if
    unknown.
    """
    if current_platform.is_cpu():
        return host_free_bytes()
    if not current_platform.is_cuda():
        return None
    try:
        pynvml.nvmlInit()
        try:
            number = current_platform.device_id_to_physical_device_id(0)
            memory = pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(number))
            return int(memory.free)
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, ValueError, RuntimeError):  # a slice of a GPU has no number
        return None


def layer_bytes(config: VllmConfig, options: Mapping[str, object], part: ModelPart) -> int:
    """Returns what the language model's layers take on one device; 0 if that is not certain."""
    model, parallel = config.model_config, config.parallel_config
    load_format = options.get("load_format", "auto")
    is_offloaded = any("offload" in name and value for name, value in options.items())
    is_quantised_here = options.get("quantization") is not None
    if is_offloaded or is_quantised_here or load_format not in READ_WHOLE:
        return 0
    if parallel.pipeline_parallel_size > 1:  # layers need not be shared equally
        return 0
    sizes = _empty_sizes(model, part) if load_format == "dummy" else _stored_sizes(model, part)
    num_layers = getattr(model.hf_text_config, "num_hidden_layers", 0)
    num_shares = parallel.tensor_parallel_size * parallel.data_parallel_size
    return largest_stack(sizes, num_layers) // num_shares


def largest_stack(sizes: Iterable[tuple[str, int]], num_layers: int) -> int:
    """The sum over the first `num_layers` modules of the numbered list that is largest so.

    Layers beyond that number, as those that predict several tokens, may stay unused.
    """
    stacks: dict[str, int] = defaultdict(int)
    for name, size in sizes:
        found = NUMBER.search(name)
        if found is not None and int(found[1]) < num_layers:
            stacks[name[: found.start()]] += size
    return max(stacks.values(), default=0)


def _stored_sizes(model: Any, part: ModelPart) -> Iterable[tuple[str, int]]:
    """Returns the sizes of weights on disk: vLLM itself fetches what is not there."""
    folder = folder_of(model)
    for tensor in stored_tensors(folder) if folder is not None else ():
        is_left_out = bool(part.without) and part.without in tensor.name
        if tensor.name.startswith(part.prefix) and not is_left_out:
            yield tensor.name, tensor.num_bytes(model.dtype)


def stored_bytes(model: object) -> int:
    """Returns what a model's weights take on disk; 0 if they are not there in safetensors."""
    folder = folder_of(model)
    return 0 if folder is None else sum(one.num_stored_bytes for one in stored_tensors(folder))


def folder_of(model: Any) -> Path | None:
    """Where its weights are, or None if it is one file, or not there yet."""
    if Path(model.model).is_dir():
        return Path(model.model)
    try:
        config = try_to_load_from_cache(model.model, "config.json", revision=model.revision)
    except HFValidationError:  # a file's path
        return None
    return Path(config).parent if isinstance(config, str) else None


def _empty_sizes(model: Any, part: ModelPart) -> Iterable[tuple[str, int]]:
    """Returns the sizes of a model made of its configuration alone, if transformers has its
    class.
    """
    make = part.text_model or AutoModel.from_config
    try:
        with torch.device("meta"):
            made = make(copy.deepcopy(model.hf_text_config))
    except Exception as error:  # noqa: BLE001 - whatever it is, vLLM may know the model
        logger.info("the layers are not counted: %s", error)
        return
    for name, weight in made.named_parameters():
        yield name, weight.numel() * model.dtype.itemsize
