"""Check the manifests of docker/kubernetes against Kubernetes' own schemas: make kubernetes."""

import subprocess
import sys
from pathlib import Path

MANIFEST = Path(__file__).parents[1] / "docker" / "kubernetes" / "server.yaml"


def main(version: str) -> int:
    """Returns the exit code of the check."""
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", version]
    return subprocess.run([*command, str(MANIFEST)]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
