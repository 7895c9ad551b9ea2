"""Modular pipelines of Diffusers as pipelines: a call with a signature, and its components."""

import copy
import inspect
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import diffusers
import torch
from diffusers import DiffusionPipeline, ModularPipeline, ModularPipelineBlocks
from diffusers.guiders import BaseGuidance
from torch.nn import Module

from omnistage.stage_configs.checkpoint import MODULAR_PIPELINE
from omnistage.stage_configs.json_types import Json
from omnistage.stages.diffusion.makes import GUIDANCE, PipelineSignature

BLOCKS_FILE = "modular_config.json"  # of blocks whose code is in the folder
OF_OBJECTS = "conditions"  # how inputs end that are objects of a class beside the pipeline
# What blocks make, by the names that other pipelines give it.
OUTPUTS = {name: name for name in ("images", "image", "audio", "audios", "sound")}
OUTPUTS["videos"] = "frames"


class ModularAdapter(DiffusionPipeline):  # type: ignore[misc]  # Diffusers has no types
    """A modular pipeline that is called as other pipelines are; each class has its own signature.

    Its components are attributes. A call runs the blocks on a copy that has them, so that two calls
    share neither scheduler nor guider. `guidance_scale` sets the guider's.
    """

    has_workflows: ClassVar[bool] = True  # one class makes images of words, of images, of masks
    pipeline_signature: ClassVar[PipelineSignature]
    modular_class: ClassVar[type[ModularPipeline]]
    blocks_class: ClassVar[type[ModularPipelineBlocks]]

    def __init__(self, modular: ModularPipeline) -> None:
        """`modular`: with its components loaded."""
        super().__init__()
        self.modular, self._internal_dict = modular, modular.config
        self.names = list(modular.components)
        self.__dict__ |= modular.components
        for name, part in self.components.items():
            if isinstance(part, BaseGuidance) and _changes_modules(part):
                kind = type(part).__name__
                raise ValueError(f"{name}: {kind} changes the denoiser for all of its requests")

    @classmethod
    def from_pretrained(cls, folder: Path, dtype: torch.dtype, **given: object) -> Self:
        """Load it without a network; `given` replaces components, and None leaves one out.

        Raises ValueError for a component that is neither in the folder nor in the hub's cache.
        """
        modular = _empty(cls.modular_class, cls.blocks_class, folder)
        loaded = {name: one for name, one in given.items() if one is not None}
        for name in modular.pretrained_component_names:
            spec = modular.get_component_spec(name)
            if name in given or spec.pretrained_model_name_or_path is None:
                continue
            try:
                loaded[name] = spec.load(local_files_only=True, dtype=dtype)
            except (OSError, ValueError) as error:
                place = f"{spec.pretrained_model_name_or_path}/{spec.subfolder or ''}"
                raise ValueError(
                    f"{folder}: its component {name} is in {place} and cannot be read there "
                    f"without a network ({error}); put it into {folder / name}"
                ) from error
        for one in loaded.values():
            if isinstance(one, Module):
                one.eval()
        modular.register_components(**loaded)
        return cls(modular)

    @property
    def components(self) -> dict[str, object]:
        """Return its components by name, also those that it has not."""
        return {name: getattr(self, name) for name in self.names}

    def to(self, device: torch.device) -> Self:
        """Move its modules."""
        for part in self.components.values():
            if isinstance(part, Module):
                part.to(device)
        return self

    def set_progress_bar_config(self, **settings: object) -> None:
        """Configure the progress bars of all blocks that have one."""
        for block in _blocks_in(self.modular._blocks):
            if hasattr(block, "set_progress_bar_config"):
                block.set_progress_bar_config(**settings)

    def run(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Return the results of a call by the names that other pipelines give them."""
        known = self.pipeline_signature.parameters
        for name in arguments:
            if name not in known:
                raise TypeError(f"{type(self).__name__} takes no argument {name}")
        given = dict(arguments)
        if given.get("mask_image") is not None:
            given["output_type"] = "pil"  # the only form that blocks lay over what was masked
        modular = copy.copy(self.modular)
        parts = {
            name: copy.deepcopy(part) if isinstance(part, BaseGuidance) else part
            for name, part in self.components.items()
        }
        vars(modular).update(parts)
        if GUIDANCE in given and GUIDANCE not in modular._blocks.input_names:
            modular.guider.guidance_scale = given.pop(GUIDANCE)
        state = modular(**given)
        names = modular._blocks.output_names
        made = {OUTPUTS[name]: state.get(name) for name in names if name in OUTPUTS}
        return {name: value for name, value in made.items() if value is not None}


def is_modular(folder: Path) -> bool:
    """Returns whether a folder is a modular pipeline's, and no other's."""
    return (folder / MODULAR_PIPELINE).is_file() and not (folder / "model_index.json").is_file()


def index_of_modular(folder: Path) -> Json:
    """Return the index of a modular pipeline's folder in the form of other pipelines'.

    It has the components that are in the folder, each with its library and class.
    """
    index = json.loads((folder / MODULAR_PIPELINE).read_text())
    made = {"_class_name": index.get("_class_name")}
    for name, entry in index.items():
        if isinstance(entry, list) and len(entry) == 3 and (folder / name).is_dir():
            library, kind = entry[:2]
            if library is None or kind is None:
                library, kind = entry[2].get("type_hint") or (None, None)
            if library is not None and kind is not None:
                made[name] = [library, kind]
    return made


def adapter_class(folder: Path) -> type[ModularAdapter]:
    """Return the class that a modular pipeline's folder is loaded as; raises ValueError."""
    blocks_file = folder / BLOCKS_FILE
    if blocks_file.is_file() and json.loads(blocks_file.read_text()).get("auto_map"):
        raise ValueError(f"{blocks_file}: its blocks are code of the folder, which is not run")
    index = json.loads((folder / MODULAR_PIPELINE).read_text())
    name, blocks = str(index.get("_class_name")), str(index.get("_blocks_class_name"))
    made: Any = getattr(diffusers, name, None)
    if not (isinstance(made, type) and issubclass(made, ModularPipeline)):
        raise ValueError(f"{folder}: {name} is no modular pipeline of Diffusers")
    return adapter_over(made, blocks)


@cache
def adapter_over(made: type[ModularPipeline], blocks: str = "") -> type[ModularAdapter]:
    """Return the class for a modular one; `blocks`: the name of its blocks, or its class's own."""
    found: Any = getattr(diffusers, blocks, None)
    is_own = isinstance(found, type) and issubclass(found, ModularPipelineBlocks)
    if not is_own or not getattr(found, "block_classes", None):
        found = getattr(diffusers, getattr(made, "default_blocks_name"))  # noqa: B009
    modular = made(found())
    parameters = list(_parameters(modular))
    names = frozenset(one.name for one in parameters)
    returns = frozenset(OUTPUTS[one] for one in modular._blocks.output_names if one in OUTPUTS)

    def call(self: ModularAdapter, **arguments: object) -> dict[str, object]:
        return self.run(arguments)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    call.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
    content = {
        "__call__": call,
        "modular_class": made,
        "blocks_class": found,
        "pipeline_signature": PipelineSignature(made.__name__, names, returns),
    }
    return type(made.__name__, (ModularAdapter,), content)


def _empty(
    made: type[ModularPipeline], blocks: type[ModularPipelineBlocks], folder: Path
) -> ModularPipeline:
    """Return a modular pipeline without the components that a folder or the hub has."""
    config = json.loads((folder / MODULAR_PIPELINE).read_text())
    return made(blocks(), str(folder), modular_config_dict=config)


def _parameters(modular: ModularPipeline) -> Iterator[inspect.Parameter]:
    """Yield the inputs of a modular pipeline's blocks as parameters, and its guider's scale."""
    seen, outputs = set(), modular._blocks.intermediate_output_names
    for one in modular._blocks.inputs:
        is_named = one.name is not None and one.name.isidentifier() and one.name not in seen
        if not is_named or one.name.endswith(OF_OBJECTS):
            continue
        seen.add(one.name)
        # One that a block makes is required by those blocks alone that come without it.
        is_required = one.required and one.name not in outputs
        default = inspect.Parameter.empty if is_required else one.default
        hint = inspect.Parameter.empty if one.type_hint is None else one.type_hint
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(one.name, kind, default=default, annotation=hint)
    scale = getattr(getattr(modular, "guider", None), GUIDANCE, None)
    if scale is not None and GUIDANCE not in seen:
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(GUIDANCE, kind, default=scale, annotation=float)


def _changes_modules(guider: BaseGuidance) -> bool:
    """Returns whether a guider hooks into the denoiser, which requests share."""
    return type(guider).prepare_models is not BaseGuidance.prepare_models


def _blocks_in(block: ModularPipelineBlocks) -> Iterator[ModularPipelineBlocks]:
    yield block
    for one in getattr(block, "sub_blocks", {}).values():
        yield from _blocks_in(one)
