"""What of an answer goes to the stages that make something of its words."""

from typing import Any

import pytest
from support.edges import edge_to

from omnistage.connectors.chunk import Chunk
from omnistage.stage_configs.kinds import Payload, payloads
