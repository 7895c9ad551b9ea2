"""Which graph serves a model: by the model_type of its configuration, its size and the machine."""

import json
from pathlib import Path
from typing import Any

from omnistage.stage_configs.graph_file import GraphError

GRAPHS = Path(__file__).resolve().parent
PIPELINE_INDEX = "model_index.json"
TINY_HIDDEN_SIZE = 256  # below this a checkpoint is one of ours: it runs anywhere


def pick_graph(model: str, num_gpus: int) -> Path:
    """The graph file of a folder or a Hugging Face name; raises GraphError."""
    if _is_pipeline(model):
        return GRAPHS / "diffusers.yaml"
    config = _config(model)
    if config.get("model_type") != "qwen3_omni_moe":
        return GRAPHS / "vllm_text.yaml"
    text = config.get("thinker_config", {}).get("text_config", {})
    is_tiny = text.get("hidden_size", TINY_HIDDEN_SIZE) < TINY_HIDDEN_SIZE
    if is_tiny or not num_gpus:
        return GRAPHS / "qwen3_omni_tiny.yaml"
    return GRAPHS / ("qwen3_omni.yaml" if num_gpus > 1 else "qwen3_omni_1gpu.yaml")


def _is_pipeline(model: str) -> bool:
    """Whether it is a pipeline of Diffusers."""
    if Path(model).is_dir():
        return (Path(model) / PIPELINE_INDEX).is_file()
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(model, PIPELINE_INDEX)
    except (OSError, ValueError):  # it has none, or there is no such model: `_config` will say
        return False
    return True


def _config(model: str) -> dict[str, Any]:
    folder = Path(model)
    if folder.is_dir():
        path = folder / "config.json"
        if not path.is_file():
            raise GraphError(f"{folder} has no config.json: it is no Hugging Face model folder")
    else:
        from huggingface_hub import hf_hub_download

        try:
            path = Path(hf_hub_download(model, "config.json"))
        except (OSError, ValueError) as error:
            raise GraphError(
                f"{model!r} is neither a YAML file nor a folder, and the hub says: {error}"
            ) from error
    config: dict[str, Any] = json.loads(path.read_text())
    return config
