"""make names torch's own index only where pip's settings find no CPU build."""

import pytest
from torch_index import CPU_INDEX, options


@pytest.mark.parametrize(
    ("needs", "wanted"),
    [
        (["filelock", "sympy>=1.13"], ""),
        ([], ""),
        (["filelock", "nvidia-cublas==13.0; platform_system == 'Linux'"], CPU_INDEX),
        (["triton==3.7"], CPU_INDEX),
        (["cuda-toolkit==13.0"], CPU_INDEX),
    ],
)
def test_the_index_is_named_for_a_cuda_build_only(needs: list[str], wanted: str) -> None:
    report = {"install": [{"metadata": {"version": "2.13.0", "requires_dist": needs}}]}
    assert options(report) == (f"--extra-index-url {wanted}" if wanted else "")


def test_a_build_that_needs_nothing_is_no_cuda_build() -> None:
    assert options({"install": [{"metadata": {"version": "2.13.0+cpu"}}]}) == ""
