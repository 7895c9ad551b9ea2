"""Reads a pipeline: from a folder or the hub, with its weights or random ones, by any class."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diffusers
import torch
from diffusers import DiffusionPipeline

from omnistage.stage_configs.checkpoint import PIPELINE, Checkpoint
from omnistage.stage_configs.rules.parallel import IN_BLOCKS
from omnistage.stages.device.devices import device_of
from omnistage.stages.device.dtypes import dtype_of
from omnistage.stages.device.memory import free_bytes
from omnistage.stages.device.start import Start
from omnistage.stages.diffusion.controlnets import OPTION as CONTROLNET
from omnistage.stages.diffusion.loading.attention import (
    VLLM_FLASH_3,
    check_attention,
    set_attention,
)
from omnistage.stages.diffusion.loading.components import (
    Parts,
    Roles,
    compile_blocks,
    denoises,
    has_tiles,
    modules_in,
)
from omnistage.stages.diffusion.loading.controlnets import ControlNets, component_of
from omnistage.stages.diffusion.loading.custom_args import check_custom_args, check_no_modules
from omnistage.stages.diffusion.loading.dummy_components import (
    classes_in,
    empty_components,
    fill,
    index_of,
    num_bytes,
)
from omnistage.stages.diffusion.loading.engine_options import EngineOptions
from omnistage.stages.diffusion.loading.float8 import QUANTIZATIONS, quantize
from omnistage.stages.diffusion.loading.folders import (
    class_of,
    declared_classes,
    folder_of,
    others,
    sizes_of,
)
from omnistage.stages.diffusion.loading.modular import adapter_class, is_modular
from omnistage.stages.diffusion.loading.offload import OFFLOADS, Turns, offload
from omnistage.stages.diffusion.loading.tiling import Tiling, check_tiling, tile
from omnistage.stages.diffusion.makes import check_class, offer
from omnistage.stages.diffusion.pipeline import Pipeline
from omnistage.stages.messages.loading import Phase, tell_loading

LOAD_FORMATS = ("auto", "default", "dummy")
HOST = torch.device("cpu")
UNNAMED = "dit"  # a stage, where none is served
ADVICE = "set offload: sequential or layerwise, or take a device with more memory"


@dataclass(frozen=True, slots=True)
class LoadedPipeline:
    """A pipeline in its place, ready to run."""

    pipeline: Pipeline
    parts: Parts
    turns: Turns | None  # of modules that are not on the device together
    device: torch.device
    is_quantized: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """The denoiser's."""
        return next(next(iter(self.parts.dit.values())).parameters()).dtype


