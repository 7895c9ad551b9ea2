"""The fields of a video."""

from typing import Annotated

from pydantic import Field

from omnistage.server.http.fields import RequestFields
from omnistage.server.images.schema import MAX_PROMPT, Scale
from omnistage.stage_configs.sampling import Count, Seed

Side = Annotated[Count, Field(ge=16, le=4096, multiple_of=2)]


class VideoRequest(RequestFields):
    """The fields of a request for a video; the pipeline itself refuses what it cannot make."""

    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT)]
    model: str | None = None
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT)] | None = None
    width: Side | None = None
    height: Side | None = None
    num_frames: Annotated[Count, Field(ge=1, le=1024)] | None = None
    fps: Annotated[Count, Field(ge=1, le=120)] | None = None
    num_inference_steps: Annotated[Count, Field(ge=1, le=1000)] | None = None
    guidance_scale: Scale | None = None
    seed: Seed | None = None
