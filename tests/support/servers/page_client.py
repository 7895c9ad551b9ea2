"""A client of the page, as its script is."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from gradio_client import Client, handle_file
from gradio_client.client import Job
from support.servers.page import running_page

SETTINGS = ("Text and speech", "ethan", "", None, None, None)


@contextmanager
def opened(url: str, folder: Path) -> Iterator[Client]:
    """A client of the page for a server."""
    with running_page(url) as page:
        client = Client(page, verbose=False, analytics_enabled=False, download_files=str(folder))
        try:
            client.predict(None, None, api_name="/look")  # as the page does when it is opened
            yield client
        finally:
            client.close()


def files(chat: Any, role: str) -> list[str]:
    bubbles = [one for one in chat if one["role"] == role]
    parts = [part for one in bubbles for part in one["content"]]
    return [Path(part["file"]).suffix for part in parts if part["type"] == "file"]


def last(updates: list[Any], index: int) -> Any:
    """The last value of one output; updates may leave it as it is."""
    values = [one[index] for one in updates]
    return [one for one in values if not is_skip(one)][-1]


def is_skip(value: Any) -> bool:
    return isinstance(value, dict) and "__type__" in value and "value" not in value


def ask(client: Client, text: str, *attached: Path, chosen: Any = SETTINGS) -> list[Any]:
    """All updates of one answer: chat, question, player, times."""
    box = {"text": text, "files": [handle_file(str(path)) for path in attached]}
    job = client.submit(box, *chosen, api_name="/chat")
    return list(job)


def visible_tabs(client: Client) -> list[bool]:
    """Return whether each tab is visible, in the order of the page."""
    call = f"{client.src}gradio_api/call/look"
    event = httpx.post(call, json={"data": [None, None]}).json()["event_id"]
    (data,) = re.findall(r"^data: (.*)$", httpx.get(f"{call}/{event}").text, re.MULTILINE)
    return [update["visible"] for update in json.loads(data) if is_tab(update)]


def is_tab(update: Any) -> bool:
    return isinstance(update, dict) and update.keys() == {"visible", "__type__"}


def make(client: Client, prompt: str) -> Job:
    return client.submit(prompt, "", "auto", 1, 2, None, None, api_name="/make_picture")
