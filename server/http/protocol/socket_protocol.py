"""How uvicorn serves WebSockets here."""

import logging
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from omnistage.stage_configs.json_types import Json

SPEECH_STREAM, REALTIME = "/v1/audio/speech/stream", "/v1/realtime"
CALLS = f"{REALTIME}/calls"  # whose sessions are clients' by WebRTC
MAX_FRAME_BYTES = 16 << 20  # the sound of a voice as base64
ENDING = "websocket.ending"  # what an app receives when the server has been told to stop
MAX_FRAGMENTS = 1024  # of one message
PING_S = 20.0

quiet = logging.getLogger(__name__)
quiet.setLevel(logging.WARNING)  # a line a connection is ours


class GatewaySocket(WebSocketsSansIOProtocol):
    """Lets an app finish what it has begun when the server is told to stop."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = self.conn.logger = quiet

    def handle_cont(self, event: Any) -> None:
        """A fragment of a message; too many of them end the connection."""
        if len(self.frames) < MAX_FRAGMENTS:
            super().handle_cont(event)
        elif not self.close_sent:
            self.frames = []
            self.conn.fail(1009, "too many fragments")
            self.handle_parser_exception()

    def shutdown(self) -> None:
        """Tell the app, which then ends the connection itself."""
        if self.handshake_complete and not self.close_sent:
            told: Any = {"type": ENDING}
            self.queue.put_nowait(told)
        else:
            super().shutdown()


SOCKETS: Json = {
    "ws": GatewaySocket,
    "ws_max_size": MAX_FRAME_BYTES,
    "ws_ping_interval": PING_S,
    "ws_ping_timeout": PING_S,
    "ws_per_message_deflate": False,  # sound in its formats does not become smaller
}
