"""Options of the command line that several flags make together, or that must be checked."""

import json
import ssl
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from omnistage.server.cli.graphs import fail
from omnistage.server.http.access.cors import EVERY, Cors
from omnistage.server.http.root_path import checked_root_path
from omnistage.server.options.gateway import CallNetwork, Tls


def cors_of(
    origins: Sequence[str] | None,
    methods: Sequence[str] | None,
    headers: Sequence[str] | None,
    has_credentials: bool,
) -> Cors | None:
    """Returns which pages may ask; typer.Exit for what has no effect without --allowed-origins."""
    if not origins:
        for flag, given in (
            ("--allowed-methods", methods),
            ("--allowed-headers", headers),
            ("--allow-credentials", has_credentials),
        ):
            if given:
                raise fail(f"{flag}: has no effect without --allowed-origins")
        return None
    sites = _listed("--allowed-origins", origins)
    for site in sites:
        if site != "*" and ("://" not in site or site.count("/") > 2):
            raise fail(f"--allowed-origins: {site!r} is no origin such as https://example.org")
    return Cors(
        sites,
        _listed("--allowed-methods", methods or EVERY),
        _listed("--allowed-headers", headers or EVERY),
        has_credentials,
    )


def check_turn_model(path: Path | None) -> None:
    """Refuse a model of turns that cannot be used; raises typer.Exit."""
    if path is None:
        return
    from omnistage.server.realtime.voice.judge import TurnJudge

    try:
        TurnJudge(path).close()
    except ImportError:
        raise fail('--turn-model: needs pip install "omnistage[realtime]"') from None
    except ValueError as error:
        raise fail(f"--turn-model: {error}") from None


def call_network_of(ports: str | None, addresses: Sequence[str] | None) -> CallNetwork:
    """Return where calls by WebRTC are reached; raises typer.Exit for no ports or addresses."""
    from omnistage.server.realtime.webrtc.network import ports_of

    try:
        chosen = None if not ports else ports_of(ports)
    except ValueError as error:
        raise fail(f"--webrtc-ports: {error}") from None
    for address in addresses or ():
        try:
            ip_address(address)
        except ValueError:
            raise fail(f"--webrtc-address: {address!r} is not an IP address") from None
    return CallNetwork(chosen, tuple(addresses or ()))


def _listed(flag: str, values: Sequence[str]) -> tuple[str, ...]:
    """Values that are given one by one, or as a list in JSON, as vLLM wants them."""
    found: list[str] = []
    for value in values:
        try:
            read = json.loads(value) if value.startswith("[") else [value]
        except ValueError as error:
            raise fail(f"{flag}: {value!r} is no list in JSON: {error}") from None
        if not all(isinstance(one, str) for one in read):
            raise fail(f"{flag}: {value!r} must be a list of strings")
        found += read
    return tuple(found)


def tls_of(certificate: Path | None, key: Path | None) -> Tls | None:
    """The files of TLS; typer.Exit if one is not there or the two do not go together."""
    if certificate is None:
        if key is not None:
            raise fail("--ssl-keyfile: has no effect without --ssl-certfile")
        return None
    for flag, file in (("--ssl-certfile", certificate), ("--ssl-keyfile", key)):
        if file is not None and not file.is_file():
            raise fail(f"{flag}: there is no file {file}")
    from omnistage.server.serve import check_tls

    tls = Tls(certificate, key)
    try:
        check_tls(tls)
    except ssl.SSLError as error:
        why = error.reason or error
        raise fail(f"--ssl-certfile, --ssl-keyfile: TLS cannot be served by them: {why}") from None
    except OSError as error:
        raise fail(f"--ssl-certfile, --ssl-keyfile: {error.strerror}") from None
    return tls


def root_path_of(path: str | None) -> str:
    """The path of a proxy; typer.Exit for one that cannot be served."""
    if not path or path == "/":
        return ""
    try:
        return checked_root_path(path)
    except ValueError as error:
        raise fail(f"--root-path: {error}") from None
