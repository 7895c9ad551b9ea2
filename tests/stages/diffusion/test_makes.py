"""What pipelines make, by the source of their classes, is what their calls return."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.kinds import Offer
from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.diffusion.makes import call_of, offer, signature_of
from omnistage.stages.diffusion.request.tasks import arguments_of

IMAGE, VIDEO, AUDIO = (Offer(frozenset({output})) for output in ("image", "video", "audio"))


def folder_of(folder: Path, name: Any) -> Path:
    (folder / "model_index.json").write_text(json.dumps({"_class_name": name}))
    return folder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("QwenImagePipeline", IMAGE),
        ("QwenImageEditPlusPipeline", IMAGE),
        ("FluxPipeline", IMAGE),
        ("StableDiffusionXLPipeline", IMAGE),
        ("Kandinsky5T2IPipeline", IMAGE),
        ("KandinskyV22CombinedPipeline", IMAGE),
        ("WanPipeline", VIDEO),
        ("LTXPipeline", VIDEO),
        ("HunyuanVideoPipeline", VIDEO),
        ("LTX2Pipeline", VIDEO),
        ("SanaVideoPipeline", VIDEO),
        ("LattePipeline", VIDEO),
        ("Kandinsky6TI2VAPipeline", VIDEO),
        ("StableAudioPipeline", AUDIO),
        ("StableAudio3InpaintPipeline", AUDIO),
        ("AceStepPipeline", AUDIO),
        ("LongCatAudioDiTPipeline", AUDIO),
        ("AudioLDM2Pipeline", AUDIO),
        ("NobodysPipeline", None),
        (["my.module", "MyPipeline"], None),
        ("../../etc/passwd", None),
    ],
)
def test_what_a_folder_s_pipeline_makes(name: Any, expected: Offer | None, tmp_path: Path) -> None:
    assert offer(Checkpoint(str(folder_of(tmp_path, name))), {}) == expected


@pytest.mark.parametrize(
    ("name", "returns"),
    [
        ("LLaDA2Pipeline", "sequences, texts"),
        ("FluxPriorReduxPipeline", "pooled_prompt_embeds, prompt_embeds"),
        ("MarigoldDepthPipeline", "latent, prediction, uncertainty"),
    ],
)
def test_a_pipeline_without_pixels_or_audio_is_refused_before_its_weights_are_read(
    name: str, returns: str, tmp_path: Path
) -> None:
    refusal = f"{name} returns {returns} only: pipelines are served that return images, frames or"
    folder = folder_of(tmp_path, name)  # has no weights
    with pytest.raises(ValueError, match=refusal):
        offer(Checkpoint(str(folder)), {})
    with pytest.raises(ValueError, match=refusal):
        LoadOptions().load(str(folder))


@pytest.mark.parametrize(
    ("name", "has_sound"),
    [
        ("LTX2Pipeline", True),
        ("LTX2ConditionPipeline", True),
        ("Cosmos3OmniPipeline", True),
        ("LTX2HDRPipeline", False),  # returns `audio=None`
        ("WanPipeline", False),
        ("StableAudioPipeline", False),  # audio is all that it makes
    ],
)
def test_videos_with_audio_are_known(name: str, has_sound: bool) -> None:
    call = call_of(name)
    assert call is not None
    assert call.has_sound is has_sound


class Writer:
    """A user's pipeline that writes."""

    @classmethod
    def from_pretrained(cls, folder: str, **more: Any) -> "Writer":
        raise AssertionError

    def __call__(self, prompt: str) -> Any:
        return {"texts": [prompt]}


class Unknown(Writer):
    """One whose call says nothing of what it returns."""

    def __call__(self, prompt: str) -> Any:
        return [prompt]


class Singer(Unknown):
    """One whose call says nothing of what it returns, and takes a length in seconds."""

    def __call__(self, prompt: str, audio_length_in_s: float = 1) -> Any:
        return [prompt]


class Delegating(Unknown):
    """One that hands its arguments on by their names, and not what is made of them."""

    def __call__(self, prompt: str, num_frames: int = 1) -> Any:
        return super().__call__(prompt=prompt)


def test_a_user_s_class_is_refused_alike(tmp_path: Path) -> None:
    path = f"{__name__}.Writer"
    with pytest.raises(ValueError, match="Writer returns texts only"):
        LoadOptions(pipeline_class=path)
    for name in ("Unknown", "Delegating"):
        LoadOptions(pipeline_class=f"{__name__}.{name}")
    folder = folder_of(tmp_path, "QwenImagePipeline")
    assert offer(Checkpoint(str(folder)), {"pipeline_class": path}) is None


@pytest.mark.parametrize("name", ["flux", "qwen-image", "sd3", "wan"])
def test_parameters_are_those_of_the_class(name: str) -> None:
    pipeline = make_tiny(name)
    call = call_of(type(pipeline).__name__)
    assert call is not None
    assert call.parameters - {"self"} == set(arguments_of(pipeline))


@pytest.mark.parametrize(
    ("made", "output"), [(Unknown, "image"), (Singer, "audio"), (Delegating, "video")]
)
def test_what_a_user_s_class_makes_is_told_by_its_arguments(made: type, output: str) -> None:
    assert signature_of(made).output == output


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"extra": ["clip_skip", "sigmaz"]}, r"extra\.sigmaz: .*Pipeline takes no sigmaz; did you"),
        ({"call_defaults": {"layers": 4}}, r"call_defaults\.layers: .* takes no layers"),
    ],
)
def test_an_argument_that_no_class_over_the_weights_takes_is_refused_by_check(
    engine: dict[str, Any], message: str, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(str(folder_of(tmp_path, "StableDiffusion3Pipeline")))
    with pytest.raises(ValueError, match=message):
        offer(checkpoint, engine)
    right = {"extra": ["padding_mask_crop"], "call_defaults": {"max_sequence_length": 64}}
    assert offer(checkpoint, right) == IMAGE  # the first is the inpainting class's
    assert offer(checkpoint, {"extra": False}) == IMAGE
