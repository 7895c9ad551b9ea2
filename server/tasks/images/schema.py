"""The fields of image requests, and the request that the stages get."""

import re
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import BeforeValidator, Field

from omnistage.connectors.chunk import Tensor
from omnistage.server.common.errors import invalid
from omnistage.server.media.images import Encoding, InputImages
from omnistage.server.runtime.request import GraphRequest
from omnistage.server.tasks.chat.schema import Loras
from omnistage.server.tasks.images.extra import ExtraFields
from omnistage.stage_configs.declared.sampling import Count, Flag, Number, Seed
from omnistage.stages.messages.body import Draw, GivenMedium
from omnistage.stages.messages.to_stage import Request

IMAGE_ONLY = ("image",)  # the outputs of such a request
MIN_SIDE, MAX_SIDE = 16, 4096
SIZE = re.compile(r"^([1-9][0-9]{0,4})x([1-9][0-9]{0,4})$")
DEFAULT_COMPRESSION = 100
IGNORED = frozenset({"user", "moderation", "style"})
# What the stage reads, under the same names.
SENT_ON = (
    "prompt",
    "negative_prompt",
    "num_inference_steps",
    "guidance_scale",
    "true_cfg_scale",
    "strength",
    "quality",
    "background",
    "partial_images",
    "lora",
    "step_cache",
    "extra",
    "layers",
    "resolution",
    "controlnet_conditioning_scale",
    "control_guidance_start",
    "control_guidance_end",
)
Side = Annotated[Count, Field(ge=MIN_SIDE, le=MAX_SIDE)]
Scale = Annotated[Number, Field(ge=0, le=100)]
Share = Annotated[Number, Field(ge=0, le=1)]  # of the steps
MAX_CONTROLS = 16
MAX_LAYERS = 16  # of an image
Scales = Annotated[list[Scale], Field(min_length=1, max_length=MAX_CONTROLS)]
Shares = Annotated[list[Share], Field(min_length=1, max_length=MAX_CONTROLS)]
MAX_N = 10
MAX_PROMPT = 32_000


def checked_prompt(value: object) -> object:
    """One prompt or several; raises ValueError."""
    prompts = value if isinstance(value, list) else [value]
    if not 1 <= len(prompts) <= MAX_N:
        raise ValueError(f"must have 1 to {MAX_N} prompts")
    if not all(isinstance(one, str) and 1 <= len(one) <= MAX_PROMPT for one in prompts):
        raise ValueError(f"must be a string of 1 to {MAX_PROMPT} characters, or a list of them")
    return value


Prompts = Annotated[str | list[str], BeforeValidator(checked_prompt)]


IMAGE_URL: dict[str, Any] = {
    "type": "object",
    "required": ["image_url"],
    "properties": {
        "image_url": {"type": "string", "format": "uri", "description": "data, http, https or file"}
    },
}
CONTROL_IMAGES: dict[str, Any] = {
    "anyOf": [
        IMAGE_URL,
        {"type": "array", "minItems": 1, "maxItems": MAX_CONTROLS, "items": IMAGE_URL},
        {"type": "null"},
    ]
}


