"""Other weights for a pipeline, read and checked before anything is changed.

They come from a folder: a pipeline's own kind, or one with nothing but tensors, whose names begin
with the part that they are for (`transformer.proj_out.weight`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from omnistage.stages.device.stored_weights import stored_files
from omnistage.stages.diffusion.loading.dummy_components import INDEX
from omnistage.stages.diffusion.loading.modular import is_modular
from omnistage.stages.diffusion.pipeline import HasComponents
from omnistage.stages.worker.failure import RequestError

WRAPPED = ".base_layer"  # peft puts a layer that has an adapter below this name
ADAPTER = "lora_"

Tensors = Mapping[str, torch.Tensor]  # of one part, by name


@dataclass(frozen=True, slots=True)
class Expected:
    """The weights that a part must get: the shape of each name, and names of one tensor."""

    shapes: Mapping[str, tuple[int, ...]]
    first_names: Mapping[str, str]  # of each name the first one of its tensor

    @classmethod
    def of(cls, part: torch.nn.Module) -> "Expected":
        """Returns the expectations of the part as it is now."""
        stored = list(stored_of(part))
        firsts: dict[int, str] = {}
        for name, tensor in stored:
            firsts.setdefault(id(tensor), name)
        shapes = {name: tuple(tensor.shape) for name, tensor in stored}
        return cls(shapes, {name: firsts[id(tensor)] for name, tensor in stored})

    def check(self, part: str, fresh: Tensors) -> None:
        """Raise RequestError unless they are all of the part's, and nothing else."""
        for name, tensor in fresh.items():
            if name not in self.shapes:
                raise misfit(f"there is no {part}.{name}")
            if tuple(tensor.shape) != self.shapes[name]:
                shapes = f"{tuple(tensor.shape)}, not {self.shapes[name]}"
                raise misfit(f"{part}.{name} is {shapes}")
        given = {self.first_names[name] for name in fresh}
        for name in self.first_names.values():
            if name not in given:
                raise misfit(f"it has no {part}.{name}")


class OtherWeights:
    """Reads them. `read` makes a pipeline of a folder, or of the stage's own, on the host.

    `is_whole`: every part of the pipeline is here, so that a name of no part is wrong.
    """

    def __init__(
        self,
        parts: Mapping[str, torch.nn.Module],
        read: Callable[[str | None], HasComponents],
        is_whole: bool,
    ) -> None:
        self._expected = {name: Expected.of(part) for name, part in parts.items()}
        self._read = read
        self._is_whole = is_whole

    def of(self, folder: str | None) -> Mapping[str, Tensors]:
        """Returns a folder's weights by part; of a pipeline all parts. Raises RequestError."""
        if folder is not None and has_only_tensors(Path(folder)):
            found: Mapping[str, Tensors] = self._named(Path(folder))
        else:
            made = modules_of(self._read_pipeline(folder))
            parts = {name: made.get(name) for name in self._expected}
            found = {
                name: {} if part is None else dict(stored_of(part)) for name, part in parts.items()
            }
        for part, tensors in found.items():
            self._expected[part].check(part, tensors)
        return found

    def _read_pipeline(self, folder: str | None) -> HasComponents:
        try:
            return self._read(folder)
        except Exception as error:
            if folder is None:
                raise
            raise _unreadable(folder, error) from error

    def _named(self, folder: Path) -> Mapping[str, Tensors]:
        found: dict[str, dict[str, torch.Tensor]] = {}
        for whole_name, tensor in self._tensors_in(folder):
            part, _, name = whole_name.partition(".")
            found.setdefault(part, {})[name] = tensor
        if not found and self._is_whole:
            raise misfit("nothing is in it")
        return found

    def _tensors_in(self, folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
        try:
            for path in stored_files(folder):
                with safe_open(path, framework="pt") as opened:
                    wanted = [name for name in opened.keys() if self._is_here(name)]  # noqa: SIM118
                    yield from ((name, opened.get_tensor(name)) for name in wanted)
        except (OSError, SafetensorError) as error:
            raise _unreadable(str(folder), error) from error

    def _is_here(self, whole_name: str) -> bool:
        is_here = whole_name.partition(".")[0] in self._expected
        if self._is_whole and not is_here:
            allowed = ", ".join(self._expected)
            raise misfit(f"{whole_name} is of no part; there are {allowed}")
        return is_here


def has_only_tensors(folder: Path) -> bool:
    """Returns whether it has files of tensors of its own, and is no pipeline's."""
    is_pipeline = (folder / INDEX).is_file() or is_modular(folder)
    return not is_pipeline and bool(stored_files(folder))


def modules_of(pipeline: HasComponents) -> dict[str, torch.nn.Module]:
    """The components that have weights."""
    return {
        name: part
        for name, part in pipeline.components.items()
        if isinstance(part, torch.nn.Module) and any(True for _ in part.parameters())
    }


def stored_of(part: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Returns what a checkpoint has of a part by the names there, without adapters."""
    for path, tensor in part.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor) and ADAPTER not in path:
            yield path.replace(WRAPPED, ""), tensor


def misfit(problem: str) -> RequestError:
    """Returns what does not fit."""
    return _refused(f"the folder does not fit: {problem}")


def _unreadable(folder: str, error: Exception) -> RequestError:
    return _refused(f"{folder} cannot be read: {error}")


def _refused(message: str) -> RequestError:
    return RequestError(400, message, param="path", code="invalid_value")
