"""`omnistage demo`."""

from typing import Annotated

import typer

from omnistage.server.cli.graphs import fail

MISSING = "the page needs gradio and openai: pip install 'omnistage[demo]'"
NEEDED = ("gradio", "openai")


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
    port: Annotated[int, typer.Option(help="The port to listen on; 0 means any free port.")] = 7860,
) -> None:
    """Serve a page in which a server can be tried: chat, pictures, edits, speech, transcripts."""
    try:
        from omnistage.demo.serve import serve
    except ModuleNotFoundError as error:
        if error.name in NEEDED:
            raise fail(MISSING) from None
        raise
    try:
        serve(url, api_key, host, port)
    except OSError as error:
        raise fail(f"cannot listen on {host}:{port}: {error.strerror}") from None
