"""A model as a family looks at it: a folder, or a name on the hub."""

import json
from functools import cache
from pathlib import Path
from typing import Any

CONFIG = "config.json"
PIPELINE = "model_index.json"  # what a pipeline of Diffusers has in place of it
MODEL_CURE = (
    "correct the path or the name; a model that is private or gated needs HF_TOKEN, and one that "
    "the hub cannot be asked for has to be in a folder"
)


class UnreadableCheckpoint(ValueError):
    """A file of the model is there and cannot be read."""


class Checkpoint:
    """The files of a model; of one on the hub each is fetched when it is first asked for."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._refusals: dict[str, str] = {}
        self._find = cache(self._found)

    def has(self, name: str) -> bool:
        """Whether it has such a file."""
        return self._find(name) is not None

    def json(self, name: str) -> dict[str, Any]:
        """What is in one of its JSON files; empty without the file."""
        path = self._find(name)
        if path is None:
            return {}
        try:
            content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise UnreadableCheckpoint(f"{path} is no JSON: {error}") from error
        return content

    @property
    def config(self) -> dict[str, Any]:
        """Its configuration as transformers writes it; empty without one."""
        return self.json(CONFIG)

    @property
    def folder(self) -> Path | None:
        """Where its configuration is, with what else was fetched of it; None without one."""
        path = self._find(CONFIG)
        return None if path is None else path.parent

    @property
    def problem(self) -> str:
        """Why no family knows it, as far as it is its own fault."""
        if self.has(CONFIG):
            return f"{self.model} is of no family that is installed"
        if Path(self.model).is_dir():
            return f"{self.model} has no {CONFIG}: it is no Hugging Face model folder"
        return (
            f"{self.model!r} is neither a YAML file nor a folder, and the hub says: "
            f"{self._refusals[CONFIG]}; {MODEL_CURE}"
        )

    def _found(self, name: str) -> Path | None:
        folder = Path(self.model)
        if folder.is_dir():
            return path if (path := folder / name).is_file() else None
        from huggingface_hub import hf_hub_download

        try:
            return Path(hf_hub_download(self.model, name))
        except (OSError, ValueError) as error:  # it has none, or there is no such model
            self._refusals[name] = " ".join(str(error).split())
            return None
