"""Check the manifests of docker/kubernetes against Kubernetes' own schemas: make kubernetes.

The Pods of a RayService are checked as Pods; the rest of it is KubeRay's, whose schema is not here.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "docker" / "kubernetes"


def pods_of_ray(service: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The Pods of a RayService, each as a template that Kubernetes knows."""
    cluster = service["spec"]["rayClusterConfig"]
    groups = {"head": cluster["headGroupSpec"]}
    groups |= {group["groupName"]: group for group in cluster["workerGroupSpecs"]}
    for name, group in groups.items():
        kind = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}}
        yield {**kind, "template": group["template"]}


def main(version: str) -> int:
    """The exit code of the check."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        service = yaml.safe_load((FOLDER / "rayservice.yaml").read_text())
        yaml.safe_dump_all(pods_of_ray(service), file)
        file.flush()
        command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", version]
        return subprocess.run([*command, str(FOLDER / "cell.yaml"), file.name]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
