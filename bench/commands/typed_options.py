"""Options that the bench commands share."""

from pathlib import Path
from typing import Annotated

import typer

Url = Annotated[str, typer.Argument(help="The server's URL.")]
Model = Annotated[str | None, typer.Option(help="The model's name. Default: the server's first.")]
ApiKey = Annotated[str | None, typer.Option(help="The API key, sent as a bearer token.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="How many seconds an answer may take.")]
JsonFile = Annotated[
    Path | None, typer.Option("--json", help="The file to write every sample and figure to, .json.")
]
