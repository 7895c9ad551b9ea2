"""The process of WebRTC's calls: takes orders on its input, line by line, and answers them.

`python -m omnistage.server.realtime.webrtc.bridge`, with the arguments of `network_of`. It ends
when its input does.
"""

import asyncio
import contextlib
import json
import logging
import ssl
import sys
from functools import partial

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus, WebSocketException

from omnistage.server.options.gateway import CallNetwork
from omnistage.server.realtime.webrtc.call import NoPortFree, SessionRefused, WebRtcCall
from omnistage.server.realtime.webrtc.network import CallLoop, network_of
from omnistage.stage_configs.json_types import Json, JsonMap

logger = logging.getLogger(__name__)

MAX_LINE = 2 << 20  # an offer and settings as JSON


class Bridge:
    """All calls of this process."""

    def __init__(self, network: CallNetwork) -> None:
        self._network = network
        self._calls: dict[str, WebRtcCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, orders: asyncio.StreamReader) -> None:
        """Obey until the orders end; then all calls end."""
        while line := await orders.readline():
            order = json.loads(line)
            if order["do"] == "hangup":
                call = self._calls.get(order["call_id"])
                if call is not None:
                    call.hang_up()
            else:
                task = asyncio.create_task(self._open(order))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _open(self, order: JsonMap) -> None:
        call_id = order["call_id"]
        try:
            call, answer = await self._begun(order)
        except Exception as error:  # noqa: BLE001
            _say({"call_id": call_id, **_refusal(error)})
            return
        self._calls[call_id] = call
        _say({"call_id": call_id, "sdp": answer})
        try:
            await call.run()
        finally:
            del self._calls[call_id]
            _say({"call_id": call_id, "ended": True})

    async def _begun(self, order: JsonMap) -> tuple[WebRtcCall, str]:
        options: Json = {}
        if order["url"].startswith("wss:"):  # to this very server, whose name is another
            options["ssl"] = context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        socket = await connect(
            order["url"],
            additional_headers=order["headers"],
            compression=None,
            max_size=None,
            proxy=None,
            **options,
        )
        call = WebRtcCall(order["call_id"], socket, self._network.addresses)
        try:
            return call, await call.answer(order["sdp"], order["session"])
        except BaseException:
            await call.close()
            raise


def _refusal(error: Exception) -> Json:
    """Return the status and the error of OpenAI's envelope for a call that did not begin."""
    if isinstance(error, InvalidStatus):
        body = error.response.body or b"{}"
        with contextlib.suppress(ValueError, KeyError):
            return {"status": error.response.status_code, "error": json.loads(body)["error"]}
    if isinstance(error, SessionRefused):
        return {"status": 400, "error": {**error.error, "event_id": None}}
    if isinstance(error, NoPortFree):
        message = "No UDP port of the server is free for the call."
        told = {"message": message, "type": "server_error", "code": "no_udp_port"}
        return {"status": 503, "error": told}
    if isinstance(error, WebSocketException | OSError):
        logger.warning("no session for a call: %s", error)
        message = "The session could not be opened."
        return {"status": 503, "error": {"message": message, "type": "server_error"}}
    if isinstance(error, ValueError):
        message = f"sdp {error}" if str(error).startswith("has media") else f"sdp: {error}"
        told = {"message": message, "type": "invalid_request_error", "param": "sdp"}
        return {"status": 400, "error": {**told, "code": "invalid_value"}}
    logger.error("an offer cannot be answered", exc_info=error)
    told = {"message": "sdp: no offer that can be answered", "type": "invalid_request_error"}
    return {"status": 400, "error": {**told, "param": "sdp", "code": "invalid_value"}}


def _say(answer: Json) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


async def serve(network: CallNetwork) -> None:
    """Serve orders from the standard input."""
    logging.basicConfig(level=logging.WARNING, format="webrtc: %(message)s")
    orders = asyncio.StreamReader(limit=MAX_LINE)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    await Bridge(network).run(orders)


def main() -> None:
    """Serve orders, with sockets on the ports of the arguments."""
    network = network_of(sys.argv[1:])
    new_loop = None if network.ports is None else partial(CallLoop, network.ports)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve(network))


if __name__ == "__main__":
    main()
