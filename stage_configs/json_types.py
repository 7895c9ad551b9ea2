"""Objects of JSON, as bodies, events, chunks and configurations have them."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]  # one that is made or changed
JsonMap = Mapping[str, Any]  # one that is only read