@dataclass(frozen=True, slots=True)
class LoadOptions(EngineOptions):
    """Engine arguments: what to load, as what, and where to put it."""

    dtype: str | None = None
    device: str | None = None
    load_format: str = "auto"
    pipeline_class: str | None = None
    custom_pipeline_args: Mapping[str, object] = field(default_factory=dict)
    controlnet: object = None  # a folder, or a list of them
    modules: Mapping[str, object] | None = None
    offload: str | None = None
    compile: bool = False
    quantization: str | None = None
    attention: str | None = None
    vae_tiling: Tiling = False
    parallel: Mapping[str, int] = field(default_factory=dict)  # checked as RankOptions'

    def __post_init__(self) -> None:
        for name, allowed in (
            ("load_format", LOAD_FORMATS),
            ("offload", (None, *OFFLOADS)),
            ("quantization", (None, *QUANTIZATIONS)),
        ):
            if getattr(self, name) not in allowed:
                names = ", ".join(one for one in allowed if one is not None)
                raise ValueError(f"{name} {getattr(self, name)!r} is none of {names}")
        if type(self.compile) is not bool:
            raise ValueError(f"compile: must be true or false, not {self.compile!r}")
        if self.compile and self.offload == "layerwise":
            raise ValueError("compile: not with offload: layerwise, which moves compiled blocks")
        if self.quantization is not None and self.offload is not None:
            raise ValueError("quantization: not with offload")
        if self.attention is not None:
            check_attention(self.attention)
        if self.attention == VLLM_FLASH_3:
            for way in IN_BLOCKS:
                if self.parallel.get(way, 1) > 1:
                    raise ValueError(f"attention: {VLLM_FLASH_3}: not with parallel.{way}")
        check_tiling(self.vae_tiling)
        if self.dtype is not None:
            dtype_of(self.dtype)
        device_of(self.device)
        Roles.of(self.modules or {})
        ControlNets.of(self.controlnet)
        made = class_of(self.pipeline_class)
        check_custom_args(self.pipeline_class, made, self.custom_pipeline_args)
        if self.pipeline_class is not None:
            check_class(made)

    def load(
        self, model: str, without: Collection[str] = (), stage: str = UNNAMED
    ) -> LoadedPipeline:
        """The pipeline on its device; raises ValueError if it does not fit or has no denoiser.

        `without` these of its components.
        """
        return self.place(self.read(model, device_of(self.device), without, stage))

    def load_denoisers(
        self, model: str, device: torch.device, stage: str = UNNAMED, has_tiled: bool = False
    ) -> LoadedPipeline:
        """The pipeline with nothing but its denoisers, on a device; ValueError if it has none.

        `has_tiled`: and what decodes in tiles.
        """
        pipeline = self.read(model, device, stage=stage, only_denoisers=True, has_tiled=has_tiled)
        parts = Parts.find(pipeline, self._roles.completed(type(pipeline)).only_dit)
        self._choose_attention(parts, device)
        if self.quantization is not None:
            quantize(parts, device)
        self._move(pipeline, parts, device)
        if self.compile:
            compile_blocks(parts, device, self.attention is None)
        return LoadedPipeline(pipeline, parts, None, device, self.quantization is not None)

    @property
    def shard(self) -> int:
        """In how many parts the denoisers' weights will be; until then they are on the host."""
        return self.parallel.get("shard", 1)

    @property
    def _roles(self) -> Roles:
        return Roles.of(self.modules or {})

    def denoisers_in(self, folder: Path) -> dict[str, type]:
        """The classes of the denoisers that a folder names: those declared, or those found."""
        declared = self._roles.completed(class_of(self.pipeline_class)).dit
        tops = None if declared is None else {name.partition(".")[0] for name in declared}
        return {
            name: made
            for name, made in self._classes_in(folder).items()
            if (denoises(made) if tops is None else name in tops)
        }

    def tiled_in(self, folder: Path) -> dict[str, type]:
        """The classes of a folder's components that can decode in tiles."""
        classes = self._classes_in(folder)
        return {name: made for name, made in classes.items() if has_tiles(made)}

    def _classes_in(self, folder: Path) -> dict[str, type]:
        """The classes of a folder's components: those that its pipeline's class declares first."""
        return classes_in(folder, declared_classes(self.class_in(folder)))

    def place(self, pipeline: Pipeline) -> LoadedPipeline:
        """A pipeline that was read, on its device."""
        device = device_of(self.device)
        parts = Parts.find(pipeline, self._roles)
        tile(pipeline, self.vae_tiling)
        self._choose_attention(parts, device)
        turns = None
        if self.quantization is not None:
            quantize(parts, device)
        if self.offload is not None:
            turns = offload(pipeline, parts, self.offload, device)
        else:
            self._move(pipeline, parts, device)
        if self.compile:
            compile_blocks(parts, device, self.attention is None)
        if isinstance(pipeline, DiffusionPipeline):
            pipeline.set_progress_bar_config(disable=True)
        return LoadedPipeline(pipeline, parts, turns, device, self.quantization is not None)

    def _choose_attention(self, parts: Parts, device: torch.device) -> None:
        if self.attention is not None:
            set_attention(parts, self.attention, device)

    def _move(self, pipeline: Pipeline, parts: Parts, device: torch.device) -> None:
        if self.shard == 1:
            pipeline.to(device)
            return
        for _, module in modules_in(pipeline):
            if not any(module is denoiser for denoiser in parts.dit.values()):
                module.to(device)

    def read(
        self,
        model: str,
        device: torch.device = HOST,
        without: Collection[str] = (),
        stage: str = UNNAMED,
        only_denoisers: bool = False,
        has_tiled: bool = False,
    ) -> Pipeline:
        """The pipeline of a folder, on the host; random weights on the device if all fit there.

        Their values are made on the options' device, wherever they go.
        """
        folder = self.folder_of(model)
        if self.pipeline_class is None:
            offer(Checkpoint(str(folder)), {CONTROLNET: self.controlnet})
        classes = self._classes_in(folder)
        check_no_modules(self.custom_pipeline_args, classes)
        left_out, nets = dict.fromkeys(without), ControlNets.of(self.controlnet)
        if only_denoisers:
            used = self.denoisers_in(folder) | (self.tiled_in(folder) if has_tiled else {})
            names = (*classes, *nets.names)
            left_out = {name: None for name in names if name not in used}
        maker = device_of(self.device) if device == HOST else device
        usual = "float32" if maker.type == "cpu" else "bfloat16"
        dtype = dtype_of(self.dtype or usual)
        is_offloaded = self.offload is not None
        if self.load_format != "dummy":
            sizes = others(left_out, sizes_of(folder, dtype) | nets.sizes(dtype))
            self._check_fit(stage, device, dtype, self._placed(sizes, folder))
            tell_loading(Phase.READING, total_bytes=sum(sizes.values()))
            return self._made(folder, dtype, {**nets.read(dtype), **left_out})
        if not index_of(folder):
            raise ValueError(f"load_format: dummy: {folder} has no {PIPELINE} with the components")
        declared = declared_classes(self.class_in(folder))
        empty = empty_components(folder, dtype, declared) | nets.empty(dtype)
        components = others(left_out, empty)
        sizes = {name: num_bytes(one) for name, one in components.items()}
        self._check_fit(stage, device, dtype, self._placed(sizes, folder))
        waiting = self.denoisers_in(folder) if self.shard > 1 else ()
        for name, module in components.items():
            fill(module, maker, HOST if is_offloaded or name in waiting else device)
        filled = components.get(CONTROLNET)
        components |= component_of(() if filled is None else filled.children())
        return self._made(folder, dtype, {**components, **left_out})

    def _made(self, folder: Path, dtype: torch.dtype, components: Mapping[str, object]) -> Pipeline:
        """Return the pipeline of a folder with these components in place of the folder's."""
        given = {**components, **self.custom_pipeline_args}
        made: Pipeline = self.class_in(folder).from_pretrained(folder, dtype=dtype, **given)
        return made

    def _placed(self, sizes: Mapping[str, int], folder: Path) -> dict[str, int]:
        """The bytes that will be on the device in the end."""
        denoisers = self.denoisers_in(folder) if self.shard > 1 else ()
        return {
            name: -(-size // self.shard) if name in denoisers else size
            for name, size in sizes.items()
        }

    def class_in(self, folder: Path) -> Any:
        """The pipeline class that a folder is loaded as."""
        made = class_of(self.pipeline_class)
        if made is not DiffusionPipeline:
            return made
        if is_modular(folder):
            return adapter_class(folder)
        name = str(index_of(folder).get("_class_name"))
        nets = ControlNets.of(self.controlnet)
        return getattr(diffusers, nets.class_beside(folder) if nets.folders else name, made)

    def folder_of(self, model: str) -> Path:
        """The folder of a pipeline, fetched from the hub if it is none."""
        return folder_of(model, has_weights=self.load_format != "dummy")

    def _check_fit(
        self, stage: str, device: torch.device, dtype: torch.dtype, sizes: Mapping[str, int]
    ) -> None:
        start = Start(stage, device, dtype, free_bytes(device), ADVICE, sizes)
        start.check(takes_turns=self.offload is not None)
