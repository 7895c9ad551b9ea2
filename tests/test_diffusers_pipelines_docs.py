"""The table of Diffusers' pipelines is what the stage's rules make of the installed Diffusers."""

import difflib

import pytest
from diffusers import (
    FluxPipeline,
    StableDiffusionInpaintPipeline,
    StableVideoDiffusionPipeline,
    WanPipeline,
)
from pipelines import COMMAND, PAGE, Judgement, component_classes, page, pipeline_classes, recorded


def test_the_table_is_what_the_rules_make_of_the_installed_diffusers() -> None:
    written = PAGE.read_text(encoding="utf-8")
    made = page(recorded(written))
    changes = "\n".join(difflib.unified_diff(written.split("\n"), made.split("\n"), n=0))
    assert made == written, f"docs/diffusers-pipelines.md is old; run `{COMMAND}`:\n{changes}"


def test_each_class_has_a_reason_or_an_endpoint() -> None:
    for made in pipeline_classes():
        judged = Judgement(made)
        assert bool(judged.refusal) != bool(judged.endpoints), judged.name


@pytest.mark.parametrize(
    ("made", "verdict"),
    [
        (FluxPipeline, "served"),
        (WanPipeline, "served"),
        (StableDiffusionInpaintPipeline, "served"),
        (StableVideoDiffusionPipeline, "refused"),
    ],
)
def test_a_class_is_judged_by_the_stage_s_rules(made: type, verdict: str) -> None:
    assert Judgement(made).verdict == verdict


def test_denoisers_are_found_by_annotations() -> None:
    assert Judgement(WanPipeline).denoisers == ["transformer", "transformer_2"]
    assert component_classes(FluxPipeline)["vae"][0].__name__ == "AutoencoderKL"
