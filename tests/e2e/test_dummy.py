"""A folder without weights, served with dummy ones."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from support.server import assert_same_sound, running_server

pytestmark = pytest.mark.engine

WANTED = {
    "thinker": r"cpu, float32, seed 0; at least 0\.\d\d GiB wanted \(layers .*, KV cache 0\.06\)",
    "talker": r"cpu, float32, seed 0; at least 0\.\d\d GiB wanted \(layers .*, KV cache 0\.06\)",
    "code2wav": r"cpu, float32, no seed; at least 0\.\d\d GiB wanted \(weights .*, slots .*\)",
}
EXACT_LENGTH = {
    "max_completion_tokens": 8,
    "stage_params": {
        "thinker": {"ignore_eos": True},
        "talker": {"temperature": 0, "max_tokens": 12, "ignore_eos": True},
    },
}


async def test_a_folder_without_weights_answers_the_same_each_time(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    with running_server(str(folder), tmp_path / "log", "--load-format", "dummy") as server:
        messages = [{"role": "user", "content": "Hello"}]
        replies = [await server.ask(messages, **EXACT_LENGTH) for _ in range(2)]
    first, second = replies
    assert first.raw["usage"]["completion_tokens"] == 8 + 12
    assert first.codes.shape == (12, 4)
    assert len(np.unique(first.codes)) > 4
    assert len(first.pcm) == 12 * 1920 - 555
    assert first.text == second.text
    assert np.array_equal(first.codes, second.codes)
    assert_same_sound(first.pcm, second.pcm)
    log = (tmp_path / "log").read_text()
    for stage, wanted in WANTED.items():  # each says once what it wants and what is free
        (line,) = re.findall(rf"stage {stage}: (.* wanted .*)", log)
        assert re.fullmatch(rf"{wanted}, [1-9]\d*\.\d\d GiB free", line)
