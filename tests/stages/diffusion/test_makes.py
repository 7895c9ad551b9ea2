"""What pipelines make, by the source of their classes, is what their calls return."""

import json
from pathlib import Path
from typing import Any

import pytest

from omnistage.stage_configs.checkpoint import Checkpoint
from omnistage.stage_configs.kinds import Offer
from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.diffusion.makes import call_of, offer
from omnistage.stages.diffusion.request.tasks import arguments_of

IMAGE, VIDEO = Offer(frozenset({"image"})), Offer(frozenset({"video"}))


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
        (
            "LTX2Pipeline",
            Offer(
                frozenset({"video"}),
                "The audio that LTX2Pipeline makes beside its frames is dropped.",
            ),
        ),
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
        ("StableAudioPipeline", "audios"),
        ("AudioLDM2Pipeline", "audios"),
        ("AceStepPipeline", "audios"),
        ("LLaDA2Pipeline", "sequences, texts"),
        ("FluxPriorReduxPipeline", "pooled_prompt_embeds, prompt_embeds"),
        ("MarigoldDepthPipeline", "latent, prediction, uncertainty"),
    ],
)
def test_a_pipeline_without_pixels_is_refused_before_its_weights_are_read(
    name: str, returns: str, tmp_path: Path
) -> None:
    refusal = f"{name} returns {returns} only: pipelines are served that return images or frames"
    folder = folder_of(tmp_path, name)  # has no weights
    with pytest.raises(ValueError, match=refusal):
        offer(Checkpoint(str(folder)), {})
    with pytest.raises(ValueError, match=refusal):
        LoadOptions().load(str(folder))


class Singer:
    """A user's pipeline that sings."""

    @classmethod
    def from_pretrained(cls, folder: str, **more: Any) -> "Singer":
        raise AssertionError

    def __call__(self, prompt: str) -> Any:
        return {"audios": [prompt]}


class Unknown(Singer):
    """One whose call says nothing of what it returns."""

    def __call__(self, prompt: str) -> Any:
        return [prompt]


def test_a_user_s_class_is_refused_alike(tmp_path: Path) -> None:
    path = f"{__name__}.Singer"
    with pytest.raises(ValueError, match="Singer returns audios only"):
        LoadOptions(pipeline_class=path)
    LoadOptions(pipeline_class=f"{__name__}.Unknown")
    folder = folder_of(tmp_path, "QwenImagePipeline")
    assert offer(Checkpoint(str(folder)), {"pipeline_class": path}) is None


@pytest.mark.parametrize("name", ["flux", "qwen-image", "sd3", "wan"])
def test_parameters_are_those_of_the_class(name: str) -> None:
    pipeline = make_tiny(name)
    call = call_of(type(pipeline).__name__)
    assert call is not None
    assert call.parameters - {"self"} == set(arguments_of(pipeline))
