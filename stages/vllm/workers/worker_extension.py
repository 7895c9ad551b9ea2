"""Our methods of vLLM's workers together with those of a user's class, as one class for vLLM.

vLLM mixes in one `worker_extension_cls`, which it looks for by a module and a name. The names that
`extended_by` makes are those of classes that this module makes when it is asked for them.
"""

from functools import cache

from omnistage.stages.vllm.workers.weights_worker import EXTENSION, WeightsWorker
from omnistage.stages.worker.extension import extension_of

MODULE = f"{__name__}."
DOT = "/"  # a dot of the user's path: vLLM cuts at the last dot


def extended_by(path: str | None) -> str:
    """The name that vLLM gets for a user's class, or for none. Raises ValueError for no class."""
    if extension_of(path) is None:
        return EXTENSION
    assert path is not None
    return MODULE + path.replace(".", DOT)


def user_class_of(name: str) -> type | None:
    """The user's class of such a name."""
    path = name.removeprefix(MODULE) if name.startswith(MODULE) else ""
    return extension_of(path.replace(DOT, "."))


@cache  # vLLM compares classes
def __getattr__(name: str) -> type:
    """A user's class and ours."""
    user = extension_of(name.replace(DOT, ".")) if DOT in name else None
    if user is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return type(f"Extended{user.__name__}", (user, WeightsWorker), {})
