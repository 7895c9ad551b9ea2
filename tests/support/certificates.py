"""Certificates of our own, to serve TLS with in tests."""

import ssl
import subprocess
from pathlib import Path

from omnistage.server.options.gateway import Tls


def certificate(folder: Path) -> Tls:
    """One for 127.0.0.1 and two days, and its key: cert.pem and key.pem."""
    tls = Tls(folder / "cert.pem", folder / "key.pem")
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", tls.key, "-out", tls.certificate]
    subprocess.run([*make.split(), *map(str, files)], check=True, capture_output=True)
    return tls


def trusting(tls: Tls) -> ssl.SSLContext:
    """What a client needs to believe it."""
    return ssl.create_default_context(cafile=str(tls.certificate))
