"""The package qwen-tts, which `omnistage verify` compares speech with.

It needs another transformers than vLLM, so it runs in an environment of its own.
"""

import base64
import io
import wave
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from qwen_tts import Qwen3TTSModel

from omnistage.stage_configs.json_types import Json
from omnistage.stages.messages.to_reference import Findings, Found, ReferenceJob


@torch.inference_mode()
def verify(job: ReferenceJob) -> Findings:
    """Returns the samples that the package speaks, greedily."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.float32 if job.dtype == "auto" else getattr(torch, job.dtype)
    tts = Qwen3TTSModel.from_pretrained(job.model, dtype=dtype, device_map=device)
    return Findings(
        found=[Found(samples=_spoken(tts, asked.fields)) for asked in job.asked],
        dtype=str(dtype).removeprefix("torch."),
        device=device,
        versions={"qwen-tts": version("qwen-tts"), "torch": str(torch.__version__)},
    )


def _spoken(tts: Any, fields: Json) -> bytes:
    text, (limits,) = fields["input"], fields["stage_params"].values()
    more = {
        "language": fields.get("language"),
        "do_sample": False,
        "subtalker_dosample": False,
        "max_new_tokens": limits["max_tokens"] + 1,  # the last one is not fed back
    }
    if "ref_audio" in fields:
        with wave.open(io.BytesIO(base64.b64decode(fields["ref_audio"].partition(",")[2]))) as file:
            rate = file.getframerate()
            sound = np.frombuffer(file.readframes(file.getnframes()), "<i2") / np.float32(32768)
        more |= {"ref_audio": (sound, rate), "x_vector_only_mode": True}
        made, _ = tts.generate_voice_clone(text, **more)
    elif "instructions" in fields:
        made, _ = tts.generate_voice_design(text, fields["instructions"], **more)
    else:
        made, _ = tts.generate_custom_voice(text, fields["voice"], **more)
    samples: bytes = np.asarray(made[0], np.float32).tobytes()
    return samples
