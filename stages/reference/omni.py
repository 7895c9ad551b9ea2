"""Common parts of references in transformers that read text, images, audio and videos."""

import base64
import io
import wave
from collections.abc import Callable, Collection, Mapping
from typing import Any

import av
import numpy as np
import numpy.typing as npt
import torch
import transformers
from PIL import Image

from omnistage.stage_configs.json_types import JsonMap
from omnistage.stages.messages.to_reference import AskedQuestion, Findings, Found
from omnistage.stages.reference.forced import Forced

TYPES = {"image_url": "image", "input_audio": "audio", "video_url": "video"}
LISTS = {"image": "images", "audio": "audio", "video": "videos"}  # the processor's arguments


def inputs_of(processor: Any, asked: AskedQuestion, dtype: torch.dtype) -> Any:
    """Returns the processor's tensors of a conversation in OpenAI's form, media as data URLs."""
    media: dict[str, list[Any]] = {}
    turns = []
    for message in asked.fields["messages"]:
        parts = []
        for part in message["content"]:
            kind = TYPES.get(part["type"])
            if kind is not None:
                media.setdefault(LISTS[kind], []).append(READERS[kind](_data_of(part)))
            parts.append(part if kind is None else {"type": kind})
        turns.append({**message, "content": parts})
    prompt = processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    return processor(text=prompt, return_tensors="pt", **media).to(device_name(), dtype=dtype)


def _data_of(part: JsonMap) -> bytes:
    given = part[part["type"]]
    text = given["data"] if "data" in given else given["url"].partition(",")[2]
    return base64.b64decode(text)


def _picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def _sound(data: bytes) -> npt.NDArray[np.float64]:
    """Samples of a mono WAV file of 16 bits, from -1 to 1."""
    with wave.open(io.BytesIO(data)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), "<i2") / 32768


def _frames(data: bytes) -> npt.NDArray[np.uint8]:
    """Every frame of a video, RGB [n, height, width, 3]."""
    with av.open(io.BytesIO(data)) as container:
        return np.stack([one.to_ndarray(format="rgb24") for one in container.decode(video=0)])


READERS: Mapping[str, Callable[[bytes], object]] = {
    "image": _picture,
    "audio": _sound,
    "video": _frames,
}


def device_name() -> str:
    """Returns where a reference computes: the first GPU, else the CPU."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def text_found(thinker: Any, inputs: Any, asked: AskedQuestion, eos: Any) -> Found:
    """Returns what a thinker says of the text that the server answered."""
    forced = Forced(asked.tokens)
    thinker.generate(
        **inputs,
        max_new_tokens=len(asked.tokens),
        do_sample=False,
        repetition_penalty=1.0,
        eos_token_id=eos,
        logits_processor=[forced],
    )
    return Found(forced.choices)


def speaker_of(names: Collection[str], voice: str) -> str:
    """Returns the model's own spelling of a voice."""
    return next(name for name in names if name.lower() == voice.lower())


def outcome_of(found: list[Found], model: Any) -> Findings:
    """Returns what was found with a model of transformers."""
    return Findings(
        found=found,
        dtype=str(model.dtype).removeprefix("torch."),
        device=device_name(),
        versions={"transformers": transformers.__version__, "torch": str(torch.__version__)},
    )
