"""The fields of a request, as Python gives them."""

import asyncio
import warnings
from collections.abc import Sequence

from omnistage.server.common.fields import warning_headers
from omnistage.server.common.json_text import check_values
from omnistage.server.offline.content import has_objects, messages_of
from omnistage.stage_configs.json_types import JsonMap


async def said(fields: JsonMap) -> dict[str, object]:
    """The body that says so, with its media as URLs; fields that are None are left out.

    Raises ApiError.
    """
    body = {name: value for name, value in fields.items() if value is not None}
    if "messages" in body:
        given = body["messages"]
        is_slow = has_objects(given)
        body["messages"] = (
            await asyncio.to_thread(messages_of, given) if is_slow else messages_of(given)
        )
    check_values(body)
    return body


def warn_of(unknown: Sequence[str]) -> None:
    """Warn of fields without effect, in the server's words."""
    for sentence in warning_headers(unknown).values():
        warnings.warn(sentence, UserWarning, stacklevel=2)
