"""GET /docs: Swagger UI over /openapi.json, with files of a package instead of another host's."""

from fastapi import FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles

DOCS = "/docs"
FILES = "/docs/files"


def install_docs(app: FastAPI) -> None:
    """Add the page and its files to an app."""
    # fastapi-offline has the files of Swagger UI; the page is FastAPI's own.
    app.mount(FILES, StaticFiles(packages=[("fastapi_offline", "static")]))

    @app.get(DOCS, include_in_schema=False)
    async def docs(http: Request) -> HTMLResponse:
        root = http.scope.get("root_path", "")
        return get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=app.title,
            swagger_js_url=f"{root}{FILES}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{FILES}/swagger-ui.css",
            swagger_favicon_url=f"{root}{FILES}/favicon.png",
        )
