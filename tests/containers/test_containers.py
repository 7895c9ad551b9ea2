"""The Dockerfiles and locks of docker/ fit each other, the command line and the API."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from support.gateway.serving import OMNI, running_gateway
from support.repository.containers import DOCKER, ROOT, dockerfile, environment, last, services

FILES = ["docker/Dockerfile", "docker/Dockerfile.cpu"]
# Each lock with the extras of pyproject.toml that it pins.
LOCKS = {"cpu": ("cpu", "demo"), "cuda": ("cuda",)}
PIN = re.compile(r"^([\w.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)$")


# The Dockerfiles


@pytest.mark.parametrize("file", FILES)
def test_an_image_is_built_in_stages_and_does_not_run_as_root(file: str) -> None:
    assert len(dockerfile(file)) > 1
    user = int(last("USER", file).rest)
    assert user != 0
    assert any(f"--uid {user} " in one.rest for one in dockerfile(file)[-1] if one.name == "RUN")


@pytest.mark.parametrize("file", FILES)
def test_models_and_compiled_kernels_are_kept_in_volumes(file: str) -> None:
    volumes = [Path(place) for place in last("VOLUME", file).words]
    variables = environment(file)
    for name in ("HF_HOME", "VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        assert any(Path(variables[name]).is_relative_to(volume) for volume in volumes), name
    made = next(one.rest for one in dockerfile(file)[-1] if "install --directory" in one.rest)
    assert all(str(volume) in made.split() for volume in volumes)  # and owned by the user


@pytest.mark.parametrize("file", FILES)
def test_the_healthcheck_passes_when_a_server_is_ready_and_not_before(
    file: str, tmp_path: Path
) -> None:
    kind, _, check = last("HEALTHCHECK", file).rest.rpartition("CMD ")
    assert "--start-period=" in kind
    with running_gateway(tmp_path, OMNI, loading=frozenset({"talker"})) as gateway:
        command = [word.replace("http://127.0.0.1:8000", gateway.url) for word in json.loads(check)]
        assert any(f"{gateway.url}/ready" in word for word in command)
        command[0] = sys.executable
        assert subprocess.run(command, capture_output=True).returncode == 1
        gateway.do(lambda: gateway.stages.stages["talker"].become_ready())
        assert subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.parametrize("file", FILES)
def test_an_image_s_dependencies_are_those_of_a_lock(file: str) -> None:
    installs = [
        command
        for stage in dockerfile(file)
        for one in stage
        if one.name == "RUN"
        for command in one.rest.split("&&")
        if " install " in command and "apt-get" not in command and "--directory" not in command
    ]
    assert len(installs) >= 3
    for command in installs:
        is_pinned = "--require-hashes" in command and "--requirements" in command
        is_ours = "--no-deps /wheel/" in command
        assert is_pinned or is_ours or re.search(r"install --no-cache-dir uv==\d", command), command


# The locks


def test_what_made_the_locks_installs_them() -> None:
    files = [ROOT / name for name in ("Makefile", *FILES)]
    assert len({re.findall(r"uv==([\d.]+)", path.read_text())[0] for path in files}) == 1


def pins(name: str) -> dict[str, Version]:
    """The versions of a lock; each line of it has a version and hashes."""
    text = (DOCKER / "lock" / f"{name}.txt").read_text()
    lines = re.sub(r"\s*\\\n\s*", " ", text).splitlines()
    found: dict[str, Version] = {}
    for line in lines:
        if not line.startswith("#"):
            pin = PIN.match(line)
            assert pin, line
            found[canonicalize_name(pin[1])] = Version(pin[2])
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_all_that_the_project_requires(name: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = list(project["dependencies"])
    for extra in LOCKS[name]:
        wanted += project["optional-dependencies"][extra]
    locked = pins(name) | (pins("torch-cpu") if name == "cpu" else {})
    for requirement in map(Requirement, wanted):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version, prereleases=True), requirement
    for library in ("av", "soundfile", "pillow"):  # sound and images
        assert library in locked


def test_the_packages_that_share_nvidia_s_modules_are_of_one_release() -> None:
    """An older cuda-python brings modules of its own, over those of cuda-bindings."""
    locked = pins("cuda")
    assert locked["cuda-python"] == locked["cuda-bindings"]


def test_kernels_are_compiled_by_the_cuda_that_torch_has() -> None:
    locked = pins("cuda")
    for name in ("cuda-nvcc", "nvvm", "cuda-crt", "cuda-cccl", "cuda-runtime"):
        assert locked[f"nvidia-{name}"].release[:2] == locked["cuda-toolkit"].release[:2]


def test_the_cpu_image_has_the_torch_of_the_makefile_in_its_cpu_build() -> None:
    (torch,) = re.findall(r"^TORCH := torch==(\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert pins("torch-cpu") == {"torch": Version(f"{torch}+cpu")}
    assert "torch" not in pins("cpu")


def container_files() -> list[Path]:
    pages = [ROOT / "docs" / name for name in ("docker.md", "kubernetes.md", "scaling.md")]
    beside = [ROOT / "compose.yaml", ROOT / ".dockerignore", *pages]
    return [*beside, *(path for path in sorted(DOCKER.rglob("*")) if path.is_file())]


@pytest.mark.parametrize("path", container_files(), ids=lambda path: path.name)
def test_no_container_file_names_a_host_beyond_this_machine_and_its_services(path: Path) -> None:
    named = set(re.findall(r"https?://([\w.-]+)", path.read_text()))
    assert named <= {"localhost", "127.0.0.1", *services()}
    assert not re.search(r"--(extra-)?index-url|--trusted-host", path.read_text())
