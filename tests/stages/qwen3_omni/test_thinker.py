"""The thinker stage before its engine starts."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from omnistage.stages.qwen3_omni.thinker import Thinker
from omnistage.stages.worker.stage import StagePorts


def test_without_a_talker_it_reads_no_tokenizer_beside_its_engine_s(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *names, **_: read.append(names))
    outputs: Any = None  # it sends nothing yet
    Thinker(StagePorts("thinker", str(tiny_checkpoint), {}, {}, outputs))
    assert not read
