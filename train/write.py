"""Assembles the trained parts into a checkpoint in Qwen3-Omni's published layout, in bfloat16."""

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch
from language.tokens import make_tokenizer
from loop import begin
from sizes import small_config
from transformers import Qwen3OmniMoeForConditionalGeneration

from omnistage.stages.checkpoint.files import generation_config, write_json, write_tokenizer
from omnistage.stages.checkpoint.processors import Processors
from omnistage.stages.qwen3_omni.checkpoint.processors import PATCH_SIZE, TINY

# Pictures are made as large as those that were trained on: 4 to 16 tokens.
PROCESSORS = Processors(TINY.processor_class, PATCH_SIZE, (4 * 1024, 16 * 1024), seconds=30)
# Where a training's state has the weights of its part: a module, and what their names begin with.
STATES = {
    "thinker": ("reader", "thinker."),
    "talker": ("speaker", "talker."),
    "code2wav": ("net", ""),
}
CARD = Path(__file__).with_name("card.md")


def part(path: Path, module: str, prefix: str) -> dict[str, Any]:
    """The weights of one module of a training's state, without a prefix."""
    weights: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)[module]
    return {name[len(prefix) :]: one for name, one in weights.items() if name.startswith(prefix)}


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(".cache/small/out"))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, help="has the parts that were not trained")
    parser.add_argument("--shard", default="60MB", help="the most of one file of weights")
    given = parser.parse_args()
    tokenizer = make_tokenizer()
    config = small_config(tokenizer)
    model = Qwen3OmniMoeForConditionalGeneration(config)
    out = given.out
    for name, (module, prefix) in STATES.items():
        state = out / f"{name}.pt"
        if given.checkpoint is not None and not state.exists():
            begin(getattr(model, name), name, given.checkpoint)
        else:
            getattr(model, name).load_state_dict(part(state, module, prefix))
    model.generation_config = generation_config(tokenizer)
    given.folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(given.folder, tokenizer)
    write_json(given.folder / "preprocessor_config.json", PROCESSORS.image_and_audio())
    write_json(given.folder / "video_preprocessor_config.json", PROCESSORS.video())
    shutil.copy(CARD, given.folder / "README.md")
    model.to(torch.bfloat16).save_pretrained(given.folder, max_shard_size=given.shard)


if __name__ == "__main__":
    main()
