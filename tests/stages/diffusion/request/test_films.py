"""Videos with sound below the stage, of words and of media: each equals its bare call."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    Kandinsky6TI2VAPipeline,
    LTX2ConditionPipeline,
    LTX2ImageToVideoPipeline,
    LTX2Pipeline,
)
from diffusers.pipelines.ltx2.pipeline_ltx2_condition import LTX2VideoCondition
from PIL import Image
from support.media.sent_sound import check, pcm_of
from support.stages.stage_outputs import Outputs, stage_over
from support.tiny_pipelines import quiet
from support.tiny_pipelines.films import FILM_RATE, GUIDED, KANDINSKY_RATE
from support.tiny_pipelines.sounds import make_sound

from omnistage.connectors.chunk import Tensor
from omnistage.stages.diffusion.request.outputs import to_uint8
from omnistage.stages.messages.body import Draw, GivenMedium
from omnistage.stages.messages.to_gateway import ImagePixels, Sound
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.stage import Opened

SMALL = {"height": 32, "width": 32, "num_frames": 9}
STEPS = {"num_inference_steps": 2, "guidance_scale": 2.0}
PROMPT, FPS, SEED = "rain at night", 25, 3
NOISE = np.random.default_rng(0).integers(0, 256, (9, 32, 32, 3), np.uint8)


def image(number: int) -> Image.Image:
    return Image.fromarray(NOISE[number])


@dataclass(frozen=True)
class Film:
    """A request: its media, and the bare call that makes the same."""

    made: Any
    media: Mapping[str, npt.NDArray[np.uint8]] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def opened(self, name: str, seed: int = SEED, **more: Any) -> Opened:
        """Return the request."""
        body = Draw(
            {"prompt": PROMPT, **SMALL, **STEPS, "fps": FPS, **more},
            [GivenMedium(one, one) for one in self.media],
        )
        tensors = {one: Tensor.from_numpy(array) for one, array in self.media.items()}
        return Opened(name, Request(body, ["video"], seed=seed), tensors)

    def bare(self, components: Mapping[str, Any], seed: int = SEED, **more: Any) -> Any:
        """Return what the class makes by itself."""
        arguments = {**SMALL, **STEPS, "frame_rate": FPS, **self.arguments, **more}
        generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode():
            return quiet(self.made(**components))(
                prompt=PROMPT, generator=generator, output_type="np", **arguments
            )


def condition(frames: Any, index: int) -> LTX2VideoCondition:
    return LTX2VideoCondition(frames=frames, index=index)


def conditions(*all_of_them: LTX2VideoCondition) -> dict[str, Any]:
    return {"conditions": list(all_of_them)}


FIRST, LAST = condition(image(0), 0), condition(image(1), -1)
CLIP = condition([image(number) for number in range(5)], 0)
LTX_2 = {
    "words": Film(LTX2Pipeline),
    "image": Film(LTX2ImageToVideoPipeline, {"image": NOISE[0]}, {"image": image(0)}),
    "last": Film(LTX2ConditionPipeline, {"last_image": NOISE[1]}, conditions(LAST)),
    "first and last": Film(
        LTX2ConditionPipeline,
        {"image": NOISE[0], "last_image": NOISE[1]},
        conditions(FIRST, LAST),
    ),
    "video": Film(LTX2ConditionPipeline, {"video": NOISE[:5]}, conditions(CLIP)),
    "video and last": Film(
        LTX2ConditionPipeline,
        {"video": NOISE[:5], "last_image": NOISE[1]},
        conditions(CLIP, LAST),
    ),
}
KANDINSKY_6 = {
    "words": Film(Kandinsky6TI2VAPipeline),
    "image": Film(Kandinsky6TI2VAPipeline, {"image": NOISE[0]}, {"image": image(0)}),
}
MODELS: Mapping[str, tuple[Mapping[str, Film], int, Mapping[str, Any]]] = {
    "ltx2": (LTX_2, FILM_RATE, GUIDED),
    "kandinsky-6": (KANDINSKY_6, KANDINSKY_RATE, {}),
}


def check_film(outputs: Outputs, name: str, wanted: Any) -> bytes:
    """Compare a request's frames and samples with a bare call's; return the samples."""
    pcm = pcm_of(outputs, name)
    check(pcm, np.atleast_2d(np.asarray(wanted.audio[0])))
    sent = outputs.chunks[name]
    frames = np.stack([one.tensors["pixels"].numpy() for one in sent if "pixels" in one.tensors])
    difference = frames.astype(int) - np.stack(to_uint8(wanted.frames[0]))
    assert difference.shape == (SMALL["num_frames"], 32, 32, 3)
    assert np.abs(difference).max() <= 1
    assert frames.std() > 1
    kinds = [type(one.message).__name__ for one in sent if one.tensors]
    assert kinds == ["ImagePixels"] * SMALL["num_frames"] + ["Sound"]
    heard = [one.message for one in sent if isinstance(one.message, ImagePixels | Sound)]
    assert {one.output for one in heard} == {"video"}
    return pcm.tobytes()


@pytest.mark.parametrize("model", MODELS)
async def test_films_of_words_and_of_media_are_the_bare_pipelines_own(
    model: str, tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    films, rate, guided = MODELS[model]
    make_sound(model).save_pretrained(tmp_path)
    stage, outputs = stage_over(tmp_path, {"call_defaults": guided}, **SMALL)
    ready = await stage.start()
    assert ready.sample_rate_hz == rate
    await asyncio.gather(*(stage.serve(film.opened(name)) for name, film in films.items()))
    await stage.serve(films["image"].opened("silent", audio=False))
    await stage.close()
    assert not any(isinstance(one.message, Sound) for one in outputs.chunks["silent"])
    assert len(outputs.pixels("silent")) == SMALL["num_frames"]
    components = DiffusionPipeline.from_pretrained(tmp_path).components
    made = {
        check_film(outputs, name, film.bare(components, **guided)) for name, film in films.items()
    }
    assert len(made) == len(films), "each medium changes what is made"
