"""The kinds of output of pipelines, and how many a call makes."""

from collections.abc import Collection, Iterable

from omnistage.stages.diffusion.makes import signature_of
from omnistage.stages.diffusion.pipeline import Arguments
from omnistage.stages.messages.to_gateway import PipelineOutput
from omnistage.stages.worker.failure import RequestError

COUNTS = ("num_images_per_prompt", "num_videos_per_prompt", "num_waveforms_per_prompt")

KINDS: tuple[PipelineOutput, ...] = ("image", "video", "audio")


def output_kind(pipeline: object) -> PipelineOutput:
    """Returns what a pipeline makes: `image`, `video` or `audio`."""
    return signature_of(type(pipeline)).output


def counted(num: int, prompt: Arguments, known: Iterable[str]) -> dict[str, object]:
    """Arguments for so many pictures or videos of each prompt, `prompt` being its arguments."""
    name = next((name for name in COUNTS if name in known), None)
    if name is not None:
        return {**prompt, name: num}
    if num == 1:
        return dict(prompt)
    prompts = [prompt["prompt"]] if isinstance(prompt["prompt"], str) else prompt["prompt"]
    several = [one for one in prompts for _ in range(num)]
    lyrics = {"lyrics": [""] * len(several)} if "lyrics" in known else {}
    return {"prompt": several, **lyrics}


def check_kind(wanted: Collection[str], made: PipelineOutput) -> None:
    """Raises RequestError if the pipeline makes none of the outputs that a request wants.

    The others are those of other stages.
    """
    if made not in wanted:
        kind = next((one for one in KINDS if one in wanted), ", ".join(wanted))
        message = f"this pipeline makes no {kind}; it makes {made}"
        raise RequestError(400, message, code="unsupported_model")
