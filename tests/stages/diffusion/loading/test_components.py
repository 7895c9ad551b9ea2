"""Which modules do what, in the layouts of pipelines that broke others."""

import logging
from typing import Any

import diffusers
import pytest
from support.models.layouts import (
    BAGEL_MODULES,
    Bagel,
    DreamIdOmni,
    Encoder,
    Ltx2TwoStages,
    MammothModa2,
    OmniGen2,
)

from omnistage.stages.diffusion.checkpoint import make_tiny
from omnistage.stages.diffusion.loading.components import Parts, Roles, denoises

FOUND: list[tuple[Any, dict[str, Any], dict[str, set[str]]]] = [
    (OmniGen2, {}, {"dit": {"transformer"}, "encoder": {"mllm"}, "vae": {"vae"}}),
    (
        Bagel,
        BAGEL_MODULES,
        {"dit": {"language_model.model"}, "encoder": {"vit_model"}, "vae": {"vae"}},
    ),
    (
        Ltx2TwoStages,
        {},
        {
            "dit": {"pipe.transformer"},
            "encoder": {"pipe.text_encoder", "pipe.connectors"},
            "vae": {"pipe.vae", "pipe.audio_vae", "pipe.vocoder"},
        },
    ),
    (
        MammothModa2,
        {},
        {"dit": {"gen_transformer"}, "encoder": {"llm_model"}, "vae": {"gen_vae"}},
    ),
    (
        DreamIdOmni,
        {},
        {
            "dit": {"model"},
            "encoder": {"text_model"},
            "vae": {"vae_model_video", "vae_model_audio"},
        },
    ),
]


@pytest.mark.parametrize(("layout", "declared", "expected"), FOUND)
def test_modules_have_their_roles(layout: Any, declared: Any, expected: Any) -> None:
    parts = Parts.find(layout(), Roles.of(declared))
    assert {role: set(getattr(parts, role)) for role in expected} == expected


@pytest.mark.parametrize("name", ["flux", "qwen-image", "sd3", "wan"])
def test_pipelines_of_diffusers_declare_nothing(name: str) -> None:
    parts = Parts.find(make_tiny(name))
    assert list(parts.dit) == ["transformer"]
    assert list(parts.vae) == ["vae"]
    assert all(one.startswith("text_encoder") for one in parts.encoder)
    assert parts.encoder


def test_a_module_is_there_once() -> None:
    pipeline = Ltx2TwoStages()
    modules = list(Parts.find(pipeline).moved.values())
    assert len({id(one) for one in modules}) == len(modules) == 6
    parts = Parts.find(pipeline, Roles.of({"vae": ["vae", "pipe.vae"]}))
    assert list(parts.vae) == ["vae"]


def test_what_is_no_module_is_warned_about_only_if_declared(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        Parts.find(OmniGen2())
        assert not caplog.messages
        parts = Parts.find(OmniGen2(), Roles.of({"encoder": ["mllm", "scheduler"]}))
    assert list(parts.encoder) == ["mllm"]
    assert caplog.messages == ["modules.encoder: scheduler is no module: left out"]


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"OmniGen2 has no unet; its modules: mllm, transformer"):
        Parts.find(OmniGen2(), Roles.of({"dit": ["unet"]}))
    pipeline = OmniGen2()
    pipeline.transformer = Encoder()  # type: ignore[assignment]  # takes no time
    with pytest.raises(ValueError, match=r"no denoiser that can be found \(modules: mllm, tran"):
        Parts.find(pipeline)
    assert list(Parts.find(pipeline, Roles.of({"dit": ["transformer"]})).dit) == ["transformer"]


class Declaring(Bagel):
    """Says itself what the graph file would."""

    module_roles = BAGEL_MODULES


def test_a_pipeline_class_may_declare_its_modules_and_the_graph_s_word_wins() -> None:
    declared = Parts.find(Bagel(), Roles.of(BAGEL_MODULES))
    said = Parts.find(Declaring())
    roles = ("dit", "encoder", "vae", "resident")
    for role in roles:
        assert list(getattr(said, role)) == list(getattr(declared, role))
    changed = Parts.find(Declaring(), Roles.of({"dit": ["vit_model"]}))
    assert list(changed.dit) == ["vit_model"]
    assert list(changed.vae) == list(declared.vae)


def test_a_wrong_role_that_a_class_declares_is_named() -> None:
    class Wrong(Bagel):
        module_roles = {"dits": ["language_model"]}  # noqa: RUF012 - as users write it

    with pytest.raises(ValueError, match="unknown role 'dits'; allowed: dit, encoder"):
        Parts.find(Wrong())


@pytest.mark.parametrize(
    ("made", "is_one"),
    [
        (diffusers.Cosmos3OmniTransformer, True),  # vision_timesteps, sound_timesteps
        (diffusers.QwenImageTransformer2DModel, True),
        (diffusers.QwenImageControlNetModel, False),
        (diffusers.AutoencoderKLWan, False),
    ],
)
def test_a_class_that_takes_a_time_step_denoises(made: type, is_one: bool) -> None:
    assert denoises(made) == is_one
