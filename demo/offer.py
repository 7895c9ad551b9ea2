"""The offer of a server, read from the server itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import openai
from openai import AsyncOpenAI

OURS = "omnistage"
LOADING = "Its voices are not known yet: stages are still loading."
# Outputs of a chat by the name of the choice.
MODES: Mapping[str, tuple[str, ...]] = {
    "Text": ("text",),
    "Text and image": ("text", "image"),
    "Text, speech and image": ("text", "audio", "image"),
    "Text and speech": ("text", "audio"),
}


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """One model, what it makes, and with which voices."""

    model: str
    outputs: frozenset[str]
    voices: tuple[str, ...] = ()
    banner: str = ""  # what the server notes about its model
    notes: tuple[str, ...] = ()
    has_timeline: bool = False
    chat_outputs: frozenset[str] | None = None  # of its chats, where that is not all
    only_in_chats: frozenset[str] = frozenset()

    @property
    def is_noise(self) -> bool:
        """Returns True if the server notes that its weights are random."""
        return "random weights" in self.banner

    @property
    def modes(self) -> list[str]:
        """The choices of a chat's output. A server without a text model sends pictures alone."""
        made = self.outputs if self.chat_outputs is None else self.chat_outputs
        return [name for name, outputs in MODES.items() if made.issuperset(outputs[1:] or outputs)]

    @property
    def drawing_mode(self) -> str | None:
        """The choice in which a chat with a text model draws, and speaks if it can; None if none
        does.
        """
        if "Text" not in self.modes:
            return None
        return next((name for name in reversed(self.modes) if "image" in MODES[name]), None)

    @property
    def tabs(self) -> frozenset[str]:
        """The tabs that this server can serve."""
        found = {"chat"} if self.modes else set()
        if {"text", "transcript"} & self.outputs:
            found.add("transcription")
        if "audio" in self.outputs:
            found.add("speech")
        if "Text and speech" in self.modes:
            found.add("talk")
        if "image" in self.outputs - self.only_in_chats:
            found |= {"pictures", "edits"}
        if "video" in self.outputs - self.only_in_chats:
            found.add("videos")
        return frozenset(found)


async def learn(client: AsyncOpenAI) -> ModelOffer:
    """Ask for the models and the voices."""
    models = await client.models.list()
    if not models.data:
        raise openai.OpenAIError("The server lists no model.")
    card = models.data[0]
    extra = card.model_extra or {}
    outputs = frozenset(extra.get("output_modalities") or ("text",))
    voices, note = await _voices(client) if "audio" in outputs else ((), "")
    notes = (note,) if note else ()
    banner = str(extra.get("note") or "")
    chats = extra.get("chat_modalities")
    return ModelOffer(
        card.id,
        outputs,
        voices,
        banner,
        notes,
        has_timeline=card.owned_by == OURS,
        chat_outputs=None if chats is None else frozenset(chats),
        only_in_chats=frozenset(extra.get("chat_only_modalities") or ()),
    )


async def _voices(client: AsyncOpenAI) -> tuple[tuple[str, ...], str]:
    """The voices, and why there are none."""
    try:
        answer = await client.get("/audio/voices", cast_to=object)
    except openai.NotFoundError:
        return (), ""
    except openai.InternalServerError as error:
        if error.status_code == 503:
            return (), LOADING
        raise
    return names_of(answer), ""


def names_of(answer: object) -> tuple[str, ...]:
    """The names in a list of voices: each a string or an object with a name."""
    listed: Sequence[object] = answer.get("voices", ()) if isinstance(answer, dict) else ()
    return tuple(str(one["name"] if isinstance(one, dict) else one) for one in listed)
