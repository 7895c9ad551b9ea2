"""Videos of words."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated
from uuid import uuid4

from pydantic import Field

from omnistage.server.common.fields import RequestFields
from omnistage.server.common.served import check_model
from omnistage.server.runtime.request import GraphRequest, ImageOutput, Outputs
from omnistage.server.tasks.image_task import check_draws
from omnistage.server.tasks.images.schema import MAX_PROMPT, Scale
from omnistage.server.tasks.service import Caller, Service, send
from omnistage.stage_configs.sampling import Count, Seed
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.to_stage import Request

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


@dataclass(frozen=True, slots=True)
class RunningVideo:
    """A video request that was sent to the stages."""

    request: GraphRequest
    outputs: Outputs

    async def frames(self) -> list[ImageOutput]:
        """Collect the frames; raises ApiError."""
        async with aclosing(self.outputs) as outputs:
            return [one async for one in outputs if isinstance(one, ImageOutput) and one.pixels]


async def run_video(service: Service, fields: VideoRequest, caller: Caller) -> RunningVideo:
    """Check a request for a video and send it; raises ApiError."""
    graph = service.runtime.graph
    check_model(fields.model, graph.served_names)
    check_draws(graph, "video", "videos")
    sent = fields.model_dump(exclude={"model", "seed", *(fields.model_extra or {})})
    message = Request(Draw(sent), ["video"], seed=fields.seed)
    request = GraphRequest(f"video-{uuid4().hex}", message)
    return RunningVideo(*await send(service, request, caller))
