"""Options of talkers, the ids that end their engines' answers."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Self

import msgspec
import vllm.envs
from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from omnistage.stage_configs.json_types import JsonMap


def generation_config_folder(codec_eos: int) -> Path:
    """A folder with a talker's generation config; the model's own speaks of its language model.

    vLLM takes its EOS for every engine's, and with `min_tokens` writes to the logits at that id,
    which the talker's logits do not have. The folder is the same at every start, because its name
    is part of the key under which vLLM keeps compiled code.
    """
    folder = Path(vllm.envs.VLLM_CACHE_ROOT) / "omnistage" / f"talker-eos-{codec_eos}"
    if not (folder / GENERATION_CONFIG_NAME).exists():
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=folder.parent) as made:  # another start may read meanwhile
            GenerationConfig(eos_token_id=codec_eos).save_pretrained(made)
            (Path(made) / GENERATION_CONFIG_NAME).replace(folder / GENERATION_CONFIG_NAME)
    return folder


class TalkerOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stage's `options`; they are as in BridgeConfig."""

    prefill_part: Annotated[int, msgspec.Meta(ge=0)] | None = None
    check_ranks: bool = False

    @classmethod
    def of(cls, options: JsonMap) -> Self:
        """From the graph; raises ValueError for what the talker does not know."""
        try:
            return msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            raise ValueError(f"options of the talker: {error}") from None

    def check(self, engine: Mapping[str, object]) -> None:
        """Raise ValueError for what does not go with the engine's arguments."""
        if self.check_ranks and (engine.get("tensor_parallel_size") or 1) == 1:
            raise ValueError(
                "check_ranks: there is one rank; the engine has no tensor_parallel_size"
            )


class VoiceOptions(TalkerOptions, frozen=True, forbid_unknown_fields=True):
    """The options of a talker whose voices are made from sounds.

    `voices`: a folder that keeps what was made of reference sounds.
    """

    voices: str = ""
