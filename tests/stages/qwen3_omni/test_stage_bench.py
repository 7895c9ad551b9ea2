"""Every part is measured, and its floor is that of its weights."""

from pathlib import Path

import pytest
from transformers import AutoConfig

from omnistage.stages.qwen3_omni import stage_bench
from omnistage.stages.qwen3_omni.stage_bench import StageBench


def test_parts_and_their_floors(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_bench, "MIN_GROUP_S", 0.001)
    measured = StageBench(str(tiny_checkpoint))
    parts = [*measured.code_predictor([1, 2]), *measured.code2wav([1, 3], [1, 2])]
    told = [(part.name, part.batch, part.work) for part in parts]
    assert told == [
        ("code predictor", 1, "a frame"),
        ("code predictor", 2, "a frame"),
        ("code2wav", 1, "1 frame"),
        ("code2wav", 1, "2 frames"),
        ("code2wav", 3, "1 frame"),
        ("code2wav", 3, "2 frames"),
    ]
    assert all(part.time_s > 0 for part in parts)
    config = AutoConfig.from_pretrained(tiny_checkpoint).talker_config.code_predictor_config
    read = parts[0].floor_s * measured.bytes_per_s
    head = 4 * config.vocab_size * config.hidden_size * (config.num_code_groups - 1)
    layer = 4 * 3 * config.hidden_size * config.intermediate_size
    assert read > head + config.num_hidden_layers * (config.num_code_groups - 1) * layer
