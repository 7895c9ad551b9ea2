"""A server below a path of a proxy, whether the proxy takes the path away or not."""

from starlette.types import ASGIApp, Receive, Scope, Send


class BelowRoot:
    """ASGI middleware: takes the root path from the paths of requests, so that others see ours.

    It is taken as often as it is there: the router would take it once more, behind the middleware
    that judges by the path who needs a key. Without a root path it takes that of each request, as
    who mounted the application says it.
    """

    def __init__(self, app: ASGIApp, root_path: str | None = None) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] in ("http", "websocket"):
            root = scope.get("root_path", "") if self._root_path is None else self._root_path
            scope = {**scope, "path": below(scope["path"], root)}
        await self._app(scope, receive, send)


def below(path: str, root: str) -> str:
    """A path without its root, as often as that is there."""
    while root and (path == root or path.startswith(f"{root}/")):
        path = path.removeprefix(root)
    return path or "/"


def checked_root_path(path: str) -> str:
    """A root path without the slash at its end; raises ValueError for one that cannot be served."""
    below = path.rstrip("/")
    if not below.startswith("/") or "//" in below or any(char in below for char in "?#% "):
        raise ValueError(f"{path!r} is no path such as /models")
    if below.split("/")[1] in ("v1", "admin"):
        raise ValueError(f"{path!r} begins as the server's own paths do")
    return below
