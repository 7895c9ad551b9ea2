"""A LoRA adapter's folder, as peft writes it, checked before an engine gets it."""

import json
from collections.abc import Iterator
from pathlib import Path

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.device.stored_weights import Shapes, file_shapes
from omnistage.stages.worker.failure import RequestError

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."  # before every module's name in peft's files
HALVES = (".lora_A.", ".lora_B.")


def adapter_rank(path: str, max_rank: int, base: Shapes) -> int:
    """The adapter's rank; RequestError says what is wrong with its folder.

    `base` has the weights of the model that is served, or none if they are not known. What vLLM
    checks itself and survives, such as modules that it does not adapt, is left to it.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise refused(f"{path} is no folder of this machine")
    rank = _rank(path, _config(folder))
    if rank > max_rank:
        raise refused(f"{path} has rank {rank}; its engine's max_lora_rank is {max_rank}")
    if not (folder / WEIGHTS).is_file():
        raise refused(f"{path} has no {WEIGHTS}")
    try:
        shapes = file_shapes(folder / WEIGHTS)
    except (OSError, ValueError) as error:
        raise refused(f"{path}/{WEIGHTS} cannot be read: {error}") from error
    _check_shapes(path, shapes, base)
    return rank


def refused(problem: str) -> RequestError:
    """The refusal of a folder."""
    return RequestError(400, problem, param="path", code="invalid_value")


def _config(folder: Path) -> JsonMap:
    file = folder / CONFIG
    if not file.is_file():
        raise refused(f"{folder} has no {CONFIG}: it is no adapter as peft writes it")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise refused(f"{file} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise refused(f"{file} has no object in it")
    return config


def _rank(path: str, config: JsonMap) -> int:
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise refused(f"{path} is an adapter of the type {kind}, not LORA")
    if not config.get("target_modules"):
        raise refused(f"{path}/{CONFIG} has no target_modules")
    ranks = [config.get("r"), *(config.get("rank_pattern") or {}).values()]
    if not all(type(rank) is int and rank > 0 for rank in ranks):
        raise refused(f"{path}/{CONFIG} has no rank r of 1 or more")
    return max(ranks)


def _check_shapes(path: str, shapes: Shapes, base: Shapes) -> None:
    """Each module that is adapted is one of the model, and fits.

    vLLM copies a smaller matrix into the corner of a larger one, and passes over a layer that the
    model does not have.
    """
    modules = {name.rpartition(".")[0] for name in base}
    kinds = {_kind(module) for module in modules}
    for name, half, module in _halves(shapes):
        known = next((one for one in (module, f"thinker.{module}") if one in modules), None)
        if known is None and _kind(module) in kinds:
            raise refused(f"{path} adapts {module}, which the model does not have")
        weight = base.get(f"{known}.weight", ())
        if len(weight) != 2:
            continue
        given, wanted = (shapes[name][1], weight[1]) if half == 0 else (shapes[name][0], weight[0])
        if given != wanted:
            raise refused(f"{path} does not fit: {name} is {shapes[name]}, {module} is {weight}")


def _halves(shapes: Shapes) -> Iterator[tuple[str, int, str]]:
    """The matrices of all modules: name, which of the two, and its module in the model."""
    for name in shapes:
        for half, mark in enumerate(HALVES):
            if mark in name and len(shapes[name]) == 2:
                yield name, half, name.partition(mark)[0].removeprefix(PREFIX)


def _kind(module: str) -> str:
    return module.rpartition(".")[2]
