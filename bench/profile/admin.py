"""Asks a server's stages for profiles."""

import asyncio
import json
import ssl
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpcore

from omnistage.bench.client import NETWORK_ERRORS, OK, ServerError, said_of
from omnistage.bench.events import error_message

# An engine writes a trace for as long as that takes. The server's own limit, command_s, is 600 s
# unless a graph file says otherwise; its answer names the stage that was late.
PATIENCE_S = 660.0
UNAVAILABLE = 503  # of /health if a stage is lost; the body is the same
UNAUTHORIZED, FORBIDDEN, NOT_FOUND, BUSY = 401, 403, 404, 409
KEY_WANTED = (
    "--profile needs the server's admin key: give --admin-key-file FILE, or set OMNISTAGE_ADMIN_KEY"
)
COMMENT = "#"
SERVE_WITH = "start the server with --profile-folder DIR"


class Refused(ServerError):
    """A command that the server did not obey."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class StoppedProfile:
    """The traces that stages wrote, and the names of stages that take no profile."""

    traces: Mapping[str, Sequence[Path]]
    unprofiled: tuple[str, ...]


class Admin:
    """The endpoints of a server that begin and end profiles of its stages."""

    def __init__(self, url: str, key: str) -> None:
        """`url`: the server's, with or without the API's /v1."""
        self._url = url.rstrip("/").removesuffix("/v1")
        self._key = key

    async def start(self, prefix: str) -> None:
        """Begin a profile of every stage that takes it; raises Refused."""
        await self._post("profile/start", {"prefix": prefix})

    async def stop(self) -> StoppedProfile:
        """End it, once every trace is written; raises Refused."""
        answers = await self._post("profile/stop", {})
        traces = {name: _files(answer) for name, answer in answers.items()}
        health = await self._ask("GET", "health", None, accepted=(OK, UNAVAILABLE))
        stages = health.get("stages", {})
        return StoppedProfile(traces, tuple(name for name in stages if name not in traces))

    async def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        stages: Mapping[str, Any] = (await self._ask("POST", f"admin/{path}", body))["stages"]
        return stages

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        *,
        accepted: Collection[int] = (OK,),
    ) -> Any:
        place = f"{self._url}/{path}"
        headers = [("Authorization", f"Bearer {self._key}"), ("Content-Type", "application/json")]
        content = None if body is None else json.dumps(body).encode()
        try:
            async with (
                asyncio.timeout(PATIENCE_S),
                httpcore.AsyncConnectionPool(ssl.create_default_context()) as pool,
            ):
                response = await pool.request(method, place, headers=headers, content=content)
        except TimeoutError:
            raise Refused(f"{place}: no answer within {PATIENCE_S:g} s") from None
        except NETWORK_ERRORS as error:
            raise Refused(f"{place}: {said_of(error)}") from None
        if response.status not in accepted:
            raise Refused(_why(place, response.status, response.content), response.status)
        try:
            return json.loads(response.content)
        except ValueError:
            raise Refused(f"{place} answered no JSON; is it an omnistage server?") from None


def _why(place: str, status: int, content: bytes) -> str:
    """A sentence on what was refused, and what to do."""
    said = error_message(content)
    if status in (UNAUTHORIZED, FORBIDDEN):
        return f"{place}: HTTP {status}: {said} {KEY_WANTED}."
    if status == NOT_FOUND:
        return f"{place} is not there: --profile is for servers of omnistage."
    advice = f" The stages of this server cannot be profiled: {SERVE_WITH}."
    return f"{place}: HTTP {status}: {said}{advice if status < BUSY else ''}"


def _files(answer: Mapping[str, Any]) -> tuple[Path, ...]:
    """The traces that a stage names; none of one whose profiler has no folder."""
    files = [answer["file"]] if "file" in answer else answer.get("files", ())
    return tuple(map(Path, files))


def read_key(file: Path | None, environment: Mapping[str, str]) -> str:
    """The first admin key of a file, or of the environment; ValueError if there is none.

    A file is read as the server reads it: a key a line, and lines that begin with # are comments.
    """
    if file is None:
        keys = environment.get("OMNISTAGE_ADMIN_KEY", "").split()
        if not keys:
            raise ValueError(KEY_WANTED)
        return keys[0]
    try:
        lines = [line.strip() for line in file.read_text("utf-8").splitlines()]
    except OSError as error:
        raise ValueError(f"--admin-key-file {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--admin-key-file {file} is no text in UTF-8: {error}") from None
    keys = [line for line in lines if line and not line.startswith(COMMENT)]
    if not keys:
        raise ValueError(f"--admin-key-file: {file} has no key in it")
    return keys[0]
