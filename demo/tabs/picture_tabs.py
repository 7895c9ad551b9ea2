"""The tabs of images: made from a text, and edited."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import gradio as gr
from PIL import Image

from omnistage.demo import examples
from omnistage.demo.backend import UNSET, Backend, failure_html, number, whole, written
from omnistage.demo.failure import FAILURES, CannotSend
from omnistage.demo.offer import ModelOffer
from omnistage.demo.pace import paced
from omnistage.demo.pictures import (
    MAX_PREVIEWS,
    SIZES,
    PictureProgress,
    PictureSettings,
    edit,
    edit_input,
    make,
    png,
)
from omnistage.demo.waterfall import EMPTY, times_html

PROMPTS = [
    "A red circle on blue",
    "A yellow triangle on a black background",
    "A green square on white",
]

Updates = tuple[Any, ...]


def progress_html(progress: PictureProgress) -> str:
    """How far it is, as a bar and in words."""
    bar = f'<progress value="{progress.step}" max="{progress.steps or 1}"></progress>'
    return f'<div class="os-progress" role="status">{progress.state}{bar}</div>'


def shown_first(pictures: list[tuple[str, str]]) -> object:
    """The gallery's update: the first picture large."""
    return gr.update(value=pictures, selected_index=0 if pictures else None)


def prompt_in(field: str | None) -> str:
    prompt = written(field)
    if not prompt:
        raise CannotSend("Describe the image.")
    return prompt


@dataclass(frozen=True, slots=True)
class Painting:
    """Makes and edits; every update is of the pictures, the progress and the times."""

    backend: Backend

    async def make(
        self,
        prompt: str | None,
        offer: ModelOffer | None,
        negative: str | None,
        size: str,
        count: float,
        previews: float,
        steps: str | None,
        seed: str | None,
    ) -> AsyncGenerator[Updates, None]:
        """Pictures of a text."""

        async def making() -> AsyncGenerator[PictureProgress, None]:
            settings = PictureSettings(
                (await self.backend.offer(offer)).model,
                prompt_in(prompt),
                written(negative),
                size,
                round(count),
                round(previews),
                whole("Steps", steps),
                whole("Seed", seed),
            )
            async for progress in make(self.backend.client, settings):
                yield progress

        async for updates in self._show(making()):
            yield updates

    async def edit(
        self,
        drawn: Any,
        prompt: str | None,
        offer: ModelOffer | None,
        mask: Image.Image | None,
        strength: str | None,
        previews: float,
        steps: str | None,
        seed: str | None,
    ) -> AsyncGenerator[Updates, None]:
        """A picture changed by a text; a mask that is given as a file replaces a painted one."""

        async def editing() -> AsyncGenerator[PictureProgress, None]:
            image, painted = edit_input(drawn)
            settings = PictureSettings(
                (await self.backend.offer(offer)).model,
                prompt_in(prompt),
                previews=round(previews),
                steps=whole("Steps", steps),
                seed=whole("Seed", seed),
                strength=number("Strength", strength),
            )
            chosen = painted if mask is None else png(mask.convert("RGBA"))
            async for progress in edit(self.backend.client, settings, image, chosen):
                yield progress

        async for updates in self._show(editing()):
            yield updates

    async def _show(self, running: AsyncIterator[PictureProgress]) -> AsyncGenerator[Updates, None]:
        shown: tuple[bytes | None, int] = (None, 0)
        progress = None
        try:
            async with aclosing(paced(running)) as news:
                async for progress in news:
                    now = (progress.preview, len(progress.pictures))
                    gallery = gr.skip() if now == shown else shown_first(self._gallery(progress))
                    shown = now
                    yield gallery, progress_html(progress), times_html(progress.timing)
        except FAILURES as error:
            yield gr.skip(), failure_html(self.backend.plain(error)), EMPTY

    def _gallery(self, progress: PictureProgress) -> list[tuple[str, str]]:
        """Finished pictures, and until there is one the latest preview."""
        save = self.backend.files.save
        if progress.pictures:
            count = len(progress.pictures)
            return [
                (save(picture, ".png"), f"{number} of {count}" if count > 1 else "")
                for number, picture in enumerate(progress.pictures, 1)
            ]
        return [(save(progress.preview, ".png"), "preview")] if progress.preview else []


