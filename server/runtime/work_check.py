"""Refuses what a stage could not make within its deadlines, before anything of it begins."""

from collections.abc import Iterable, Mapping
from typing import Any

from omnistage.server.common.errors import ApiError
from omnistage.server.runtime.request import GraphRequest
from omnistage.server.runtime.stage_link import StageLink
from omnistage.stages.messages.to_stage import Request

MAKES_IMAGES = {"image", "video"}


def drawn(message: Request) -> Mapping[str, Any]:
    """Return the fields of what a request has drawn; its prompt may not be written yet."""
    if message.image is not None:
        return {**message.image.fields, "prompt": ""}
    return message.fields


def check_work(request: GraphRequest, path: Iterable[StageLink]) -> None:
    """Raise ApiError for a request that a stage on its path does not make: too much, or a size."""
    if not MAKES_IMAGES & set(request.outputs):
        return
    given = request.tensors.get("image0")
    image = None if given is None else (given.shape[1], given.shape[0])
    body = drawn(request.message)
    for link in path:
        refusal = link.record.work.refusal(body, image)
        if refusal is not None:
            message = f"{refusal.param}: {refusal.message}"
            if not refusal.is_too_much:
                raise ApiError(400, message, param=refusal.param, code="invalid_value")
            raise ApiError(400, message, param=refusal.param, code="too_much_work")
