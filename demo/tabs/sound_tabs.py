"""The tabs of sound: speech from a text, and text from speech."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from omnistage.demo import assets
from omnistage.demo.backend import Backend, failure_html, line_html, written
from omnistage.demo.failure import FAILURES, CannotSend
from omnistage.demo.offer import ModelOffer
from omnistage.demo.pace import paced
from omnistage.demo.speech import SpeechProgress, SpeechSettings, speak, transcribe, translate
from omnistage.demo.waterfall import EMPTY, times_html

TEXTS = [
    "The little dog ran to the garden.",
    "Seven plus five is twelve. Tuesday comes after Monday.",
]
TRANSCRIBE, TRANSLATE = "Transcribe", "Translate to English"

Updates = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Speaking:
    """Speaks and understands."""

    backend: Backend

    async def speak(
        self,
        field: str | None,
        offer: ModelOffer | None,
        voice: str | None,
        speed: float,
        instructions: str | None,
    ) -> AsyncGenerator[Updates, None]:
        """Yield updates of the player, the line and the timings."""
        spoken = SpeechProgress(self.backend.sounds.open())
        yield None, line_html("Sent."), EMPTY
        try:
            known = await self.backend.offer(offer)
            text = written(field)
            if not text:
                raise CannotSend("Write a text to speak.")
            chosen = voice or next(iter(known.voices), "")
            settings = SpeechSettings(known.model, text, chosen, speed, written(instructions))
            yield spoken.sound.id, gr.skip(), gr.skip()
            coming = speak(self.backend.client, settings, spoken)
            async with aclosing(paced(coming)) as news:
                async for _ in news:
                    yield gr.skip(), line_html("Speaking."), times_html(spoken.timing)
            yield gr.skip(), line_html("Done."), times_html(spoken.timing)
        except FAILURES as error:
            yield gr.skip(), failure_html(self.backend.plain(error)), EMPTY
        finally:
            spoken.sound.end()

    async def understand(
        self, file: str | None, offer: ModelOffer | None, task: str, language: str | None
    ) -> AsyncGenerator[Updates, None]:
        """Updates of the text, the line and the times."""
        yield "", line_html("Listening."), EMPTY
        try:
            if file is None:
                raise CannotSend("Record or choose audio first.")
            known = await self.backend.offer(offer)
            if task == TRANSLATE:
                told = await translate(self.backend.client, known.model, Path(file))
                yield told.text, line_html("Done."), times_html(told.timing)
                return
            coming = transcribe(self.backend.client, known.model, Path(file), written(language))
            async with aclosing(paced(coming)) as news:
                async for told in news:
                    yield told.text, gr.skip(), times_html(told.timing)
            yield gr.skip(), line_html("Done."), gr.skip()
        except FAILURES as error:
            yield gr.skip(), failure_html(self.backend.plain(error)), EMPTY


def build_speech(backend: Backend, offer: gr.State) -> gr.Dropdown:
    """Lay out and connect the tab that speaks; its choice of voices."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=300):
            text = gr.Textbox(label="Text", lines=4, elem_id="speech-text", placeholder=TEXTS[0])
            with gr.Row():
                start = gr.Button("Speak", variant="primary", min_width=120, elem_id="speech-start")
                stop = gr.Button("Stop", min_width=80)
            player = assets.player("speech-player")
            line = gr.HTML("", elem_id="speech-line")
            voice = gr.Dropdown([], label="Voice", elem_id="speech-voice")
            speed = gr.Slider(0.25, 4, 1, step=0.05, label="Speed")
            with gr.Accordion("More settings", open=False):
                instructions = gr.Textbox(label="Instructions: how to speak", lines=2)
            gr.Examples([[one] for one in TEXTS], text, label="Examples")
        with gr.Column(scale=1, min_width=300):
            gr.Markdown("### Timings")
            times = gr.HTML(EMPTY)
    running = start.click(
        Speaking(backend).speak,
        [text, offer, voice, speed, instructions],
        [player, line, times],
        api_name="speak",
    )
    stop.click(lambda: None, None, player, cancels=[running], api_visibility="private")
    return voice


def build_transcription(backend: Backend, offer: gr.State) -> None:
    """Lay out and connect the tab that writes down what is said."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=300):
            sound = gr.Audio(
                sources=["upload", "microphone"],
                type="filepath",
                label="Audio",
                elem_id="heard",
                buttons=[],
            )
            task = gr.Radio([TRANSCRIBE, TRANSLATE], value=TRANSCRIBE, label="Task")
            language = gr.Textbox(label="Language, if known", placeholder="en")
            with gr.Row():
                start = gr.Button("Start", variant="primary", min_width=120, elem_id="heard-start")
                stop = gr.Button("Stop", min_width=80)
        with gr.Column(scale=1, min_width=300):
            text = gr.Textbox(label="Text", lines=8, elem_id="heard-text", buttons=["copy"])
            line = gr.HTML("", elem_id="heard-line")
            gr.Markdown("### Timings")
            times = gr.HTML(EMPTY)
    running = start.click(
        Speaking(backend).understand,
        [sound, offer, task, language],
        [text, line, times],
        api_name="transcribe",
    )
    stop.click(None, None, None, cancels=[running])
