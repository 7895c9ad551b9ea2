"""The files of a Hugging Face folder that say how to read and write text."""

import json
from pathlib import Path

from transformers import GenerationConfig

from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stages.checkpoint.tokenizer import CHAT_TEMPLATE, TinyTokenizer


def write_json(path: Path, value: JsonMap) -> None:
    """One configuration file."""
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


def read_json(path: Path) -> Json:
    """Returns a configuration that lies beside the code."""
    value: Json = json.loads(path.read_text(encoding="utf-8"))
    return value


def write_tokenizer(
    folder: Path,
    tokenizer: TinyTokenizer,
    settings: JsonMap | None = None,
    template: str = CHAT_TEMPLATE,
) -> None:
    """Tokenizer and chat template; `settings` win over the tokenizer's own configuration."""
    tokenizer.tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {**tokenizer.config, **(settings or {})})
    # transformers reads the first of the two, vLLM the second.
    write_json(folder / "chat_template.json", {"chat_template": template})
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def generation_config(tokenizer: TinyTokenizer) -> GenerationConfig:
    """Greedy; an answer ends with the turn or the text."""
    return GenerationConfig(
        eos_token_id=[tokenizer.id("<|im_end|>"), tokenizer.id("<|endoftext|>")],
        pad_token_id=tokenizer.id("<|endoftext|>"),
        do_sample=False,
    )
