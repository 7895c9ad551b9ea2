"""Arguments of a user's pipeline class beside its modules."""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

from diffusers import DiffusionPipeline

OPTION = "custom_pipeline_args"
OURS = "dtype"  # what from_pretrained is given anyway, beside the folder


def check_custom_args(path: str | None, made: object, given: object) -> None:
    """Raise ValueError for arguments that the class of a dotted path does not take."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{OPTION}: must be a mapping of arguments, not {given!r}")
    if given and path is None:
        raise ValueError(f"{OPTION}: only with pipeline_class, whose arguments they are")
    allowed = _taken_by(made)
    for name in given:
        if name == OURS or (allowed is not None and name not in allowed):
            takes = ", ".join(sorted(allowed or ())) or "none"
            raise ValueError(f"{OPTION}.{name}: no argument for {path}; its arguments: {takes}")


def check_no_modules(given: Mapping[str, object], modules: Collection[str]) -> None:
    """Raise ValueError for arguments that would replace modules of the folder."""
    for name in given.keys() & set(modules):
        raise ValueError(f"{OPTION}.{name}: a module, which the model's folder names")


def _taken_by(made: Any) -> set[str] | None:
    """Names of arguments; None: any. Diffusers gives a class's own what its __init__ takes."""
    parameters = [*inspect.signature(made.__init__).parameters.values()][1:]
    if not _is_diffusers(made):
        own = [*inspect.signature(made.from_pretrained).parameters.values()][1:]
        if any(one.kind is one.VAR_KEYWORD for one in own):
            return None
        parameters = own
    plain = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return {one.name for one in parameters if one.kind in plain} - {OURS}


def _is_diffusers(made: Any) -> bool:
    """Returns whether its from_pretrained is Diffusers', which ignores what is not taken."""
    function = getattr(made.from_pretrained, "__func__", None)
    return function is DiffusionPipeline.from_pretrained.__func__
