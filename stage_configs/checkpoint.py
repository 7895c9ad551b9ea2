"""A model as a family looks at it: a folder, or a name on the hub."""

import json
from functools import cache
from pathlib import Path

from omnistage.stage_configs.json_types import Json

CONFIG = "config.json"
PIPELINE = "model_index.json"  # what a pipeline of Diffusers has in place of it
MODULAR_PIPELINE = "modular_model_index.json"  # and a modular one
PATH_STARTS = ("/", "./", "../", "~")  # of a folder, never of a name on the hub
TOKEN_CURE = "correct the name; a model that is private needs HF_TOKEN in the environment"


def looks_like_path(model: str) -> bool:
    """Returns whether a model is written as a path, so that the hub cannot have it."""
    return model in (".", "..") or model.startswith(PATH_STARTS)


class UnreadableCheckpoint(ValueError):
    """A file of the model is there and cannot be read."""


class Checkpoint:
    """The files of a model; of one on the hub each is fetched when it is first asked for."""

    def __init__(self, model: str) -> None:
        self.model = model
        self._refusals: dict[str, Exception] = {}
        self._is_cut_off: bool | None = None  # until the hub was asked
        self._find = cache(self._found)

    def has(self, name: str) -> bool:
        """Returns whether it has such a file."""
        return self._find(name) is not None

    def json(self, name: str) -> Json:
        """Returns what is in one of its JSON files; empty without the file."""
        path = self._find(name)
        if path is None:
            return {}
        try:
            content: Json = json.loads(path.read_text("utf-8"))
        except ValueError as error:
            raise UnreadableCheckpoint(f"{path} is no JSON: {error}") from error
        return content

    @property
    def config(self) -> Json:
        """Returns its configuration as transformers writes it; empty without one."""
        return self.json(CONFIG)

    @property
    def folder(self) -> Path | None:
        """Where its configuration is, with what else was fetched of it; None without one."""
        path = self._find(CONFIG)
        return None if path is None else path.parent

    def part(self, name: str) -> str:
        """Returns the path of one of its folders, which is fetched if the model is on the hub."""
        folder = Path(self.model)
        if not folder.is_dir():
            from huggingface_hub import snapshot_download

            folder = Path(snapshot_download(self.model, allow_patterns=f"{name}/*"))
        return str(folder / name)

    @property
    def problem(self) -> str:
        """Why no family knows it, as far as it is its own fault."""
        if self.has(CONFIG):
            return f"{self.model} is of no family that is installed"
        if Path(self.model).is_dir():
            return f"{self.model} has no {CONFIG}: it is not a Hugging Face model folder"
        if looks_like_path(self.model):
            return f"there is no folder {self.model}"
        return f"there is no folder {self.model!r} here, and {self._refusal}"

    @property
    def _refusal(self) -> str:
        """Returns what the hub answered, in a sentence that says what to do."""
        from huggingface_hub import errors

        match self._refusals[CONFIG]:
            case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
                return (
                    "the Hugging Face hub cannot be reached, nor is the model in its cache: "
                    "correct the path, or connect this machine"
                )
            case errors.GatedRepoError():
                return (
                    "the Hugging Face hub has the model for those alone who accepted its terms: "
                    "accept them on its page, and set HF_TOKEN"
                )
            case errors.RepositoryNotFoundError():
                return f"the Hugging Face hub has no model of that name: {TOKEN_CURE}"
            case errors.EntryNotFoundError():
                return f"the model of that name on the Hugging Face hub has no {CONFIG}"
            case errors.HFValidationError():
                return "it is not a valid name on the Hugging Face hub, such as OWNER/NAME"
            case other:
                return f"the Hugging Face hub refuses it: {' '.join(str(other).split())}"

    def _found(self, name: str) -> Path | None:
        folder = Path(self.model)
        if folder.is_dir():
            return path if (path := folder / name).is_file() else None
        if looks_like_path(self.model):
            return None
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import LocalEntryNotFoundError

        if self._is_cut_off is None:
            self._is_cut_off = _is_cut_off(self.model, name)
        try:
            return Path(hf_hub_download(self.model, name, local_files_only=self._is_cut_off))
        except (OSError, ValueError) as error:  # it has none, or there is no such model
            self._is_cut_off = self._is_cut_off or isinstance(error, LocalEntryNotFoundError)
            self._refusals[name] = error
            return None


def _is_cut_off(model: str, name: str) -> bool:
    """Asks the hub once whether it answers; a download repeats the question for half a minute."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(model, name))
    except (OSError, ValueError):  # an answer that refuses, or no valid name: the download says it
        return False
    except Exception:  # noqa: BLE001 - of the HTTP client that the hub's library has
        return True
    return False
