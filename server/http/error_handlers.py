"""Makes an app answer every failure with OpenAI's error envelope."""

import logging
import re
from http import HTTPStatus

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from omnistage.server.common.errors import CLIENT_CLOSED_REQUEST, ApiError, internal_error
from omnistage.server.common.fields import refusal_of
from omnistage.server.http.disconnect import ClientGone
from omnistage.server.http.refusal import response_of

logger = logging.getLogger(__name__)

V1 = "/v1"


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
    return response_of(error)


async def _on_invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place, *location = first["loc"]
    at = location if place == "body" else first["loc"]
    return response_of(refusal_of(at, first["msg"]))


async def _on_http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    if error.status_code == HTTPStatus.NOT_FOUND and (meant := meant_path(request)):
        message += f"; did you mean {meant}?"
    return response_of(ApiError(error.status_code, message, headers=error.headers))


def meant_path(request: Request) -> str:
    """Returns the path of the API that a wrong base URL made of it; empty if there is none.

    Such a URL lacks /v1, has it twice, or names an endpoint already.
    """
    path = request.url.path
    known = [route for route in request.app.routes if isinstance(route, APIRoute)]
    once = V1 + re.sub(f"^({V1})+(?=/)", "", path)
    if any(route.path.startswith(V1) and route.path_regex.match(once) for route in known):
        return once
    ends = [
        route.path
        for route in known
        if route.path.startswith(V1) and path.endswith(route.path.removeprefix(V1))
    ]
    return max(ends, key=len, default="")


async def _on_client_gone(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _on_unforeseen(request: Request, _: Exception) -> JSONResponse:
    logger.error("%s %s failed", request.method, request.url.path)
    return response_of(internal_error())
