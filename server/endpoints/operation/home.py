"""GET /: a small page for whoever opens the server's address in a browser."""

from html import escape

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from omnistage.server.endpoints.gateway import Gateway
from omnistage.stage_configs.models.random_weights import note_of

LINKS = {
    "/docs": "the API, to read and to try",
    "/v1/models": "the models",
    "/health": "the state of each stage",
    "/metrics": "figures for Prometheus",
}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>omnistage</title>
<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">
<style>body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 40em; margin: 3em auto;
padding: 0 1em }}</style>
</head><body><h1>omnistage</h1>
<p>{model} makes {outputs}{note}.</p>
<p>{state}</p>
<ul>{links}</ul>
<p>A page to talk to the model: <code>omnistage demo --url {url}</code></p>
</body></html>
"""


def routes(gateway: Gateway) -> APIRouter:
    """GET /, which needs no key, as GET /health."""
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def home(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "")
        graph, note = gateway.runtime.graph, note_of(gateway.runtime.graph)
        links = (f'<li><a href="{escape(root + at)}">{at}</a> {what}' for at, what in LINKS.items())
        return HTMLResponse(
            PAGE.format(
                model=f"<code>{escape(graph.served_name)}</code>",
                outputs=escape(", ".join(graph.outputs)),
                note=escape(f" ({note})" if note else ""),
                state=escape(state_of(gateway)),
                links="".join(links),
                url=escape(str(request.base_url).rstrip("/")),
            )
        )

    return router


def state_of(gateway: Gateway) -> str:
    """Returns whether the server is ready, and otherwise what it waits for."""
    if gateway.runtime.flights.is_stopping:
        return "Stopping."
    waits = gateway.runtime.fleet.unready or gateway.runtime.fleet.closed
    if not waits:
        return "Ready."
    return f"Not ready: {', '.join(f'{name} ({reason})' for name, reason in waits.items())}."
