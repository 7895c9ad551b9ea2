"""The tab that makes videos."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import gradio as gr
from openai import HttpxBinaryResponseContent

from omnistage.demo.backend import UNSET, Backend, failure_html, line_html, whole, written
from omnistage.demo.failure import FAILURES, CannotSend
from omnistage.demo.offer import ModelOffer
from omnistage.demo.timing import Timing
from omnistage.demo.waterfall import EMPTY, times_html

PATH = "/videos/sync"
PROMPTS = ["A sailing boat on a lake, in the morning", "A candle that burns down"]
# By what a reader sees: the field of a request.
NUMBERS = {
    "Width": "width",
    "Height": "height",
    "Frames": "num_frames",
    "Frames per second": "fps",
    "Steps": "num_inference_steps",
    "Seed": "seed",
}

Updates = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Filming:
    """Makes videos; every update is of the video, the line and the timings."""

    backend: Backend

    async def make(
        self, prompt: str | None, offer: ModelOffer | None, *numbers: str | None
    ) -> AsyncGenerator[Updates, None]:
        """Send the request, and show the file that comes."""
        timing = Timing()
        yield None, line_html("Working; a video arrives as a whole."), EMPTY
        try:
            text = written(prompt)
            if not text:
                raise CannotSend("Describe the video.")
            known = await self.backend.offer(offer)
            body: dict[str, Any] = {"model": known.model, "prompt": text}
            for (name, field), value in zip(NUMBERS.items(), numbers, strict=True):
                if (given := whole(name, value)) is not None:
                    body[field] = given
            answer = await self.backend.client.post(
                PATH, body=body, cast_to=HttpxBinaryResponseContent
            )
            timing.end()
            file = self.backend.files.save(answer.content, ".mp4")
            yield file, line_html("Done."), times_html(timing)
        except FAILURES as error:
            yield gr.skip(), failure_html(self.backend.plain(error)), EMPTY


def build(backend: Backend, offer: gr.State) -> None:
    """Lay out and connect the tab."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=300):
            prompt = gr.Textbox(
                label="Video of", lines=3, elem_id="video-prompt", placeholder=PROMPTS[0]
            )
            with gr.Row():
                start = gr.Button("Make", variant="primary", min_width=120, elem_id="video-make")
                stop = gr.Button("Stop", min_width=80)
            line = gr.HTML("", elem_id="video-line")
            with gr.Accordion("More settings", open=False):
                numbers = [gr.Textbox(label=name, placeholder=UNSET) for name in NUMBERS]
            gr.Examples([[one] for one in PROMPTS], prompt, label="Examples")
        with gr.Column(scale=1, min_width=300):
            video = gr.Video(label="Video", interactive=False, elem_id="video")
            gr.Markdown("### Timings")
            times = gr.HTML(EMPTY)
    running = start.click(
        Filming(backend).make,
        [prompt, offer, *numbers],
        [video, line, times],
        api_name="make_video",
    )
    stop.click(None, None, None, cancels=[running], api_visibility="private")
