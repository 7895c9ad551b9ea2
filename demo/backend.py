"""The one server behind the page, and what all readers of the page share."""

import re
from dataclasses import dataclass, field
from html import escape

from openai import AsyncOpenAI, Timeout

from omnistage.demo.failure import CannotSend, plain
from omnistage.demo.files import FileStore
from omnistage.demo.offer import ModelOffer, learn
from omnistage.demo.sound import LatestSounds

TIMEOUT = Timeout(600, connect=5)
NO_KEY = "none"
UNSET = "server default"  # shown in a field that is left empty


@dataclass(frozen=True, slots=True)
class Backend:
    """A server's address and client, sounds on their way, and files of answers."""

    url: str
    client: AsyncOpenAI
    files: FileStore
    sounds: LatestSounds = field(default_factory=LatestSounds)

    @classmethod
    def connect(cls, url: str, api_key: str | None, files: FileStore) -> "Backend":
        """The server need not be there yet."""
        base = url.rstrip("/").removesuffix("/v1")
        key = api_key or NO_KEY
        client = AsyncOpenAI(base_url=f"{base}/v1", api_key=key, max_retries=0, timeout=TIMEOUT)
        return cls(base, client, files)

    def plain(self, error: Exception) -> str:
        """A failure as one sentence."""
        return plain(error, self.url)

    async def offer(self, known: ModelOffer | None) -> ModelOffer:
        """Returns what is known of the server, or else what it says now."""
        return known or await learn(self.client)


def failure_html(sentence: str) -> str:
    """A failure where it is seen and read out."""
    return f'<div class="os-failure" role="alert">{with_code(sentence)}</div>'


def with_code(sentence: str) -> str:
    """A sentence with what is between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(sentence))


def line_html(sentence: str) -> str:
    """Returns what goes on, for whoever looks."""
    return f'<div class="os-line" role="status">{escape(sentence)}</div>'


def status_html(offer: ModelOffer) -> str:
    """The model and what it makes."""
    made = ", ".join(name for name in ("text", "audio", "image", "video") if name in offer.outputs)
    notes = "".join(f'<span class="os-note">{escape(note)}</span>' for note in offer.notes)
    banner = f'<div class="os-banner" role="note">{escape(offer.banner)}</div>'
    head = _head("os-ok", f"<code>{escape(offer.model)}</code> makes {made}{notes}")
    return head + (banner if offer.banner else "")


def dead_html(sentence: str) -> str:
    """Why nothing works."""
    return _head("os-dead", f'<span role="alert">{with_code(sentence)}</span>')


def connecting_html() -> str:
    """Returns the head of a page that has not heard of the server yet."""
    return _head("os-connecting", '<span role="status">Connecting to the server.</span>')


def _head(state: str, words: str) -> str:
    return (
        f'<div class="os-head"><h1>omnistage</h1><div class="os-status {state}">'
        f'<span class="os-dot"></span>{words}</div></div>'
    )


def written(text: str | None) -> str:
    """Returns what a field for text holds; gradio may send none for an empty one."""
    return (text or "").strip()


def number(name: str, field: str | None) -> float | None:
    """Returns what a field for a number holds; None if it is empty, which leaves it to the
    server.
    """
    text = written(field)
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        raise CannotSend(f"{name} must be a number, not {text!r}.") from None


def whole(name: str, field: str | None) -> int | None:
    """The same of a whole number."""
    value = number(name, field)
    if value is not None and not value.is_integer():
        raise CannotSend(f"{name} must be a whole number, not {value}.")
    return None if value is None else int(value)
