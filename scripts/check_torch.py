"""Stops the installation before gigabytes of CUDA are fetched: reads pip's dry-run report.

python scripts/check_torch.py REPORT
"""

import json
import sys
from pathlib import Path

# What a CUDA build of torch depends on.
CUDA_PACKAGES = ("nvidia", "cuda", "triton")
ADVICE = """\
pip finds a CUDA build of torch ({version}), and this needs its CPU build.
Point pip at a place that has one, for example in its configuration file or by an environment
variable:
    PIP_EXTRA_INDEX_URL=<the index of torch's CPU wheels that pytorch.org names>
    PIP_FIND_LINKS=<a folder with a wheel of torch {version}+cpu>
then run make again."""


def main(report: Path) -> None:
    """Exit with advice if the torch that pip would install is a CUDA build."""
    (torch,) = json.loads(report.read_text(encoding="utf-8"))["install"]
    needs = torch["metadata"].get("requires_dist", [])
    if any(need.startswith(CUDA_PACKAGES) for need in needs):
        raise SystemExit(ADVICE.format(version=torch["metadata"]["version"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
