"""Every failure a client can see, in OpenAI's error envelope."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from omnistage.server.disconnect import ClientGone
from omnistage.stages.messages.log_bound import MAX_MESSAGE_BYTES, MAX_PARAM_BYTES, shortened

CLIENT_CLOSED_REQUEST = 499

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """A refusal or failure with its HTTP status and the envelope's fields."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.message = shortened(message, MAX_MESSAGE_BYTES)
        super().__init__(self.message)
        self.status = status
        # Clients classify a failure of ours by its type.
        self.type = type or ("server_error" if status >= 500 else "invalid_request_error")
        self.param = None if param is None else shortened(param, MAX_PARAM_BYTES)
        self.code = code
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["Retry-After"] = str(retry_after_s)

    @classmethod
    def from_stage(cls, meta: Mapping[str, Any]) -> "ApiError":
        """What an `error` output of a stage says."""
        status, message = meta["status"], meta["message"]
        if status >= 500 and meta["stage"] not in message:
            message = f"Stage {meta['stage']} failed: {message}"
        return cls(status, message, param=meta.get("param"), code=meta.get("code"))

    @property
    def envelope(self) -> dict[str, Any]:
        """The body: all four keys, always."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.code,
            }
        }

    def to_response(self) -> JSONResponse:
        """As an HTTP response."""
        return JSONResponse(self.envelope, self.status, self.headers)


def internal_error() -> ApiError:
    """What a client may know about a failure that nobody foresaw."""
    return ApiError(500, "The server had an error while processing the request.")


def invalid(param: str, problem: str) -> ApiError:
    """A 400 that blames one field."""
    named = shortened(param, MAX_PARAM_BYTES)  # so that the problem is still told
    return ApiError(400, f"{named} {problem}.", param=param, code="invalid_value")


def unsupported(param: str, asked: str | None = None) -> ApiError:
    """A 400 for a known field that asks for what is not done; `asked` says what."""
    message = f"{shortened(asked or param, MAX_PARAM_BYTES)} is not supported."
    return ApiError(400, message, param=param, code="unsupported_parameter")


def field_path(location: Sequence[int | str]) -> str:
    """A place in a JSON body, such as `messages[0].content`."""
    path = ""
    for part in location:
        if part == "[key]":  # pydantic's mark for a mapping's key
            continue
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def install_error_handlers(app: FastAPI) -> None:
    """Make the app answer every failure with the envelope."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)  # amid its body
    app.add_exception_handler(Exception, _on_unforeseen)


async def _on_api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return error.to_response()


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place, *location = first["loc"]
    param = field_path(location if place == "body" else first["loc"])
    named = shortened(param, MAX_PARAM_BYTES)
    message = f"{named}: {first['msg']}" if param else "The body must be a JSON object."
    return ApiError(400, message, param=param or None, code="invalid_value").to_response()


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    return ApiError(error.status_code, message, headers=error.headers).to_response()


async def _on_client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_unforeseen(request: Request, _: Exception) -> JSONResponse:
    logger.error("%s %s failed", request.method, request.url.path)
    return internal_error().to_response()
