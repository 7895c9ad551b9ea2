"""The gateway's side of WebRTC: calls run in a process beside it, which ends with the last."""

import asyncio
import json
import logging
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from queue import SimpleQueue

from omnistage.server.common.errors import ApiError
from omnistage.server.options.gateway import CallNetwork
from omnistage.server.realtime.events import new_id
from omnistage.server.realtime.webrtc.network import arguments_of
from omnistage.stage_configs.json_types import Json, JsonMap

logger = logging.getLogger(__name__)

MODULE = "omnistage.server.realtime.webrtc.bridge"
BEGIN_S = 30.0  # for the process to answer an offer


@dataclass(slots=True)
class BridgeProcess:
    """The process, and the calls that it has. A thread reads what it says, and waits for its end:
    so it may end after the event loop. Another writes its orders, which wait until it takes them.
    """

    process: "subprocess.Popen[bytes]"
    orders: "SimpleQueue[Json | None]" = field(default_factory=SimpleQueue)  # None: no more
    answers: dict[str, asyncio.Future[Json]] = field(default_factory=dict)
    owners: dict[str, str | None] = field(default_factory=dict)  # the names of keys, by call


class WebRtcCalls:
    """Opens calls and ends them."""

    def __init__(self, network: CallNetwork) -> None:
        self._arguments = arguments_of(network)
        self._bridge: BridgeProcess | None = None

    async def open(
        self,
        offer: str,
        url: str,
        headers: Mapping[str, str],
        session: JsonMap | None,
        owner: str | None,
    ) -> tuple[str, str]:
        """Begin a call, a client of the sessions at `url`: its id, and the answer to the offer.

        Raises ApiError: that of the session, or one for the offer.
        """
        if find_spec("aiortc") is None:
            message = "WebRTC needs the extra omnistage[webrtc], which is not installed."
            raise ApiError(501, message, code="webrtc_not_installed")
        call_id = new_id("rtc")
        bridge = self._bridge = self._bridge or self._started()
        answer = bridge.answers[call_id] = asyncio.get_running_loop().create_future()
        bridge.owners[call_id] = owner
        order = {"do": "open", "call_id": call_id, "sdp": offer, "url": url}
        bridge.orders.put({**order, "headers": dict(headers), "session": session})
        try:
            async with asyncio.timeout(BEGIN_S):
                told = await answer
        except TimeoutError:
            bridge.orders.put({"do": "hangup", "call_id": call_id})
            message = f"The offer was not answered within {BEGIN_S:g} s."
            raise ApiError(504, message, code="timeout") from None
        finally:
            bridge.answers.pop(call_id, None)
        if "sdp" in told:
            return call_id, told["sdp"]
        self._forget(bridge, call_id)
        error = told["error"]
        raise ApiError(
            told["status"], error["message"], param=error.get("param"), code=error.get("code")
        )

    def hang_up(self, call_id: str, owner: str | None) -> None:
        """End a call of this owner; raises ApiError if there is none."""
        bridge = self._bridge
        if bridge is None or call_id not in bridge.owners or bridge.owners[call_id] != owner:
            message = f"There is no call {call_id[:64]!r}."
            raise ApiError(404, message, param="call_id", code="call_not_found")
        bridge.orders.put({"do": "hangup", "call_id": call_id})

    def _started(self) -> BridgeProcess:
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a signal of the terminal is the server's
        )
        bridge = BridgeProcess(process)
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(bridge, loop), daemon=True).start()
        threading.Thread(target=self._write, args=(bridge,), daemon=True).start()
        return bridge

    def _read(self, bridge: BridgeProcess, loop: asyncio.AbstractEventLoop) -> None:
        """Hand on what the process says until it ends."""
        assert bridge.process.stdout is not None
        with suppress(RuntimeError), bridge.process.stdout as said:  # the loop may end before
            for line in said:
                loop.call_soon_threadsafe(self._take, bridge, json.loads(line))
        bridge.process.wait()
        bridge.orders.put(None)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._note_end, bridge)

    def _write(self, bridge: BridgeProcess) -> None:
        """Hand orders on as the process takes them: a pipe holds few, and it starts slowly."""
        assert bridge.process.stdin is not None
        with suppress(BrokenPipeError), bridge.process.stdin as orders:
            while (order := bridge.orders.get()) is not None:
                orders.write(json.dumps(order).encode() + b"\n")
                orders.flush()

    def _take(self, bridge: BridgeProcess, told: Json) -> None:
        waiting = bridge.answers.get(told["call_id"])
        if told.get("ended"):
            self._forget(bridge, told["call_id"])
        elif waiting is not None and not waiting.done():
            waiting.set_result(told)

    def _note_end(self, bridge: BridgeProcess) -> None:
        if self._bridge is bridge:
            self._bridge = None
            code = bridge.process.returncode
            logger.error("the process of WebRTC's calls has ended with %s", code)
        error = {"message": "The process of WebRTC's calls has ended.", "code": "call_failed"}
        for waiting in bridge.answers.values():
            if not waiting.done():
                waiting.set_result({"status": 503, "error": error})

    def _forget(self, bridge: BridgeProcess, call_id: str) -> None:
        """A call has ended; with the last one the process ends."""
        bridge.owners.pop(call_id, None)
        if not bridge.owners and self._bridge is bridge:
            self._bridge = None
            bridge.orders.put(None)
