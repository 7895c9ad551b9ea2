"""The options of `omnistage serve`, which `up` takes as well, beside those of the server."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from omnistage.server.cli.changes import (
    AnyChanges,
    DefaultChanges,
    Deterministic,
    ModelNames,
    OtherModel,
    StageChanges,
    Target,
    VoiceAliases,
)
from omnistage.server.cli.guard import HIGHEST_PORT
from omnistage.server.options.declared import LIMITS, LISTEN, LOGS, STAGES, WEB
from omnistage.server.options.gateway import GatewayOptions

Several = list[str] | None
MaybePath = Path | None


class LoadFormat(StrEnum):
    """How every kind of stage can get its weights."""

    AUTO = "auto"
    DUMMY = "dummy"


class Offload(StrEnum):
    """How modules of a diffusion stage share a device that is too small for all of them."""

    SEQUENTIAL = "sequential"
    LAYERWISE = "layerwise"


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The options as they were typed, or came from the environment.

    Here are those of the graph and of the command, and flags that several make an option of the
    server: `gateway_options` has all. `plain` has the other options of the server.
    """

    target: Target
    plain: GatewayOptions
    host: Annotated[str, typer.Option(rich_help_panel=LISTEN, help="The address to listen on.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int,
        typer.Option(
            rich_help_panel=LISTEN,
            min=0,
            max=HIGHEST_PORT,
            help="The port to listen on; 0 means any free port.",
        ),
    ] = 8000
    root_path: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=LISTEN,
            help="The path of a proxy below which clients find the server: /models.",
        ),
    ] = None
    webrtc_ports: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=LISTEN,
            help="The UDP ports of calls by WebRTC: 50000-50100. Default: any free ones.",
        ),
    ] = None
    webrtc_address: Annotated[
        Several,
        typer.Option(
            rich_help_panel=LISTEN,
            help="An IP address that calls by WebRTC announce in place of the server's own, as "
            "behind NAT; may be given several times.",
        ),
    ] = None
    model: OtherModel = None
    served_model_name: ModelNames = None
    voice_alias: VoiceAliases = None
    stage: StageChanges = None
    set_any: AnyChanges = None
    set_default: DefaultChanges = None
    deterministic: Deterministic = False
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check all that can be checked without loading, print what would be served, end.",
        ),
    ] = False
    load_format: Annotated[
        LoadFormat | None,
        typer.Option(
            rich_help_panel=STAGES,
            help="How weights are loaded: auto, or dummy (random weights, no files).",
        ),
    ] = None
    offload: Annotated[
        Offload | None,
        typer.Option(
            rich_help_panel=STAGES,
            help="How a diffusion stage shares a device that is too small for all its modules: "
            "sequential (modules take turns) or layerwise (blocks take turns).",
        ),
    ] = None
    api_key: Annotated[
        Several,
        typer.Option(
            rich_help_panel=LIMITS,
            envvar="OMNISTAGE_API_KEY",
            help="A key that clients must send; may be given several times. Without one, "
            "everybody may use the server.",
        ),
    ] = None
    api_key_file: Annotated[
        MaybePath,
        typer.Option(
            rich_help_panel=LIMITS,
            help="A file of further API keys: one per line, # begins a comment.",
        ),
    ] = None
    admin_key: Annotated[
        Several,
        typer.Option(
            rich_help_panel=LIMITS,
            envvar="OMNISTAGE_ADMIN_KEY",
            help="A key for /admin; may be given several times. Without one, /admin is closed.",
        ),
    ] = None
    admin_key_file: Annotated[
        MaybePath,
        typer.Option(
            rich_help_panel=LIMITS,
            help="A file of further admin keys: one per line, # begins a comment.",
        ),
    ] = None
    allowed_origins: Annotated[
        Several,
        typer.Option(
            rich_help_panel=WEB,
            help="A site whose pages may use the server from a browser (CORS), such as "
            "https://example.org; * means all. May be given several times, or as a list in JSON. "
            "Without one, none may.",
        ),
    ] = None
    allowed_methods: Annotated[
        Several,
        typer.Option(rich_help_panel=WEB, help="A method that such pages may use. Default: all."),
    ] = None
    allowed_headers: Annotated[
        Several,
        typer.Option(rich_help_panel=WEB, help="A header that such pages may send. Default: all."),
    ] = None
    allow_credentials: Annotated[
        bool,
        typer.Option(
            "--allow-credentials", rich_help_panel=WEB, help="Such pages may send cookies."
        ),
    ] = False
    ssl_certfile: Annotated[
        MaybePath,
        typer.Option(
            rich_help_panel=WEB,
            help="The certificate with which the server speaks TLS, and its chain.",
        ),
    ] = None
    ssl_keyfile: Annotated[
        MaybePath,
        typer.Option(
            rich_help_panel=WEB, help="The certificate's key, if it is not in the same file."
        ),
    ] = None
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            "--otlp-endpoint",
            "--otlp-traces-endpoint",
            rich_help_panel=LOGS,
            help="The OpenTelemetry collector that gets a trace of each request, by OTLP over "
            "HTTP: http://HOST:4318, or a whole address. Without it, no span is made.",
        ),
    ] = None
    profile_folder: Annotated[
        MaybePath,
        typer.Option(
            rich_help_panel=LOGS,
            file_okay=False,
            writable=True,
            help="The folder into which stages write traces of what they compute, once "
            "/admin/profile/start or `omnistage bench serve --profile` asks for them.",
        ),
    ] = None
