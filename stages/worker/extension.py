"""A user's methods for workers: the engine argument `worker_extension_cls`, for /admin/rpc."""

import json
from importlib import import_module
from typing import Any

import msgspec

from omnistage.stages.worker.failure import RequestError

ARGUMENT = "worker_extension_cls"
NO_EXTENSION = f"its engine has no {ARGUMENT}"
MAX_RESULT_BYTES = 1 << 20  # of JSON


def extension_of(path: str | None) -> type | None:
    """The class of a dotted path, which has more methods for workers. Raises ValueError."""
    if not path:
        return None
    module, _, name = path.rpartition(".") if isinstance(path, str) else ("", "", "")
    if not module:
        raise ValueError(f"{ARGUMENT}: must be like my.module.Class, not {path!r}")
    try:
        found: Any = getattr(import_module(module), name)
    except Exception as error:  # whatever a user's module raises
        raise ValueError(f"{ARGUMENT}: {type(error).__name__}: {error}") from error
    if not isinstance(found, type):
        raise ValueError(f"{ARGUMENT}: {path} is no class")
    return found


def methods_of(extension: type | None) -> list[str]:
    """Names of the public methods of an extension and of the classes that it is made of."""
    classes = () if extension is None else extension.__mro__[:-1]
    found = {name: value for one in reversed(classes) for name, value in vars(one).items()}
    return [name for name, value in found.items() if name[0] != "_" and callable(value)]


def check_method(method: str, extension: type | None) -> None:
    """Raise RequestError for what is no method of the extension."""
    known = methods_of(extension)
    if method not in known:
        allowed = ", ".join(known) or "none"
        message = f"no method {method!r} of the extension; it has {allowed}"
        raise RequestError(400, message, param="method", code="invalid_value")


def plain_result(result: Any) -> Any:
    """A method's result as JSON has it. Raises ValueError for what is no JSON, or is too much."""
    try:
        text = json.dumps(result, allow_nan=False)
        plain = json.loads(text)
        msgspec.msgpack.encode(plain)  # as it travels: UTF-8, and integers of 64 bits
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"its result is no JSON: {error}") from error
    if len(text) > MAX_RESULT_BYTES:
        raise ValueError(f"its result has {len(text)} bytes of JSON; at most {MAX_RESULT_BYTES}")
    return plain


def call_failed(problem: str) -> RequestError:
    """The answer to a call whose method raised, or gave what cannot be sent."""
    return RequestError(500, problem, code="rpc_failed")
