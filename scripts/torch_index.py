"""Prints the pip options with which pip finds the CPU build of torch.

python scripts/torch_index.py REPORT

REPORT is pip's report of a dry run that installs torch with this machine's own settings. If they
find a CPU build, nothing is printed; if they find a CUDA build of some gigabytes, the options name
torch's own index of CPU builds.
"""

import json
import sys
from pathlib import Path
from typing import Any

# What a CUDA build of torch depends on.
CUDA_PACKAGES = ("nvidia", "cuda", "triton")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def options(report: dict[str, Any]) -> str:
    """Return the options for `pip install`, empty if the report's torch is a CPU build."""
    (torch,) = report["install"]
    needs = torch["metadata"].get("requires_dist", [])
    is_cuda = any(need.startswith(CUDA_PACKAGES) for need in needs)
    return f"--extra-index-url {CPU_INDEX}" if is_cuda else ""


if __name__ == "__main__":
    print(options(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
