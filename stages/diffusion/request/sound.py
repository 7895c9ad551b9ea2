"""Audio that pipelines make: its sampling rate, its fields, its samples in what calls return."""

from collections.abc import Collection, Mapping
from functools import reduce

import numpy as np
import numpy.typing as npt
import torch

from omnistage.stage_configs.json_types import Json, JsonMap
from omnistage.stages.device.resampling import resampled
from omnistage.stages.diffusion.makes import LENGTHS, SOUNDS
from omnistage.stages.worker.failure import RequestError

Samples = npt.NDArray[np.int16]

# Where pipelines of Diffusers and their parts keep the rate: whatever makes the samples goes first.
RATES = (
    "vocoder.config.output_sampling_rate",
    "vocoder.config.sampling_rate",
    "sound_tokenizer.config.sampling_rate",
    "audio_vae.config.output_sampling_rate",
    "audio_sample_rate",
    "sample_rate",
    "sampling_rate",
    "vae.config.sampling_rate",
    "vae.config.sample_rate",
)
# Fields of a request, each with the arguments of pipelines that take it.
ARGUMENTS: Mapping[str, Collection[str]] = {
    "audio_length": LENGTHS,
    "audio_start": ("audio_start_in_s",),
    "lyrics": ("lyrics",),
}
SWITCHES = ("sample_audio", "enable_sound")  # arguments that make a video with its audio, or not
END = "audio_end_in_s"  # a length that counts from the start of what is made
WARM_UP_S = 1.0
FULL_SCALE = 32767
MAX_CHANNELS = 2
CHANNELS = "audio_channels"  # of a VAE's configuration


def rate_of(pipeline: object, needs_one: bool) -> int | None:
    """Returns the samples per second of the audio that a pipeline makes; None if none is found.

    Raises ValueError for that if it `needs_one`.
    """
    for place in RATES:
        rate = reduce(lambda owner, name: getattr(owner, name, None), place.split("."), pipeline)
        if isinstance(rate, int | float) and rate > 0:
            return round(rate)
    if needs_one:
        name, places = type(pipeline).__name__, ", ".join(RATES)
        raise ValueError(f"the sampling rate of {name} was not found: it has none of {places}")
    return None


def given_samples(pipeline: object, data: npt.NDArray[np.float32], rate: float) -> torch.Tensor:
    """Returns audio [channels, n] at the rate and with the channels of a pipeline's own.

    Mono is the same on both sides, and stereo is averaged where the pipeline has one channel.
    """
    own = rate_of(pipeline, needs_one=False)
    if own is not None and rate and round(rate) != own:
        data = resampled(data, round(rate), own)
    num_channels = getattr(getattr(getattr(pipeline, "vae", None), "config", None), CHANNELS, None)
    samples = torch.from_numpy(np.array(data))
    if num_channels == 1:
        return samples.mean(dim=0, keepdim=True)
    return samples.expand(num_channels, -1) if num_channels and len(samples) == 1 else samples


def length_for_warm_up(known: Collection[str]) -> dict[str, float]:
    """Returns a short length for a pipeline that is called with one."""
    return {name: WARM_UP_S for name in LENGTHS if name in known}


def sound_arguments(known: Collection[str], body: JsonMap) -> Json:
    """Returns the arguments of a request's length, start, lyrics and `audio` of a video.

    Raises RequestError for one that the pipeline does not take.
    """
    arguments: Json = {}
    for field, names in ARGUMENTS.items():
        if body.get(field) is None:
            continue
        name = next((name for name in names if name in known), None)
        if name is None:
            raise RequestError(400, f"this pipeline takes no {field}", param=field)
        arguments[name] = body[field]
    if END in arguments:
        arguments[END] += body.get("audio_start") or 0
    switch = next((name for name in SWITCHES if name in known), None)
    if switch is not None and body.get("audio") is not None:
        arguments[switch] = body["audio"]
    return arguments


def sound_of(result: object) -> Samples | None:
    """Returns the first sound of a call: int16 [n] of mono, [n, 2] of stereo; None: it has none.

    A result is a mapping with `audios`, `audio` or `sound`: a tensor, an array or a list of them,
    [sounds, channels, n], [sounds, n], [channels, n], [n, channels] or [n], of numbers from -1 to
    1 or whole ones of 16 bits. Raises RequestError for sounds of another form.
    """
    if not isinstance(result, Mapping):
        return None
    made = next((result[key] for key in SOUNDS if result.get(key) is not None), None)
    return None if made is None else _samples(made)


def audio_of(result: object) -> Samples:
    """Returns the same of a pipeline of audio alone, which may return it without a mapping.

    Raises RequestError where there is none.
    """
    samples = sound_of(result if isinstance(result, Mapping) else {SOUNDS[0]: result})
    if samples is None:
        names = ", ".join(result) if isinstance(result, Mapping) else ""
        raise _wrong(f"returned {names or 'nothing'} only")
    return samples


def _samples(made: object) -> Samples:
    while isinstance(made, list | tuple) and made and not isinstance(made[0], int | float):
        made = made[0]
    if isinstance(made, torch.Tensor):
        values = made.detach().cpu()
        made = (values.float() if values.is_floating_point() else values).numpy()
    try:
        array = np.asarray(made)
    except ValueError as error:
        raise _wrong(f"made audio that is no array: {error}") from error
    shape = list(array.shape)
    is_several_of_mono = array.ndim == 2 and min(array.shape) > MAX_CHANNELS
    if is_several_of_mono or (array.ndim == 3 and len(array)):
        array = array[0]
    if array.ndim == 2 and array.shape[0] <= MAX_CHANNELS:
        array = array.T
    is_sound = array.ndim == 1 or (array.ndim == 2 and array.shape[1] <= MAX_CHANNELS)
    if not is_sound or 0 in array.shape:
        raise _wrong(f"made audio of shape {shape}")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if np.issubdtype(array.dtype, np.floating):
        array = (np.nan_to_num(array).clip(-1, 1) * FULL_SCALE).round()
    elif array.dtype != np.int16:
        raise _wrong(f"made audio of {array.dtype}")
    return np.ascontiguousarray(array, np.int16)


def _wrong(what: str) -> RequestError:
    return RequestError(500, f"The pipeline {what}.", code="bad_pipeline_output")
