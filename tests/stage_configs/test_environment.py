"""The environment of a stage's processes."""

from pathlib import Path
from types import MappingProxyType

import pytest

from omnistage.stage_configs.declared.stage import StageSpec
from omnistage.stage_configs.environment import stage_environment
from omnistage.stage_configs.json_types import JsonMap
from omnistage.stage_configs.rules.parallel import PARALLEL_SIZES

SPINS = "VLLM_USE_SPINLOOP_EXT"


def test_kernels_of_a_first_start_are_found_by_the_second(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Torch.compile moves Triton's cache if nothing names it."""
    spec = StageSpec.model_validate(
        {"name": "one", "kind": "vllm.text", "environment": {"A_SHARE": 1}}
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    assert stage_environment(spec, ()) == {
        "TRITON_CACHE_DIR": str(tmp_path / ".triton" / "cache"),
        "A_SHARE": "1",
    }
    monkeypatch.setenv("TRITON_CACHE_DIR", "/elsewhere")
    assert stage_environment(spec, ())["TRITON_CACHE_DIR"] == "/elsewhere"
    own = StageSpec.model_validate(
        {"name": "one", "kind": "vllm.text", "environment": {"TRITON_CACHE_DIR": "/mine"}}
    )
    assert stage_environment(own, ())["TRITON_CACHE_DIR"] == "/mine"


@pytest.mark.parametrize("name", PARALLEL_SIZES)
def test_only_ranks_on_a_cpu_wait_by_vllms_extension(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In loops of `sched_yield` they would hold up the whole machine."""
    monkeypatch.setattr("omnistage.stage_configs.gpus.visible_gpus", list)

    def waits(size: int | None, own: JsonMap = MappingProxyType({})) -> str | None:
        spec = {"name": "one", "kind": "vllm.text", "engine": {name: size}, "environment": own}
        return stage_environment(StageSpec.model_validate(spec), ()).get(SPINS)

    assert [waits(size) for size in (None, 1, 2)] == [None, None, "1"]
    assert waits(2, {SPINS: "0"}) == "0"
    monkeypatch.setattr("omnistage.stage_configs.gpus.visible_gpus", lambda: ["0"])
    assert waits(2) is None
