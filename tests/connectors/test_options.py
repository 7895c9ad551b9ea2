"""Options of connectors: each connector's own, and every mistake names the option."""

from pathlib import Path
from typing import Any

import pytest
from support.installed import Installed

from omnistage.connectors import connector_type, make_connector
from omnistage.connectors.options import OptionError

FAR = """
from typing import Literal
from pydantic import Field
from omnistage.connectors.options import ConnectorOptions, ConnectorType

class FarOptions(ConnectorOptions):
    host: str = Field(min_length=1)
    protocol: Literal["tcp", "rdma"] = "tcp"
    compress: bool = False
    timeout_s: float = Field(default=1.0, gt=0)

class Far:
    def __init__(self, directory, options):
        self.options = options

FAR = ConnectorType(FarOptions, Far)
"""


@pytest.fixture
def far(installed: Installed) -> None:
    """A connector of another package."""
    installed.package("far-away", {"omnistage.connectors": {"far": "FAR"}}, FAR)


@pytest.mark.usefixtures("far")
def test_options_may_be_strings_booleans_and_numbers(tmp_path: Path) -> None:
    wanted: dict[str, Any] = {
        "host": "a.example",
        "protocol": "rdma",
        "compress": True,
        "timeout_s": 0.5,
    }
    made: Any = make_connector("far", tmp_path, {**wanted, "credit": 0})
    assert made.options.model_dump() == {**wanted, "credit": 0}


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize(
    ("options", "option", "message"),
    [
        ({}, "host", "connector far needs the option 'host'"),
        ({"host": 8}, "host", "must be a valid string, not 8"),
        ({"host": ""}, "host", "String should have at least 1 character, not ''"),
        ({"host": "a", "protocol": "udp"}, "protocol", "must be 'tcp' or 'rdma', not 'udp'"),
        ({"host": "a", "compress": "yes"}, "compress", "must be a valid boolean, not 'yes'"),
        ({"host": "a", "timeout_s": 0}, "timeout_s", "must be greater than 0, not 0"),
        ({"host": "a", "credit": -1}, "credit", "must be greater than or equal to 0, not -1"),
        (
            {"host": "a", "port": 1},
            "port",
            "connector far has no option 'port'; it has compress, credit, host, protocol, "
            "timeout_s",
        ),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(
    tmp_path: Path, options: dict[str, Any], option: str, message: str
) -> None:
    with pytest.raises(OptionError) as no:
        make_connector("far", tmp_path, options)
    assert no.value.option == option
    assert str(no.value) == message


def test_a_connector_that_cannot_be_imported_is_told(installed: Installed) -> None:
    installed.package("far-away", {"omnistage.connectors": {"far": "FAR"}}, "import no_such_wire")
    with pytest.raises(ValueError, match=r"'far' .*package far-away 1\.0.*no_such_wire"):
        connector_type("far")
    assert connector_type("shm").between_processes
