"""The profiles of pipelines: how a model's is found, and what the stage takes from it."""

import pkgutil
import re
from collections.abc import Iterator

import diffusers
import pytest
import torch
from support.installed import Installed
from torch import nn

from omnistage.stages.diffusion.blocks.fused import attend_by_flash_3, flatten, fuse
from omnistage.stages.diffusion.merging.text_padding import candidates
from omnistage.stages.diffusion.profiles.models import QWEN_IMAGE
from omnistage.stages.diffusion.profiles.profile import PLAIN, all_profiles, profile_of
from omnistage.stages.diffusion.request.previews import _listening

FLASH_3_PROBLEM = "omnistage.stages.diffusion.blocks.fused.flash_3_problem"
SONG = """
from omnistage.stages.diffusion.profiles.profile import PipelineProfile

FAMILY = Family("song", {}, pipelines={"song": "a_song:SONG"})
SONG = PipelineProfile(
    "song", denoisers=frozenset({"Singer"}), fuse="a_song:fuse", flatten="a_song:flatten",
    attend_by_flash_3="a_song:attend", token_side=32,
)


def fuse(module):
    module.calls.append("fuse")


def flatten(module):
    module.calls.append("flatten")


def attend(module):
    module.calls.append("attend")
"""
GPU = torch.device("cuda")


class Singer(nn.Module):
    """A denoiser of another package's model."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []


@pytest.fixture(autouse=True)
def read_again() -> Iterator[None]:
    """These tests install families."""
    all_profiles.cache_clear()
    yield
    all_profiles.cache_clear()


def test_our_profiles_name_classes_of_diffusers_and_functions_that_are_there() -> None:
    assert QWEN_IMAGE in all_profiles()
    for one in all_profiles():
        assert all(hasattr(diffusers, name) for name in one.denoisers | one.vaes), one.name
        for path in filter(None, (one.fuse, one.attend_by_flash_3, one.flatten)):
            assert callable(pkgutil.resolve_name(path)), path


def test_a_module_has_the_profile_of_its_class_and_others_the_plain_one() -> None:
    vae = type("AutoencoderKLQwenImage", (nn.Module,), {})()
    assert profile_of(nn.Linear(1, 1), vae) is QWEN_IMAGE
    assert profile_of(nn.Linear(1, 1)) is PLAIN
    assert profile_of() is PLAIN


def test_another_package_brings_a_profile_by_its_family(
    installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed.family("a-song", "song", SONG)
    singer = Singer()
    assert profile_of(singer).token_side == 32
    monkeypatch.setattr(FLASH_3_PROBLEM, lambda device: "no kernel")
    fuse(singer, torch.device("cpu"))
    assert singer.calls == []
    fuse(singer, GPU, may_choose=True)
    flatten(singer)
    assert singer.calls == ["fuse", "flatten"]
    with pytest.raises(ValueError, match="no kernel"):
        attend_by_flash_3(singer, GPU)
    monkeypatch.setattr(FLASH_3_PROBLEM, lambda device: None)
    attend_by_flash_3(singer, GPU)
    assert singer.calls == ["fuse", "flatten", "fuse", "attend"]
    with pytest.raises(ValueError, match=r"^Linear is none of QwenImage\w+, Singer$"):
        attend_by_flash_3(nn.Linear(1, 1), GPU)


@pytest.mark.parametrize("path", ["a_song:NOTHING", "no_such_module:SONG", "a_song:FAMILY"])
def test_a_profile_that_cannot_be_used_is_logged_and_the_others_are_found(
    path: str, installed: Installed, caplog: pytest.LogCaptureFixture
) -> None:
    installed.family("a-song", "song", SONG.replace("a_song:SONG", path))
    assert all_profiles() == (QWEN_IMAGE,)
    assert "pipelines.song of a family cannot be used" in caplog.text


def test_arguments_that_end_as_the_profile_says_are_masks_of_texts() -> None:
    call = {"words": torch.zeros(2, 3, 4), "words_are_there": torch.ones(2, 3)}
    assert not list(candidates(list(call), call, PLAIN.text_masks))
    (padding,) = candidates(list(call), call, ("_are_there",))
    assert (padding.mask, padding.texts) == ("words_are_there", ("words",))


def test_a_preview_takes_the_results_of_the_methods_that_the_profile_names() -> None:
    class Pipeline:
        def encode_prompt(self) -> None: ...
        def begin(self) -> None: ...

    plain, own = (_listening(Pipeline, one) for one in (PLAIN.before_steps, re.compile("begin")))
    assert "encode_prompt" in vars(plain)
    assert "begin" not in vars(plain)
    assert "begin" in vars(own)
    assert "encode_prompt" not in vars(own)
