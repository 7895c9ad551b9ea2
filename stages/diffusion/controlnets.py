"""ControlNets beside a pipeline whose folder has none: their folders, and the class of both.

Nothing of Diffusers is imported, and no weights are read.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omnistage.stage_configs.checkpoint import CONFIG, PIPELINE, Checkpoint
from omnistage.stages.diffusion.class_source import classes_named, method_of

OPTION = "controlnet"  # the engine argument, and the component
FORMS = ("ControlNet", "ControlNetUnion")  # in a class's name, before what it makes
MADE = re.compile(r"(?:PAG)?(?:Img2Img|Inpaint)?Pipeline$")
DENOISERS = ("unet", "transformer")
# Settings of a ControlNet that are its pipeline's denoiser's, too, where both have them.
SHARED = ("block_out_channels", "cross_attention_dim", "joint_attention_dim")


def controlnet_folders(given: object) -> tuple[Path, ...]:
    """Return the folders of the engine argument `controlnet`; raises ValueError."""
    listed = given if isinstance(given, list) else [given]
    if not listed or not all(isinstance(one, str) and one for one in listed):
        raise ValueError(f"{OPTION}: must be a folder, or a list of folders, not {given!r}")
    folders = tuple(Path(str(one)).expanduser() for one in listed)
    for folder in folders:
        if not kind_of(folder):
            raise ValueError(
                f"{OPTION}: {folder} is not the folder of a ControlNet: it has no {CONFIG} with "
                "the _class_name of one"
            )
    return folders


def controlled_name(checkpoint: Checkpoint, folders: Sequence[Path]) -> str:
    """Return the name of the class that is a checkpoint's pipeline with these ControlNets.

    Raises ValueError if there is none, or if a ControlNet does not fit.
    """
    index = checkpoint.json(PIPELINE)
    name = index.get("_class_name")
    if index.get(OPTION) is not None:
        raise ValueError(f"{OPTION}: the pipeline's folder has a ControlNet")
    taken = {one: _taken_by(one) for one in _forms(name)} if isinstance(name, str) else {}
    taken = {one: kinds for one, kinds in taken.items() if kinds}
    if not taken:
        raise ValueError(f"{OPTION}: {name} has no class with ControlNets in Diffusers")
    kinds = {folder: kind_of(folder) for folder in folders}
    for one, allowed in taken.items():
        if allowed.issuperset(kinds.values()):
            _check_number(one, allowed, len(folders))
            _check_settings(checkpoint, folders)
            return one
    own = sorted(kind for kinds in taken.values() for kind in kinds if _is_single(kind))
    folder = next((one for one, kind in kinds.items() if kind not in own), folders[-1])
    raise ValueError(
        f"{OPTION}: {folder} is a {kinds[folder]}; {name} takes {' or '.join(own)}"
        + (", not both" if kinds[folder] in own else "")
    )


def plain_family(family: str) -> str:
    """Return the family of pipelines without ControlNets, as Diffusers names both."""
    return re.sub("-controlnet(-union)?", "", family)


def kind_of(folder: Path) -> str:
    """Return the class of the ControlNet in a folder; empty if it is the folder of none."""
    config = Checkpoint(str(folder)).json(CONFIG) if folder.is_dir() else {}
    name = config.get("_class_name") if isinstance(config, dict) else None
    return name if isinstance(name, str) and "ControlNet" in name else ""


def _forms(name: str) -> Iterator[str]:
    """Yield the names of a class with ControlNets, as Diffusers' AutoPipeline makes them."""
    ending = MADE.search(name)
    if ending is not None:
        place = ending.start()
        yield from (f"{name[:place]}{form}{name[place:]}" for form in FORMS)


def _taken_by(name: str) -> frozenset[str]:
    """Return the names in the annotation of a class's ControlNet; none without one."""
    for made in classes_named(name):
        method = method_of(made, "__init__")
        parameters = [] if method is None else [*method.args.args, *method.args.kwonlyargs]
        for one in parameters:
            if one.arg == OPTION and one.annotation is not None:
                parts = ast.walk(one.annotation)
                return frozenset(part.id for part in parts if isinstance(part, ast.Name))
    return frozenset()


def _is_single(kind: str) -> bool:
    return "ControlNet" in kind and "Multi" not in kind


def _check_number(name: str, allowed: frozenset[str], number: int) -> None:
    if number > 1 and not allowed & {"list", "List"}:
        raise ValueError(f"{OPTION}: {name} takes one ControlNet; there are {number}")


def _check_settings(checkpoint: Checkpoint, folders: Sequence[Path]) -> None:
    """Raise ValueError for a ControlNet of another size of denoiser."""
    found = (checkpoint.json(f"{one}/{CONFIG}") for one in DENOISERS)
    own: Mapping[str, object] = next((one for one in found if one), {})
    for folder in folders:
        config = Checkpoint(str(folder)).json(CONFIG)
        for key in SHARED:
            wanted, has = own.get(key), config.get(key)
            if wanted is not None and has is not None and wanted != has:
                raise ValueError(
                    f"{OPTION}: {folder} is for another model: its {key} is {has}, the pipeline's "
                    f"is {wanted}"
                )
