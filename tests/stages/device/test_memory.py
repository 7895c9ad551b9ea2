"""What is free: of the host, and of cgroups of both versions."""

from pathlib import Path

import psutil
import pytest
import torch

from omnistage.stages.device.memory import free_bytes, host_free_bytes, is_out_of_memory

MIB = 1 << 20
NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("memory.max", "memory.current", ""),
}


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    return tmp_path / "cgroups"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    return tmp_path / "own"


def limit(folder: Path, version: int, most: str, used: int, cached: int) -> None:
    """A cgroup with a limit; half of the cached bytes were used lately."""
    most_name, used_name, prefix = NAMES[version]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / most_name).write_text(f"{most}\n")
    (folder / used_name).write_text(f"{used}\n")
    halves = [f"{prefix}{kind}_file {cached // 2}\n" for kind in ("active", "inactive")]
    (folder / "memory.stat").write_text("".join(["anon 7\n", *halves]))


def test_without_a_limit_it_is_what_the_host_has(cgroups: Path, own: Path) -> None:
    own.write_text("0::/a\n")
    limit(cgroups / "a", 2, "max", 5, 0)
    total = psutil.virtual_memory().total
    assert 0 < host_free_bytes(cgroups, own) <= total
    assert 0 < host_free_bytes(cgroups, own.with_name("no-such-file")) <= total
    assert 0 < free_bytes(torch.device("cpu")) <= total


@pytest.mark.parametrize(("version", "line"), [(1, "4:cpu,memory:/a/b"), (2, "0::/a/b")])
def test_a_limit_counts_without_the_page_cache(
    version: int, line: str, cgroups: Path, own: Path
) -> None:
    own.write_text(f"7:pids:/elsewhere\n{line}\n")
    mounted = cgroups / "memory" if version == 1 else cgroups
    limit(mounted / "a" / "b", version, str(9 * MIB), used=8 * MIB, cached=2 * MIB)
    assert host_free_bytes(cgroups, own) == 3 * MIB


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_tightest_cgroup_above_us_counts(depth: int, cgroups: Path, own: Path) -> None:
    own.write_text("0::/a/b\n")
    folders = [cgroups, cgroups / "a", cgroups / "a" / "b"]
    for number, folder in enumerate(folders):
        limit(folder, 2, str((2 if number == depth else 4) * MIB), used=MIB, cached=0)
    assert host_free_bytes(cgroups, own) == MIB


def test_a_container_that_does_not_see_its_own_path_takes_what_it_sees(
    cgroups: Path, own: Path
) -> None:
    own.write_text("0::/of/the/host\n")
    limit(cgroups, 2, str(4 * MIB), used=MIB, cached=0)
    assert host_free_bytes(cgroups, own) == 3 * MIB


def test_nothing_is_free_beyond_a_limit(cgroups: Path, own: Path) -> None:
    own.write_text("0::/\n")
    limit(cgroups, 2, str(MIB), used=2 * MIB, cached=0)
    assert host_free_bytes(cgroups, own) == 0


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_want_of_memory_is_told_from_other_failures(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_want_of_the_host_s_memory_is_as_torch_says_it() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
