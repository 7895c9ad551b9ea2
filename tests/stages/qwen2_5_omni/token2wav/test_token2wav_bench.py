"""The bench that tells a stream's error: what it prints, and that it is the error."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.models.token2wav import random_codes
from typer.testing import CliRunner

from omnistage.server.cli import app
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.qwen2_5_omni.token2wav.token2wav_bench import measure


def test_a_stream_that_sees_all_blocks_has_no_error(tiny_qwen2_5_omni: Path) -> None:
    codes, request = random_codes(60), Request(None, [], seed=1)
    little, everything = measure(str(tiny_qwen2_5_omni), codes, request, ahead=(0, 3))
    assert little.relative > 1e-4
    assert little.peak > 1e-4
    assert everything.relative < 1e-5


@pytest.mark.parametrize("is_stored", [False, True], ids=["random", "of a file"])
def test_the_command_prints_a_row_for_each_number_of_blocks(
    tiny_qwen2_5_omni: Path, tmp_path: Path, is_stored: bool
) -> None:
    np.save(tmp_path / "codes.npy", random_codes(13)[:, 0])
    more = ["--codes", str(tmp_path / "codes.npy")] if is_stored else ["--num-codes", "13"]
    with torch.inference_mode():
        done = CliRunner().invoke(app, ["bench", "token2wav", str(tiny_qwen2_5_omni), *more])
    assert done.exit_code == 0, done.output
    assert "13 codes against chunk: whole" in done.output
    rows = [line.split()[1] for line in done.output.splitlines() if line[:2] == "│ "]
    assert rows == ["0", "1", "2", "3"]