class ImageRequest(ExtraFields):
    """OpenAI's fields, and below them ours."""

    ignored = IGNORED

    prompt: Prompts
    model: str | None = None
    n: Annotated[Count, Field(ge=1, le=MAX_N)] | None = None
    size: str | None = None
    quality: Literal["auto", "low", "medium", "high", "standard", "hd"] | None = None
    background: Literal["auto", "opaque", "transparent"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: Annotated[Count, Field(ge=0, le=100)] | None = None
    response_format: Literal["b64_json", "url"] | None = None
    stream: Flag | None = None
    partial_images: Annotated[Count, Field(ge=0, le=3)] | None = None
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT)] | None = None
    width: Side | None = None
    height: Side | None = None
    num_inference_steps: Annotated[Count, Field(ge=1, le=1000)] | None = None
    guidance_scale: Scale | None = None
    true_cfg_scale: Scale | None = None
    seed: Seed | None = None
    lora: Loras | None = None
    step_cache: Flag | None = None
    stream_progress: Flag | None = None
    layers: Annotated[Count, Field(ge=1, le=MAX_LAYERS)] | None = None
    resolution: Annotated[Count, Field(ge=MIN_SIDE, le=MAX_SIDE)] | None = None
    controlnet_conditioning_scale: Scale | Scales | None = None
    control_guidance_start: Share | Shares | None = None
    control_guidance_end: Share | Shares | None = None

    @property
    def encoding(self) -> Encoding:
        """How the answer's images are written."""
        compression = self.output_compression
        return Encoding(
            self.output_format or "png",
            DEFAULT_COMPRESSION if compression is None else compression,
        )

    @property
    def made_quality(self) -> str:
        """The answer's name for what is made: only these two take fewer steps."""
        return self.quality if self.quality in ("low", "medium") else "high"

    def to_request(self, given: InputImages) -> GraphRequest:
        """Makes the request for the stages; raises ApiError for fields that contradict each
        other.
        """
        self.check()
        width, height = self._size()
        sent = {name: getattr(self, name) for name in SENT_ON if name in type(self).model_fields}
        media = [GivenMedium(field, tensor) for field, tensor, _ in given.media]
        tensors = {tensor: Tensor.from_numpy(pixels) for _, tensor, pixels in given.media}
        size = None if self.size == "auto" else self.size
        body = {"n": self.n or 1, "size": size, "width": width, "height": height}
        return GraphRequest(
            id=f"img-{uuid4().hex}",
            message=Request(Draw({**sent, **body}, media), list(IMAGE_ONLY), seed=self.seed),
            tensors=tensors,
        )

    @property
    def num_images(self) -> int:
        """`n` of each prompt."""
        return (self.n or 1) * (1 if isinstance(self.prompt, str) else len(self.prompt))

    def check(self) -> None:
        """Raise ApiError for fields that do not go together."""
        super().check()
        if self.num_images > MAX_N:
            raise invalid("n", f"times the number of prompts must be at most {MAX_N}")
        if self.output_compression not in (None, 100) and self.encoding.form == "png":
            raise invalid("output_compression", "must be 100 with png: it is for jpeg and webp")
        if self.background == "transparent" and self.encoding.form == "jpeg":
            raise invalid("background", "can be transparent in png and webp only")
        if self.stream and self.response_format == "url":
            raise invalid("response_format", "must be b64_json in a stream")
        if self.partial_images and not self.stream:
            raise invalid("partial_images", "are only there when stream is true")
        if self.stream_progress and not self.stream:
            raise invalid("stream_progress", "is only allowed when stream is true")

    def _size(self) -> tuple[int | None, int | None]:
        return sides_of(self.size, self.width, self.height)


def sides_of(
    size: str | None, width: int | None, height: int | None
) -> tuple[int | None, int | None]:
    """Returns the width and height that a request asks for; ApiError if it says them twice."""
    if size in (None, "auto"):
        return width, height
    if width is not None or height is not None:
        raise invalid("size", "says the same as width and height: give one of them")
    found = SIZE.match(size or "")
    if found is None:
        raise invalid("size", 'must be "auto" or WIDTHxHEIGHT, such as 1024x1024')
    sides = int(found[1]), int(found[2])
    if not all(MIN_SIDE <= side <= MAX_SIDE for side in sides):
        raise invalid("size", f"must have sides of {MIN_SIDE} to {MAX_SIDE}")
    return sides


class GenerationRequest(ImageRequest):
    """The same with images that control what is made: objects with an `image_url`, or one."""

    control_image: Any = Field(default=None, json_schema_extra=CONTROL_IMAGES)


class EditRequest(ImageRequest):
    """The same with images to edit; `strength` is how far from them the result may be."""

    input_fidelity: Literal["high", "low"] | None = None
    strength: Annotated[Number, Field(gt=0, le=1)] | None = None


# In a form these are words; the others are JSON's numbers and booleans, written out.
WORDS = frozenset(
    {
        "prompt",
        "model",
        "size",
        "quality",
        "background",
        "output_format",
        "response_format",
        "negative_prompt",
        "input_fidelity",
    }
)
