"""Pictures that are made or edited: what is asked, and what has come."""

import base64
import io
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai import AsyncOpenAI
from PIL import Image

from omnistage.demo.failure import CannotSend
from omnistage.demo.timing import Timing

PNG = "image/png"
SIZES = ("auto", "512x512", "768x768", "1024x1024", "1024x768", "768x1024")
MAX_PREVIEWS = 3


@dataclass(frozen=True, slots=True)
class PictureSettings:
    """The settings of a reader; None leaves it to the server."""

    model: str
    prompt: str
    negative_prompt: str = ""
    size: str = "auto"
    count: int = 1
    previews: int = 2
    steps: int | None = None
    seed: int | None = None
    strength: float | None = None


@dataclass(slots=True)
class PictureProgress:
    """The images so far."""

    timing: Timing = field(default_factory=Timing)
    step: int = 0
    steps: int = 0
    preview: bytes | None = None
    pictures: list[bytes] = field(default_factory=list)

    def add(self, event: Any) -> None:
        """Take one event of a stream; the SDK has no type for our progress."""
        kind = str(event.type).rpartition(".")[2]
        if kind == "progress":
            self.step, self.steps = event.step, event.steps
            return
        self.timing.image()
        picture = base64.b64decode(event.b64_json)
        if kind == "partial_image":
            self.preview = picture
        elif kind == "completed":
            self.pictures.append(picture)

    @property
    def state(self) -> str:
        """A line that says how far it is."""
        if self.timing.ended_s is not None:
            return f"Done in {self.timing.ended_s:.2f} s."
        if not self.steps:
            return "Waiting for the first step."
        return f"Step {self.step} of {self.steps}."


def picture_request(settings: PictureSettings) -> dict[str, Any]:
    """Arguments of `images.generate` and `images.edit`."""
    ours: dict[str, Any] = {
        "stream_progress": True,
        "negative_prompt": settings.negative_prompt or None,
        "num_inference_steps": settings.steps,
        "seed": settings.seed,
        "strength": settings.strength,
    }
    return {
        "model": settings.model,
        "prompt": settings.prompt,
        "n": settings.count,
        "size": settings.size,
        "partial_images": settings.previews,
        "stream": True,
        "extra_body": {name: value for name, value in ours.items() if value is not None},
    }


async def make(
    client: AsyncOpenAI, settings: PictureSettings
) -> AsyncGenerator[PictureProgress, None]:
    """Pictures of a text; the same progress again after each event."""
    progress = PictureProgress()
    yield progress
    async for told in _follow(await client.images.generate(**picture_request(settings)), progress):
        yield told


async def edit(
    client: AsyncOpenAI, settings: PictureSettings, image: bytes, mask: bytes | None
) -> AsyncGenerator[PictureProgress, None]:
    """A picture changed by a text, where there is a mask only below it."""
    progress = PictureProgress()
    yield progress
    request = picture_request(settings) | {"image": ("image.png", image, PNG)}
    if mask is not None:
        request["mask"] = ("mask.png", mask, PNG)
    async for told in _follow(await client.images.edit(**request), progress):
        yield told


async def _follow(stream: Any, progress: PictureProgress) -> AsyncGenerator[PictureProgress, None]:
    async with stream:
        async for event in stream:
            progress.add(event)
            yield progress
    progress.timing.end()
    yield progress


def png(image: Image.Image) -> bytes:
    """The file of a picture."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def mask_of(size: tuple[int, int], layers: Sequence[Image.Image]) -> Image.Image | None:
    """A mask that is transparent where anything was painted; None where nothing was."""
    painted = Image.new("L", size, 0)
    for layer in layers:
        alpha = layer.convert("RGBA").getchannel("A").resize(size)
        painted.paste(255, mask=alpha.point(lambda value: 255 if value else 0))
    if painted.getbbox() is None:
        return None
    mask = Image.new("RGBA", size, (0, 0, 0, 255))
    mask.putalpha(painted.point(lambda value: 255 - value))
    return mask


def edit_input(drawn: Any) -> tuple[bytes, bytes | None]:
    """The picture and the mask in what gradio's editor gives."""
    background = drawn.get("background") if drawn else None
    if background is None:
        raise CannotSend("Choose a picture to edit first.")
    mask = mask_of(background.size, drawn.get("layers") or ())
    return png(background.convert("RGB")), None if mask is None else png(mask)
