"""A conversation by voice: the page's microphone and speaker, and the session of the server.

The browser speaks to the page, which passes events on with its own key.
"""

import asyncio
import contextlib

import gradio as gr
import openai
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from websockets.exceptions import ConnectionClosed, WebSocketException

from omnistage.demo import assets
from omnistage.demo.backend import Backend
from omnistage.demo.failure import FAILURES
from omnistage.demo.offer import learn

PATH = "/talk"
POLICY, INTERNAL = 1008, 1011  # codes with which a connection is closed
MAX_REASON = 120  # characters: a close has 123 bytes for it


def build_talk() -> None:
    """Add the button, what is said, and the script that listens and plays."""
    gr.HTML(
        html_template=assets.TALK_HTML,
        js_on_load=assets.TALK_SCRIPT,
        apply_default_css=False,
        elem_id="talk",
    )


def add_talk(app: FastAPI, backend: Backend) -> None:
    """Add WebSocket /talk: events of a session, both ways."""

    @app.websocket(PATH)
    async def talk(browser: WebSocket) -> None:
        if not is_own_page(browser):
            await browser.close(POLICY)
            return
        await browser.accept()
        try:
            offer = await learn(backend.client)
            async with backend.client.realtime.connect(model=offer.model) as server:
                await pass_on(browser, server)
        except (*FAILURES, WebSocketException, OSError) as error:
            reason = backend.plain(error) if isinstance(error, FAILURES) else str(error)
            with contextlib.suppress(RuntimeError, WebSocketDisconnect):
                await browser.close(INTERNAL, reason[:MAX_REASON])


def is_own_page(browser: WebSocket) -> bool:
    """Return whether a connection is from this page, and not from another site's."""
    origin = browser.headers.get("origin")
    return origin is None or origin.partition("://")[2] == browser.headers.get("host")


async def pass_on(browser: WebSocket, server: AsyncRealtimeConnection) -> None:
    """Pass events on until one side has gone."""

    async def speak() -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await server.send_raw(await browser.receive_text())

    async def hear() -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await browser.send_text((await server.recv_bytes()).decode())
        await browser.close()

    tasks = {asyncio.create_task(speak()), asyncio.create_task(hear())}
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for task in done:
        with contextlib.suppress(ConnectionClosed, openai.OpenAIError):
            task.result()
