"""Refuses requests for a model, or an output, that the server does not have."""

from collections.abc import Collection

from omnistage.server.errors import ApiError


def model_not_found(name: str, served: str) -> ApiError:
    """The refusal of a model that is not served."""
    message = f"The model {name!r} does not exist; this server has {served!r}."
    return ApiError(404, message, param="model", code="model_not_found")


def check_model(name: str | None, served: str, adapters: Collection[str] = ()) -> None:
    """Raise ApiError for a request that names another model, and no adapter."""
    if name is not None and name != served and name not in adapters:
        raise model_not_found(name, served)


def adapter_of(name: str | None, served: str) -> dict[str, str]:
    """What the body of the entry stage has of a checked name: that of an adapter, if it is one."""
    return {} if name is None or name == served else {"model": name}


def check_makes(output: str, outputs: Collection[str], called: str) -> None:
    """Raise ApiError if a graph with these outputs makes none that is `called` so."""
    if output not in outputs:
        makes = ", ".join(sorted(outputs))
        message = f"This model makes no {called}; it makes {makes}."
        raise ApiError(400, message, code="unsupported_model")
