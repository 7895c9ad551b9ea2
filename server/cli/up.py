"""`omnistage up`."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from omnistage.server.cli.demo import PORT, listening_at
from omnistage.server.cli.graphs import warn
from omnistage.server.cli.guard import HIGHEST_PORT
from omnistage.server.cli.serve import serve_typed
from omnistage.server.cli.serving.options import ServeOptions
from omnistage.server.cli.serving.page_process import PageProcess, missing_page
from omnistage.server.cli.serving.with_options import with_serve_options
from omnistage.stage_configs.models.embedded import DEFAULT

if TYPE_CHECKING:
    from omnistage.server.serve import PageAt

PAGE_HOST = "127.0.0.1"
NO_TLS = (
    "no page: it cannot check the certificate of a server on this machine; start `omnistage demo "
    "--url URL` with the name that the certificate is for"
)


@with_serve_options
def up(
    options: ServeOptions,
    target: Annotated[
        str | None,
        typer.Argument(
            help="A graph file in YAML, an embedded model, a model folder or a Hugging Face name. "
            "Without one, the embedded model `small` is served: a toy that knows some 300 words."
        ),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page/--no-page", help="Start the page, too, if gradio is there.")
    ] = True,
    page_port: Annotated[
        int,
        typer.Option(min=0, max=HIGHEST_PORT, help="The page's port; 0 means any free port."),
    ] = PORT,
) -> None:
    """Serve a model and a page for it, until Ctrl-C: the quickest way to something to try."""
    if target is None:
        options = replace(options, target=DEFAULT)
    raise typer.Exit(serve_typed(options, page_beside(options, page_port) if page else None))


def page_beside(options: ServeOptions, port: int) -> "PageAt | None":
    """Returns what starts the page beside the server; None, with a warning, if it cannot be had.

    It listens on this machine alone: whoever opens it uses the server's key. Raises typer.Exit if
    its port is taken.
    """
    if options.dry_run:
        return None
    if options.ssl_certfile is not None:
        warn(NO_TLS)
        return None
    if missing := missing_page():
        warn(missing)
        return None
    listening_at(PAGE_HOST, port, "--page-port").close()
    return partial(PageProcess, host=PAGE_HOST, port=port, api_key=first_key(options))


def first_key(options: ServeOptions) -> str | None:
    """Returns a key of the server for the page; None if it needs none, or has none to be read."""
    from omnistage.server.http.access.keys import lines_of

    file = options.api_key_file
    keys = [*(options.api_key or ()), *(lines_of(file) if file is not None else ())]
    return next(iter(keys), None)
