"""`make gpu-experts` finds a wrong output."""

import gpu_experts
import pytest
import torch


class Pretending:
    """Both processes: what the experts of each way give is given."""

    def __init__(self, outputs: dict[str, torch.Tensor]) -> None:
        self._outputs = outputs
        self._asked: dict[str, tuple[object, ...]] = {}

    def ask(self, kind: str, *task: object) -> None:
        self._asked[kind] = task

    def answer(self, kind: str) -> object:
        name, _, way = self._asked[kind]
        return self._outputs.get(str(way)) if name == "prepare" else 1.0


@pytest.mark.parametrize(("value", "is_right"), [(1.0, True), (1.01, False), (float("nan"), False)])
def test_an_output_that_is_off_is_wrong(
    value: float, is_right: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = {"vLLM's": torch.ones(4), "ours": torch.full((4,), value)}
    pairs = Pretending(outputs)
    assert gpu_experts.compare(pairs, [64], 0.0, list(outputs)) == is_right  # type: ignore[arg-type]
    assert ("WRONG" in capsys.readouterr().out) != is_right
