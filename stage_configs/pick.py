"""Which graph serves a model: by the model_type of its configuration, its size and the machine."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnistage.stage_configs.graph_file import GraphError

GRAPHS = Path(__file__).resolve().parent
PIPELINE_INDEX = "model_index.json"
SENTENCE_MODULES = "modules.json"  # of a sentence-transformers folder: how it pools
TINY_HIDDEN_SIZE = 256  # below this a checkpoint is one of ours: it runs anywhere
# Parts of a configuration that make a model speak, in the families that have a text model too.
SPEAKING = ("talker_config", "token2wav_config", "code2wav_config", "tts_config", "vocoder_config")
TEXT_ONLY = "text only: its speech stages are not supported"
MODEL_CURE = (
    "correct the path or the name; a model that is private or gated needs HF_TOKEN, and one that "
    "the hub cannot be asked for has to be in a folder"
)


@dataclass(frozen=True, slots=True)
class Picked:
    """A graph file, and what of the model it leaves out: a sentence, or nothing."""

    file: Path
    note: str = ""


def pick_graph(model: str, num_gpus: int) -> Picked:
    """The graph of a folder or a Hugging Face name; raises GraphError."""
    if _has_file(model, PIPELINE_INDEX):
        return Picked(GRAPHS / "diffusers.yaml")
    if _has_file(model, SENTENCE_MODULES):
        return Picked(GRAPHS / "vllm_embedding.yaml")
    config = _config(model)
    if config.get("model_type") != "qwen3_omni_moe":
        speaks = any(config.get(part) for part in (*SPEAKING, "enable_audio_output"))
        return Picked(GRAPHS / "vllm_text.yaml", TEXT_ONLY if speaks else "")
    return Picked(GRAPHS / _omni_graph(config, num_gpus))


def _omni_graph(config: Mapping[str, Any], num_gpus: int) -> str:
    text = config.get("thinker_config", {}).get("text_config", {})
    is_tiny = text.get("hidden_size", TINY_HIDDEN_SIZE) < TINY_HIDDEN_SIZE
    if is_tiny or not num_gpus:
        return "qwen3_omni_tiny.yaml"
    return "qwen3_omni.yaml" if num_gpus > 1 else "qwen3_omni_1gpu.yaml"


def _has_file(model: str, name: str) -> bool:
    """Whether a folder or a repository of the hub has a file."""
    if Path(model).is_dir():
        return (Path(model) / name).is_file()
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(model, name)
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
            said = " ".join(str(error).split())
            raise GraphError(
                f"{model!r} is neither a YAML file nor a folder, and the hub says: {said}; "
                f"{MODEL_CURE}"
            ) from error
    config: dict[str, Any] = json.loads(path.read_text())
    return config
