"""The pipeline classes of the installed Diffusers, and the classes of their components."""

import inspect
import sys
import typing
import warnings
from collections.abc import Iterator
from typing import Any

warnings.filterwarnings("ignore")
import diffusers  # noqa: E402
from diffusers import ModularPipeline  # noqa: E402

from omnistage.stages.diffusion.loading.modular import ModularAdapter, adapter_over  # noqa: E402


def component_classes(made: Any) -> dict[str, list[type]]:
    """Return the components of a pipeline class with the classes of their annotations."""
    if issubclass(made, ModularAdapter):
        blocks = made.blocks_class()
        return {one.name: list(_classes_of(one.type_hint)) for one in blocks.expected_components}
    try:
        hints = typing.get_type_hints(made.__init__)
    except (NameError, TypeError):  # an annotation of something that is not imported
        hints = {}
    namespace = {**vars(sys.modules[made.__module__]), **vars(diffusers.models)}
    found = {}
    for name, one in inspect.signature(made.__init__).parameters.items():
        hint = hints.get(name, one.annotation)
        hint = namespace.get(hint) if isinstance(hint, str) else hint
        if name != "self":
            found[name] = list(_classes_of(hint))
    return found


def _classes_of(annotation: object) -> Iterator[type]:
    inner = [one for part in typing.get_args(annotation) for one in _classes_of(part)]
    yield from [annotation] if isinstance(annotation, type) and not inner else inner


def pipeline_classes() -> list[Any]:
    """Return the public pipeline classes that are not deprecated, by name."""
    names = sorted(name for name in dir(diffusers) if name.endswith("Pipeline"))
    found = [getattr(diffusers, name) for name in names if name != "ModularPipeline"]
    known = [one for one in found if ".deprecated." not in one.__module__]
    return [adapter_over(one) if issubclass(one, ModularPipeline) else one for one in known]
