"""Addresses that can be opened in a browser."""

import pytest
from typer.testing import CliRunner

from omnistage.server.cli import app
from omnistage.server.http.listening import url_of


@pytest.mark.parametrize(
    ("host", "opened"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]"), ("::", "[::1]")],
)
def test_a_url_of_a_listening_socket_can_be_opened(host: str, opened: str) -> None:
    class Listening:
        def getsockname(self) -> tuple[str, int]:
            return host, 80

    assert url_of(Listening()) == f"http://{opened}:80"  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_the_page_tells_an_address_that_can_be_opened(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr("omnistage.demo.serve.serve", lambda *given: told.append(given[-1]))
    done = CliRunner().invoke(app, ["demo", "--host", host, "--port", "0"])
    assert done.exit_code == 0, done.output
    (address,) = told
    assert address.startswith("http://127.0.0.1:")
