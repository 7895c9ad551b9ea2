"""`omnistage demo`."""

from socket import AF_INET, AF_INET6, create_server, socket
from typing import Annotated

import typer

from omnistage.server.cli.graphs import fail
from omnistage.server.cli.guard import HIGHEST_PORT, cannot_listen
from omnistage.server.http.listening import url_of

MISSING = "the page needs gradio and openai: pip install 'omnistage[demo]'"
NEEDED = ("gradio", "openai")
PORT = 7860


def demo(
    url: Annotated[
        str, typer.Option(help="The server to try, of this project or another with OpenAI's API.")
    ] = "http://127.0.0.1:8000",
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="OMNISTAGE_API_KEY", help="The server's API key; whoever opens the page uses it."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option(min=0, max=HIGHEST_PORT, help="The port to listen on; 0 means any free port."),
    ] = PORT,
) -> None:
    """Serve a page in which a server can be tried: chat, images, edits, speech, transcripts."""
    with listening_at(host, port) as listening:
        try:
            from omnistage.demo.serve import serve
        except ModuleNotFoundError as error:
            if error.name in NEEDED:
                raise fail(MISSING) from None
            raise
        serve(url, api_key, listening, url_of(listening))


def listening_at(host: str, port: int, option: str = "--port") -> socket:
    """The socket of the page, before anything large is imported for it."""
    try:
        return create_server((host, port), family=AF_INET6 if ":" in host else AF_INET)
    except OSError as error:
        raise fail(cannot_listen(f"{host}:{port}", error, option)) from None
