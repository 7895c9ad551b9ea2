"""The tab that makes videos."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from omnistage.demo.attachments import part_of
from omnistage.demo.backend import UNSET, Backend, failure_html, line_html, number, whole, written
from omnistage.demo.failure import FAILURES, CannotSend
from omnistage.demo.offer import ModelOffer
from omnistage.demo.timing import Timing
from omnistage.demo.videos import video_of
from omnistage.demo.waterfall import EMPTY, times_html

PROMPTS = ["A sailing boat on a lake, in the morning", "A candle that burns down"]
# By what a reader sees: the field of a request.
NUMBERS = {
    "Width": "width",
    "Height": "height",
    "Seconds": "seconds",
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
        self,
        prompt: str | None,
        first: str | None,
        offer: ModelOffer | None,
        *numbers: str | None,
    ) -> AsyncGenerator[Updates, None]:
        """Create a job, show its progress, and its file at the end; `first`: an image's path."""
        timing = Timing()
        yield None, line_html("Waiting."), EMPTY
        try:
            text = written(prompt)
            if not text:
                raise CannotSend("Describe the video.")
            known = await self.backend.offer(offer)
            body: dict[str, Any] = {"model": known.model, "prompt": text}
            if first is not None:
                body["input_reference"] = part_of(Path(first))["image_url"]["url"]
            for (name, field), value in zip(NUMBERS.items(), numbers, strict=True):
                given = number(name, value) if field == "seconds" else whole(name, value)
                if given is not None:
                    body[field] = given
            async with aclosing(video_of(self.backend.client, body)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, int):
                        yield gr.skip(), line_html(f"Working: {piece} % of the steps."), EMPTY
                        continue
                    timing.end()
                    file = self.backend.files.save(piece, ".mp4")
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
                first = gr.Image(
                    type="filepath",
                    sources=["upload"],
                    height=160,
                    buttons=[],
                    label="First frame, for models that take one",
                )
                numbers = [gr.Textbox(label=name, placeholder=UNSET) for name in NUMBERS]
            gr.Examples([[one] for one in PROMPTS], prompt, label="Examples")
        with gr.Column(scale=1, min_width=300):
            video = gr.Video(label="Video", interactive=False, elem_id="video")
            gr.Markdown("### Timings")
            times = gr.HTML(EMPTY)
    running = start.click(
        Filming(backend).make,
        [prompt, first, offer, *numbers],
        [video, line, times],
        api_name="make_video",
    )
    stop.click(None, None, None, cancels=[running], api_visibility="private")
