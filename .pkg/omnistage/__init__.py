"""Models that are graphs of models: served by `omnistage serve`, or used from Python by `Omni`.

Stages import this package too: what it offers is loaded when it is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omnistage.server.offline import (
        Adapter,
        Answer,
        AsyncOmni,
        Audio,
        BadRequest,
        Choice,
        Closed,
        Omni,
        OmniError,
        Picture,
        Piece,
        Preview,
        Progress,
        Reasoning,
        SomeFailed,
        StageFailed,
        Stamp,
        StartFailed,
        Text,
        TimedOut,
        ToolCall,
        Unavailable,
        Usage,
        Video,
    )

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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from omnistage.server import offline

    return getattr(offline, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
