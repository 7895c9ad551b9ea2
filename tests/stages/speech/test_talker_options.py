"""What talkers of all families are told."""

import json
from pathlib import Path

import pytest

from omnistage.stages.speech.talker_options import TalkerOptions, generation_config_folder


def test_the_generation_config_ends_at_the_talker_s_own_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "cache"))
    folder = generation_config_folder(4198)
    assert folder.is_relative_to(tmp_path / "cache")
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 4198
    assert generation_config_folder(4198) == folder
    assert generation_config_folder(4199) != folder
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, "talker-eos-4199"}


def test_an_option_that_the_talker_does_not_know_or_cannot_use_is_refused() -> None:
    assert TalkerOptions.of({}).prefill_part is None
    assert TalkerOptions.of({"prefill_part": 0}).prefill_part == 0
    for wrong in ({"prefil_part": 64}, {"prefill_part": -1}, {"prefill_part": "many"}):
        with pytest.raises(ValueError, match="options of the talker: "):
            TalkerOptions.of(wrong)


def test_one_rank_cannot_compare_what_it_computed() -> None:
    options = TalkerOptions.of({"check_ranks": True})
    options.check({"tensor_parallel_size": 2})
    TalkerOptions.of({}).check({})
    for engine in ({}, {"tensor_parallel_size": 1}, {"data_parallel_size": 2}):
        with pytest.raises(ValueError, match="check_ranks: there is one rank"):
            options.check(engine)
