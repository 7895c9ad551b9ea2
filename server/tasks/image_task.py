"""Images of words, or of images and words."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from omnistage.server.common.errors import ApiError
from omnistage.server.common.served import check_makes
from omnistage.server.common.trace import current_trace
from omnistage.server.media.image_load import Source, load_images
from omnistage.server.media.images import InputImages
from omnistage.server.runtime.request import GraphRequest, ImageOutput, Outputs
from omnistage.server.tasks.images.schema import IMAGE_ONLY, ImageRequest
from omnistage.server.tasks.images.usage import images_usage
from omnistage.server.tasks.pieces import (
    Answer,
    Choice,
    Picture,
    Piece,
    Preview,
    Progress,
    Usage,
    picture_of,
    stamps_of,
)
from omnistage.server.tasks.service import Caller, Service
from omnistage.stage_configs.graph import StageGraph


def check_draws(graph: StageGraph, output: str = "image", name: str = "images") -> None:
    """Raise ApiError for a graph that makes none of them, or only of what it writes itself."""
    check_makes(output, graph.outputs, name)
    if graph.writers(output):
        message = "This model draws what it writes: ask it in a chat, for text and image."
        raise ApiError(400, message, code="unsupported_model")


@dataclass(frozen=True, slots=True)
class RunningImages:
    """An image request that was sent to the stages, and the images that came with it."""

    given: InputImages
    request: GraphRequest
    outputs: Outputs


async def run_images(
    service: Service,
    fields: ImageRequest,
    caller: Caller,
    images: Sequence[Source] = (),
    mask: Source | None = None,
    request_id: str | None = None,
    controls: Sequence[Source] = (),
) -> RunningImages:
    """Admit an image request whose model is checked, load its images and send it; ApiError."""
    fields.to_request(InputImages())  # refuses fields that do not go together before all else
    until = caller.until
    ticket = until.enter_context(service.runtime.flights.admit(IMAGE_ONLY))
    given = InputImages()
    if images or controls or mask is not None:
        loading = load_images(images, mask, service.media, until, controls)
        given = await caller.wait(loading)
    request = fields.to_request(given)
    if request_id is not None:
        request = replace(request, id=request_id)
    return RunningImages(given, request, ticket.run(request))


async def answer_images(
    service: Service,
    fields: ImageRequest,
    caller: Caller,
    images: Sequence[Source] = (),
    mask: Source | None = None,
    controls: Sequence[Source] = (),
) -> AsyncGenerator[Piece, None]:
    """Yield steps, previews and images as they are made, and the `Answer` last; raises ApiError."""
    done: list[ImageOutput] = []
    num_previews = 0
    running = await run_images(service, fields, caller, images, mask, controls=controls)
    async with aclosing(running.outputs) as outputs:
        async for output in outputs:
            assert isinstance(output, ImageOutput)
            if not output.pixels:
                yield Progress(output.step, output.num_steps, output.stage)
            elif output.is_preview:
                yield Preview(picture_of(output), num_previews)
                num_previews += 1
            else:
                yield Picture(picture_of(output), len(done))
                done.append(output)
    given = running.given.sizes
    sizes = [one.size for one in done]
    usage = images_usage(done[0].text_tokens, given, sizes, done[0].token_side)
    yield Answer(
        running.request.id,
        choices=tuple(Choice() for _ in done),
        images=tuple(map(picture_of, done)),
        usage=Usage.of(usage),
        timeline=stamps_of(current_trace().timeline.to_list()),
    )
