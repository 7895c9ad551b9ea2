"""Other arguments of a pipeline's call, which a request gives by the pipeline's own names."""

import logging
import re
from collections.abc import Mapping
from difflib import get_close_matches

from omnistage.stages.diffusion.makes import LENGTHS
from omnistage.stages.diffusion.pipeline import PipelineCall
from omnistage.stages.diffusion.request.arguments import FIELDS, RATES
from omnistage.stages.diffusion.request.controls import CONTROLS
from omnistage.stages.diffusion.request.frames import NAMES
from omnistage.stages.diffusion.request.plain import PlainForm, checked, names_of, parameters_of
from omnistage.stages.diffusion.request.videos import COUNTS
from omnistage.stages.worker.failure import RequestError

logger = logging.getLogger(__name__)

FIELD = "it is a field of the request itself"
OF_MEDIA = (
    "control_|mask_|ip_adapter_|last_|ref_|reference_|input_|"
    "original_|source_|memory_|background_|face_|pose_"
)
# What is the server's own, by what names begin, end or are, and why; the first that matches counts.
OWN: Mapping[str, str] = {
    r"__\w*|self": "it is no argument",
    "|".join(("prompt", *FIELDS, *CONTROLS)): FIELD,
    "|".join(RATES): "it is the field fps",
    "|".join(NAMES): "it is the field num_frames",
    "|".join(LENGTHS): "it is the field audio_length",
    "|".join((*COUNTS, "num_waveforms_per_prompt", "batch_size")): "it is the field n",
    r"generators?": "it is the field seed",
    r"\w*latents\w*": "the server makes the latents, by the field seed",
    r"\w*(embeds|embeddings)\w*": "the server computes embeddings",
    r"\w*callback\w*": "the server follows the steps itself",
    r"output_type|return_dict|output|state": "the server reads the result itself",
    r"\w*kwargs": "it holds objects of the program",
    rf"({OF_MEDIA})?(images?|videos?|audio)|mask(_image)?": "it is a medium, sent by its field",
    r"fonts": "it names files of the server",
}
TEXTS = re.compile(r"(negative_)?prompt_\d+")  # of further text encoders, one for each prompt
MAX_SHOWN = 12


def fault_of(pipeline: PipelineCall, name: str, value: object) -> str:
    """Return why a request cannot give an argument this value; empty: it can."""
    try:
        plain_argument(pipeline, name, value)
    except ValueError as error:
        return str(error)
    return ""


def plain_argument(pipeline: PipelineCall, name: str, value: object) -> dict[str, object]:
    """Return an argument of a call, none for null; raises ValueError with what is allowed."""
    problem = problem_of(pipeline, name)
    if problem:
        raise ValueError(problem)
    if value is None:
        return {}
    return {name: checked(value, parameters_of(pipeline.__call__)[name])}


def spread_texts(arguments: dict[str, object]) -> dict[str, object]:
    """Return arguments with a text for each prompt, where prompts are a list."""
    prompts = arguments.get("prompt")
    if not isinstance(prompts, list):
        return arguments
    return {
        name: [value] * len(prompts) if TEXTS.fullmatch(name) and isinstance(value, str) else value
        for name, value in arguments.items()
    }


def problem_of(pipeline: PipelineCall, name: str) -> str:
    """Return why a request cannot give an argument of this name; empty: it can."""
    for pattern, reason in OWN.items():
        if re.fullmatch(pattern, name):
            return f"is not for requests: {reason}"
    parameters = parameters_of(pipeline.__call__)
    if name in parameters:
        is_plain = bool(PlainForm.all_of(parameters[name]))
        return "" if is_plain else "is not for requests: it takes no numbers, texts or booleans"
    possible = [one for one in names_of(parameters.values()) if not _is_own(one)]
    near = get_close_matches(name, possible)
    if near:
        return f"this pipeline takes no {name}; did you mean {' or '.join(near)}?"
    more = ", …" if len(possible) > MAX_SHOWN else ""
    shown = ", ".join(possible[:MAX_SHOWN]) or "none"
    return f"this pipeline takes no {name}; its other arguments: {shown}{more}"


def _is_own(name: str) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in OWN)


def failure_of(error: Exception, given: Mapping[str, object] | None) -> RequestError | None:
    """Return the refusal of a request whose pipeline failed; None for a failure of ours.

    A pipeline checks some of its arguments itself, by ValueError; what it does not check fails
    anywhere in its code.
    """
    if isinstance(error, ValueError):
        return RequestError(400, str(error), code="invalid_value")
    if not given:
        return None
    logger.warning("a call with %s failed", ", ".join(given), exc_info=error)
    message = f"The pipeline failed with extra: {type(error).__name__}: {error}"
    return RequestError(400, message, param="extra", code="invalid_value")


def refusal_of(name: str, problem: str) -> RequestError:
    """Return the refusal of an argument."""
    return RequestError(
        400, f"extra.{name}: {problem}", param=f"extra.{name}", code="invalid_value"
    )
