"""The table of Diffusers' pipelines is what the stage's rules make of the installed Diffusers."""

import difflib
import re

import diffusers
import pytest
from diffusers import (
    FluxPipeline,
    StableDiffusionInpaintPipeline,
    StableVideoDiffusionPipeline,
    WanPipeline,
)
from pipeline_classes import component_classes, pipeline_classes
from pipeline_rules import BROKEN, Judgement
from pipelines import COMMAND, PAGE, page, recorded
from support.tiny_pipelines.compare import ARGUMENTS_DIFFER, Comparison, compare

from omnistage.stages.diffusion.engine.warm_up import CHANGES_ATTENTION, DIFFERS, NO_PAIRS

REASONS = "|".join(map(re.escape, (CHANGES_ATTENTION, NO_PAIRS, DIFFERS, ARGUMENTS_DIFFER)))
CELL = re.compile(
    r"ran: (NOT )?equal, shares ((all|some) of its forwards|none of its forwards "
    rf"\(({REASONS})\))"
)


def test_the_table_is_what_the_rules_make_of_the_installed_diffusers() -> None:
    written = PAGE.read_text(encoding="utf-8")
    made = page(recorded(written))
    changes = "\n".join(difflib.unified_diff(written.split("\n"), made.split("\n"), n=0))
    assert made == written, f"docs/diffusers-pipelines.md is old; run `{COMMAND}`:\n{changes}"


@pytest.mark.parametrize(
    ("cell", "is_written"),
    [
        (str(Comparison(0, 0, {3: 4}, "")), True),
        (str(Comparison(0, 0, {1: 2, 2: 1}, "")), True),
        (str(Comparison(0, 0, {1: 4}, "")), True),
        (str(Comparison(0, 0, {1: 4}, "calls for two pictures cannot be made")), True),
        ("ran: equal", False),
        ("ran: equal, shares all of its forwards (by hand)", False),
        ("ran: equal, shares none of its forwards", False),
        ("ran: equal, shares none of its forwards (nobody's reason)", False),
    ],
)
def test_a_cell_by_hand_is_told_from_one_of_the_script(cell: str, is_written: bool) -> None:
    assert bool(CELL.fullmatch(cell)) == is_written


def test_each_cell_that_ran_is_one_that_the_script_writes() -> None:
    for name, cell in recorded(PAGE.read_text(encoding="utf-8")).items():
        assert CELL.fullmatch(cell), f"{name}: {cell}; run `make pipelines`"


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


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", BROKEN)
def test_a_class_that_is_called_broken_fails_so_without_us(name: str) -> None:
    with pytest.raises(AttributeError, match="guidance_embeds"):
        compare(getattr(diffusers, name))


def test_a_modular_class_equals_its_bare_call() -> None:
    (made,) = [one for one in pipeline_classes() if one.__name__ == "FluxModularPipeline"]
    found = compare(made)
    assert (found.is_equal, found.shared) == (True, "all")


def test_denoisers_are_found_by_annotations() -> None:
    assert Judgement(WanPipeline).denoisers == ["transformer", "transformer_2"]
    assert component_classes(FluxPipeline)["vae"][0].__name__ == "AutoencoderKL"
