"""Names the address at which a listening socket can be opened."""

from socket import socket

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # what listens there is here, too


def url_of(listening: socket, scheme: str = "http") -> str:
    """Returns a URL, without a path, at which a listening socket can be reached from here."""
    host, port = listening.getsockname()[:2]
    host = EVERYWHERE.get(host, host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
