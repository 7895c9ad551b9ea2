"""A graph used from Python, without HTTP: the same stages, checks and defaults as the server's."""

from omnistage.server.offline.async_omni import AsyncOmni
from omnistage.server.offline.errors import (
    BadRequest,
    Closed,
    OmniError,
    SomeFailed,
    StageFailed,
    StartFailed,
    TimedOut,
    Unavailable,
)
from omnistage.server.offline.omni import Omni
from omnistage.server.tasks.pieces import (
    Adapter,
    Answer,
    Choice,
    Picture,
    Piece,
    Preview,
    Progress,
    Reasoning,
    Stamp,
    Text,
    ToolCall,
    Usage,
)
from omnistage.server.tasks.recordings import Audio, Video

__all__ = [
    "Adapter",
    "Answer",
    "AsyncOmni",
    "Audio",
    "BadRequest",
    "Choice",
    "Closed",
    "Omni",
    "OmniError",
    "Picture",
    "Piece",
    "Preview",
    "Progress",
    "Reasoning",
    "SomeFailed",
    "StageFailed",
    "Stamp",
    "StartFailed",
    "Text",
    "TimedOut",
    "ToolCall",
    "Unavailable",
    "Usage",
    "Video",
]
