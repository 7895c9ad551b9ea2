"""The page: a head that tells of the server, and a tab for each thing that it may do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from omnistage.demo import talk
from omnistage.demo.backend import Backend, connecting_html, dead_html, status_html
from omnistage.demo.failure import FAILURES
from omnistage.demo.offer import MODES, ModelOffer, learn
from omnistage.demo.tabs import chat_tab, picture_tabs, sound_tabs, video_tab

TITLE = "omnistage"
TABS = {
    "chat": "Chat",
    "talk": "Talk",
    "pictures": "Images",
    "edits": "Edits",
    "videos": "Videos",
    "speech": "Speech",
    "transcription": "Transcription",
}
CONCURRENCY = 32
KEEP_S = 86_400  # how long files that readers sent stay


@dataclass(frozen=True, slots=True)
class Reflection:
    """Brings the page in line with what the server offers, or says why there is nothing."""

    backend: Backend
    questions: Sequence[Mapping[str, Any]]  # of the examples

    async def look(self, mode: str | None, voice: str | None) -> tuple[object, ...]:
        """Return updates of the head, the offer, the tabs, the choices and the conversation."""
        try:
            offer = await learn(self.backend.client)
        except FAILURES as error:
            tabs = [gr.update(visible=name == "chat") for name in TABS]
            return dead_html(self.backend.plain(error)), None, gr.skip(), *tabs, *[gr.skip()] * 4
        tabs = [gr.update(visible=name in offer.tabs) for name in TABS]
        first = next(name for name in TABS if name in offer.tabs or name == "chat")
        return (
            status_html(offer),
            offer,
            gr.update(selected=first),
            *tabs,
            *choices(offer, mode, voice),
            gr.update(
                render_markdown=not offer.is_noise,
                examples=chat_tab.shown_examples(self.questions, offer),
            ),
        )


def choices(offer: ModelOffer, mode: str | None, voice: str | None) -> list[object]:
    """The choices of output, voice of the chat and voice of speech; what was chosen stays."""
    modes, voices = offer.modes, list(offer.voices)
    chosen = mode if mode in modes[1:] else next(iter(modes[-1:]), None)
    named = voice if voice in voices else next(iter(voices), None)
    voice_update = {"choices": voices, "value": named}
    return [
        gr.update(choices=modes, value=chosen),
        gr.update(**voice_update, visible="audio" in MODES.get(chosen or "", ()) and bool(voices)),
        gr.update(**voice_update),
    ]


def build_page(backend: Backend) -> gr.Blocks:
    """The whole page, not yet served."""
    with gr.Blocks(
        title=TITLE, analytics_enabled=False, delete_cache=(KEEP_S, KEEP_S), fill_width=True
    ) as page:
        offer = gr.State(None)
        with gr.Row(equal_height=True):
            head = gr.HTML(connecting_html(), elem_id="head")
            again = gr.Button("Reconnect", size="sm", scale=0, min_width=90, elem_id="reconnect")
        with gr.Tabs() as tabs:
            with gr.Tab(TABS["chat"], id="chat") as chat_place:
                chat = chat_tab.build(backend, offer)
            with gr.Tab(TABS["talk"], id="talk", visible=False) as talk_place:
                talk.build_talk()
            with gr.Tab(TABS["pictures"], id="pictures", visible=False) as pictures_place:
                picture_tabs.build_make(backend, offer)
            with gr.Tab(TABS["edits"], id="edits", visible=False) as edits_place:
                picture_tabs.build_edit(backend, offer)
            with gr.Tab(TABS["videos"], id="videos", visible=False) as videos_place:
                video_tab.build(backend, offer)
            with gr.Tab(TABS["speech"], id="speech", visible=False) as speech_place:
                voice = sound_tabs.build_speech(backend, offer)
            with gr.Tab(TABS["transcription"], id="transcription", visible=False) as heard_place:
                sound_tabs.build_transcription(backend, offer)
        pictured = [pictures_place, edits_place, videos_place]
        places = [chat_place, talk_place, *pictured, speech_place, heard_place]
        gr.on(
            [page.load, again.click],
            Reflection(backend, chat.questions).look,
            [chat.mode, chat.voice],
            [head, offer, tabs, *places, chat.mode, chat.voice, voice, chat.conversation],
            api_name="look",
            show_progress="hidden",
        )
    page.queue(default_concurrency_limit=CONCURRENCY)
    return page
