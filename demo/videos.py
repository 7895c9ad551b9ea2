"""A video as a job of /v1/videos: its progress, and its file at the end."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from openai import APIError, AsyncOpenAI, HttpxBinaryResponseContent

from omnistage.demo.failure import CannotSend

PATH = "/videos"
POLL_S = 0.5
ENDS = ("completed", "failed")


async def video_of(
    client: AsyncOpenAI, body: Mapping[str, Any]
) -> AsyncGenerator[int | bytes, None]:
    """Yield the percent that are made as they change, and the mp4 last.

    The job is deleted at the end, and when nobody waits any more. Raises the client's errors, and
    CannotSend for a job that has failed.
    """
    job: Any = await client.post(PATH, body=dict(body), cast_to=object)
    place = f"{PATH}/{job['id']}"
    try:
        while job["status"] not in ENDS:
            yield int(job["progress"])
            await asyncio.sleep(POLL_S)
            job = await client.get(place, cast_to=object)
        if job["status"] == "failed":
            raise CannotSend(job["error"]["message"])
        answer = await client.get(f"{place}/content", cast_to=HttpxBinaryResponseContent)
        yield answer.content
    finally:
        with suppress(APIError):  # it may have expired
            await client.delete(place, cast_to=object)