def _results(name: str) -> tuple[gr.Gallery, gr.HTML, gr.HTML]:
    gallery = gr.Gallery(
        label="Images",
        preview=True,
        height=420,
        object_fit="contain",
        elem_id=f"{name}-gallery",
        format="png",
        interactive=False,
        buttons=["download", "fullscreen"],
    )
    progress = gr.HTML("", elem_id=f"{name}-progress")
    gr.Markdown("### Timings")
    return gallery, progress, gr.HTML(EMPTY)


def _common() -> tuple[gr.Slider, gr.Textbox, gr.Textbox]:
    previews = gr.Slider(0, MAX_PREVIEWS, 2, step=1, label="Previews")
    steps = gr.Textbox(label="Steps", placeholder=UNSET)
    seed = gr.Textbox(label="Seed", placeholder=UNSET)
    return previews, steps, seed


def build_make(backend: Backend, offer: gr.State) -> None:
    """Lay out and connect the tab that makes pictures."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=300):
            prompt = gr.Textbox(
                label="Image of", lines=3, elem_id="picture-prompt", placeholder=PROMPTS[0]
            )
            with gr.Row():
                start = gr.Button("Make", variant="primary", min_width=120, elem_id="picture-make")
                stop = gr.Button("Stop", min_width=80)
            with gr.Row():
                size = gr.Dropdown(
                    list(SIZES), value="auto", label="Size", allow_custom_value=True, min_width=120
                )
                count = gr.Slider(1, 4, 1, step=1, label="Images", min_width=120)
            with gr.Accordion("More settings", open=False):
                negative = gr.Textbox(label="What it should not show")
                previews, steps, seed = _common()
            gr.Examples([[text] for text in PROMPTS], prompt, label="Examples")
        with gr.Column(scale=2, min_width=320):
            results = _results("picture")
    painting = Painting(backend)
    running = gr.on(
        [start.click, prompt.submit],
        painting.make,
        [prompt, offer, negative, size, count, previews, steps, seed],
        list(results),
        api_name="make_picture",
    )
    stop.click(None, None, None, cancels=[running])


def build_edit(backend: Backend, offer: gr.State) -> None:
    """Lay out and connect the tab that edits pictures."""
    with gr.Row(equal_height=False):
        with gr.Column(scale=1, min_width=320):
            gr.Markdown("Choose an image and paint over what should change.")
            drawn = gr.ImageEditor(
                type="pil",
                label="Image",
                height=420,
                sources=["upload", "clipboard"],
                transforms=(),
                layers=False,
                brush=gr.Brush(default_size=24, colors=["#e11d48"], color_mode="fixed"),
                elem_id="edit-picture",
                format="png",
                buttons=[],
            )
            prompt = gr.Textbox(label="What should be there", lines=2, elem_id="edit-prompt")
            with gr.Row():
                start = gr.Button("Edit", variant="primary", min_width=120, elem_id="edit-start")
                stop = gr.Button("Stop", min_width=80)
            with gr.Accordion("More settings", open=False):
                mask = gr.Image(
                    type="pil",
                    image_mode="RGBA",
                    sources=["upload"],
                    height=160,
                    buttons=[],
                    label="Mask as a file: transparent where the image may change",
                )
                strength = gr.Textbox(
                    label="Strength: how far from the image, up to 1", placeholder=UNSET
                )
                previews, steps, seed = _common()
            house = backend.files.save(png(examples.house()), ".png")
            example = {"background": house, "layers": [], "composite": house}
            gr.Examples(
                [[example, "A snowy meadow in winter"]],
                [drawn, prompt],
                label="Examples",
                example_labels=["A house in a meadow"],
            )
        with gr.Column(scale=1, min_width=320):
            results = _results("edit")
    painting = Painting(backend)
    running = start.click(
        painting.edit,
        [drawn, prompt, offer, mask, strength, previews, steps, seed],
        list(results),
        api_name="edit_picture",
    )
    stop.click(None, None, None, cancels=[running])
