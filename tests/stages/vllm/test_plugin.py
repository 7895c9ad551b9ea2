"""Which model classes an engine's process gets to know."""

import sys
from types import SimpleNamespace

import pytest
from support.installed import Installed

from omnistage.stages.vllm.plugin import register_models

OURS = {
    "OmnistageBagelLlm",
    "OmnistageQwenTextEncoder",
    "OmnistageGlmImagePrior",
    "OmnistageMammothModa2ImageIds",
    "OmnistageMammothModa2Words",
    "OmnistageQwen2_5OmniTalker",
    "OmnistageQwen2_5OmniThinker",
    "OmnistageQwen3OmniTalker",
    "OmnistageQwen3OmniThinker",
    "OmnistageQwen3TTSTalker",
    "OmnistageVoxCPM2Talker",
}
SONG = 'FAMILY = Family("%s", {}, vllm_models={"Song": "%s:Song"})'


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What vLLM knows, in place of its own registry."""
    known: dict[str, str] = {"LlamaForCausalLM": "vllm's"}
    registry = SimpleNamespace(
        get_supported_archs=lambda: known.keys(), register_model=known.__setitem__
    )
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(ModelRegistry=registry))
    return known


def test_classes_of_every_installed_family_are_registered(
    models: dict[str, str], installed: Installed
) -> None:
    installed.family("a-song", "song", SONG % ("song", "a_song.model"))
    register_models()
    assert models.keys() == {"LlamaForCausalLM", "Song", *OURS}
    assert models["Song"] == "a_song.model:Song"


def test_what_vllm_knows_is_left_to_it(models: dict[str, str], installed: Installed) -> None:
    code = (SONG % ("song", "a_song.model")).replace('"Song"', '"LlamaForCausalLM"')
    installed.family("a-song", "song", code)
    register_models()
    assert models["LlamaForCausalLM"] == "vllm's"


def test_families_that_cannot_be_used_are_told_and_the_others_registered(
    models: dict[str, str], installed: Installed, caplog: pytest.LogCaptureFixture
) -> None:
    installed.family("a-dance", "dance", "import no_such_library")
    for name in ("song", "tune"):
        installed.family(f"a-{name}", name, SONG % (name, f"a_{name}"))
    register_models()
    assert models.keys() == {"LlamaForCausalLM", *OURS}
    assert "(package a-dance 1.0) cannot be used" in caplog.text
    assert "'Song' is of two families" in caplog.text
