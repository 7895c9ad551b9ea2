"""LoRA adapters in a pipeline's parts, by Diffusers' own means: put in, taken out, switched."""

from pathlib import Path
from typing import Any

from diffusers.utils.peft_utils import set_weights_and_activate_adapters

from omnistage.stages.diffusion.merging.setting import Scales
from omnistage.stages.diffusion.merging.torch_modes import for_any_mode


class AdapterWeights:
    """`load` and `delete` are for between two steps, `put` for the thread that runs the part."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._active: dict[str, Scales] = {}

    def load(self, key: str, path: str, weight_name: str | None) -> None:
        """Put one in by peft's name for it. Raises whatever a file makes Diffusers or peft raise.

        Then nothing of it is left.
        """
        try:
            with for_any_mode():
                self._load(key, path, weight_name)
        except Exception:
            self.delete(key)
            raise
        finally:
            self._active.clear()  # a new one is active at once

    def _load(self, key: str, path: str, weight_name: str | None) -> None:
        where = Path(path)
        folder, file = (where, weight_name) if where.is_dir() else (where.parent, where.name)
        self._pipeline.load_lora_weights(
            str(folder),
            weight_name=file,
            adapter_name=key,
            use_safetensors=True,
            local_files_only=True,
        )
        if not any(key in keys for keys in self._pipeline.get_list_adapters().values()):
            raise ValueError("nothing in it belongs to a part of the pipeline")

    def delete(self, key: str) -> None:
        """Take one out, if it is in."""
        self._active.clear()
        loaded = self._pipeline.get_list_adapters()
        for part in loaded:  # peft would switch to another one instead of an active one
            AdapterWeights.put(self, part, ())
        if any(key in keys for keys in loaded.values()):
            with for_any_mode():
                self._pipeline.delete_adapters(key)

    def put(self, name: str, scales: Scales) -> None:
        """Let a part of the pipeline work with these adapters and no other."""
        part = getattr(self._pipeline, name, None)
        if part is None or not hasattr(part, "peft_config"):
            return
        wanted = self.of_part(name, scales)
        if self._active.get(name) != wanted:
            keys = [key for key, _ in wanted]
            set_weights_and_activate_adapters(part, keys, [scale for _, scale in wanted])
            self._active[name] = wanted

    def of_part(self, name: str, scales: Scales) -> Scales:
        """Returns the weights that change something in this part."""
        known = getattr(getattr(self._pipeline, name), "peft_config", {})
        return tuple((key, scale) for key, scale in scales if key in known)
