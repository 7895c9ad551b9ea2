"""How strongly, and in which part of the steps, control pictures count."""

from collections.abc import Mapping

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.diffusion.pipeline import PipelineCall
from omnistage.stages.diffusion.request.places import SCALES, num_controls
from omnistage.stages.diffusion.request.tasks import arguments_of
from omnistage.stages.worker.failure import RequestError

# Fields of requests, and the arguments that they are.
CONTROLS: Mapping[str, tuple[str, ...]] = {
    "controlnet_conditioning_scale": SCALES,
    "control_guidance_start": ("control_guidance_start",),
    "control_guidance_end": ("control_guidance_end",),
}


def control_arguments(pipeline: PipelineCall, body: JsonMap) -> dict[str, object]:
    """Return the arguments of a call: a number, or one for each of several ControlNets.

    Raises RequestError for a field that the pipeline does not take, or for too many or too few.
    """
    known, number = arguments_of(pipeline), num_controls(pipeline)
    made: dict[str, object] = {}
    for field, names in CONTROLS.items():
        value = body.get(field)
        if value is None:
            continue
        name = next((one for one in names if one in known), None)
        if name is None:
            raise RequestError(400, f"this pipeline takes no {field}", param=field)
        values = value if isinstance(value, list) else [value] * number
        if len(values) != number:
            message = f"{field} has {len(values)} numbers; this model takes {number}"
            raise RequestError(400, message, param=field, code="invalid_value")
        made[name] = values if number > 1 else values[0]
    return made
