"""The command line: up, check, plan, serve, warm, verify, trace, tiny, bench, demo."""

from typing import Annotated

import typer

from omnistage.bench.commands.command import serve as bench_serve
from omnistage.bench.commands.images_command import images as bench_images
from omnistage.bench.commands.speech_command import speech as bench_speech
from omnistage.bench.realtime.command import realtime as bench_realtime
from omnistage.server.cli.bench_connectors import connectors
from omnistage.server.cli.benches import Benches
from omnistage.server.cli.check import check
from omnistage.server.cli.demo import demo
from omnistage.server.cli.graphs import resolve
from omnistage.server.cli.guard import Guarded
from omnistage.server.cli.plan import plan
from omnistage.server.cli.serve import serve
from omnistage.server.cli.strict_command import SETTINGS, StrictCommand
from omnistage.server.cli.tiny import TinyCommand, tiny
from omnistage.server.cli.trace import trace
from omnistage.server.cli.up import up
from omnistage.server.cli.verify import verify
from omnistage.server.cli.versions import print_versions
from omnistage.server.cli.warm import warm
from omnistage.stage_configs.onnx_telemetry import keep_onnxruntime_silent

app = typer.Typer(cls=Guarded, no_args_is_help=True)
bench = typer.Typer(cls=Benches, help="Measure a server, or parts of one.", no_args_is_help=True)
app.add_typer(bench, name="bench")
bench.command("serve")(bench_serve)
bench.command("images")(bench_images)
bench.command("realtime")(bench_realtime)
bench.command("speech")(bench_speech)


@app.callback()
def omnistage(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            is_eager=True,
            callback=print_versions,
            help="Print the versions of omnistage, vLLM, torch and Python, and end.",
        ),
    ] = False,
) -> None:
    """Serve models that are graphs of models."""


app.command(cls=StrictCommand, context_settings=SETTINGS)(up)
app.command(cls=StrictCommand, context_settings=SETTINGS)(serve)
app.command(cls=StrictCommand, context_settings=SETTINGS)(check)
app.command(cls=StrictCommand, context_settings=SETTINGS)(plan)
app.command(cls=StrictCommand, context_settings=SETTINGS)(warm)
app.command(cls=StrictCommand, context_settings=SETTINGS)(verify)
app.command()(trace)
app.command(cls=TinyCommand)(tiny)
app.command()(demo)
bench.command()(connectors)
__all__ = ["app", "main", "resolve"]


def main() -> None:
    """Run the console script."""
    keep_onnxruntime_silent()
    app()
