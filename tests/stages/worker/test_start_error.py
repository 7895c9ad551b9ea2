"""What a stage that cannot start says: one paragraph with the cause and what to do about it."""

import errno
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError
from pydantic import BaseModel, model_validator
from safetensors import safe_open
from safetensors.torch import save_file

from omnistage.stages.device.devices import device_of
from omnistage.stages.messages.loading import PLACE, begin_loading
from omnistage.stages.messages.start_failure import read_start_failure
from omnistage.stages.worker.start_error import (
    MAX_CAUSE,
    explain,
    start_failure_told,
    tell_engines_failure,
)

Act = Callable[[], object]


def explained(act: Act) -> str:
    """What is said of what an action raises."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - whatever it is, that is the question
        return explain(error)
    raise AssertionError("it raised nothing")


def raising(error: Exception, cause: Exception | None = None) -> Act:
    def act() -> None:
        raise error from cause

    return act


def hub_error(kind: type[Exception]) -> Exception:
    """As the hub's client makes it, of an answer that there is none of here."""
    error = kind.__new__(kind)
    Exception.__init__(error, "401 Client Error.")
    return error


def test_an_error_that_nobody_knows_is_told_as_it_is() -> None:
    assert explain(RuntimeError("no kernel\n here")) == "RuntimeError: no kernel here"
    assert explain(ValueError("the weights\n do not fit")) == "the weights do not fit"
    assert len(explain(ValueError("x" * 9999))) < MAX_CAUSE + 10


def test_an_error_of_a_configuration_of_vllm_is_its_sentence_without_pydantics_frame() -> None:
    class Configuration(BaseModel):
        dtype: str

        @model_validator(mode="after")
        def refuse(self) -> Self:
            raise ValueError(f"{self.dtype} is not supported for fp8. Supported: [bfloat16]")

    def configure() -> None:
        Configuration(dtype="float32")

    assert explained(configure) == "float32 is not supported for fp8. Supported: [bfloat16]"


# The model


def test_a_folder_that_is_not_there() -> None:
    said = explained(lambda: snapshot_download("/no/such/folder"))
    assert said.startswith("there is no such folder, and it is no name of the hub (")
    assert "'/no/such/folder'" in said
    assert said.endswith("; correct the path, or give a name of the hub as owner/name")


def test_a_model_of_the_hub_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = explained(lambda: snapshot_download("owner/model", cache_dir=tmp_path))
    assert said.startswith("the model's files are not here, and the hub cannot be reached (")
    assert "`hf download NAME`" in said
    assert "HF_HUB_OFFLINE" in said


@pytest.mark.parametrize(
    ("error", "begin", "cure"),
    [
        (GatedRepoError, "the model is gated at the hub (", "accept its terms on its page"),
        (
            RepositoryNotFoundError,
            "the hub has no such model, or not for you (",
            "correct the name",
        ),
    ],
)
def test_a_model_that_the_hub_does_not_give(error: type[Exception], begin: str, cure: str) -> None:
    said = explained(raising(OSError("cannot load"), hub_error(error)))
    assert said.startswith(begin)
    assert cure in said
    assert "HF_TOKEN" in said


# The checkpoint


def test_a_weight_of_another_shape() -> None:
    layer = torch.nn.Linear(2, 2)
    said = explained(lambda: layer.load_state_dict({"weight": torch.zeros(3, 3)}))
    assert "size mismatch for weight" in said
    assert said.endswith("fetch it again, or correct `model`")


def test_a_weight_that_is_missing() -> None:
    said = explained(lambda: torch.nn.Linear(2, 2).load_state_dict({"weight": torch.zeros(2, 2)}))
    assert 'Missing key(s) in state_dict: "bias"' in said
    assert "the checkpoint is incomplete" in said


def test_a_file_of_weights_that_is_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(64)}, file)
    file.write_bytes(file.read_bytes()[:100])

    def read() -> None:
        with safe_open(file, framework="pt"):
            raise AssertionError("it was read")

    said = explained(read)
    assert said.startswith("SafetensorError: ")
    assert "the checkpoint is incomplete, damaged" in said


# The device


def test_no_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    said = explained(lambda: device_of("cuda"))
    assert said.startswith("there is no CUDA device here (device 'cuda' is not there")
    assert "take a graph for a CPU" in said


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        ValueError("No available memory for the cache blocks."),
    ],
)
def test_memory_that_does_not_suffice(error: Exception) -> None:
    said = explain(error)
    assert str(error).rstrip(".") in said
    assert "lower gpu_memory_utilization" in said


def test_an_engine_that_the_kernel_killed() -> None:
    said = "Engine core initialization failed. Failed core proc(s): {'EngineCore': -9}"
    assert "dmesg" in explain(RuntimeError(said))
    assert "dmesg" not in explain(RuntimeError(said.replace("-9", "1")))


# What is installed


def imported(code: str) -> str:
    """What is said of the import that this program tries, in a process of its own."""
    program = f"""
from omnistage.stages.worker.start_error import explain
try:
    {code}
except Exception as error:
    print(explain(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_a_package_that_is_missing() -> None:
    said = imported("import sys; sys.modules['av'] = None; import av")
    assert said == "the Python package av is not installed; pip install av"


def test_vllm_that_is_missing() -> None:
    error = ModuleNotFoundError("No module named 'vllm'", name="vllm")
    assert explain(error) == (
        "the Python package vllm is not installed; "
        "pip install 'omnistage[cpu]', or with CUDA 'omnistage[cuda]'"
    )


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'vllm.v9'", name="vllm.v9"),
        ImportError("cannot import name 'X' from 'vllm'", name="vllm"),
    ],
)
def test_a_version_of_vllm_that_lacks_what_is_needed(
    error: ImportError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omnistage.stages.worker.start_error.metadata.version", lambda _: "9.9.9")
    said = explain(error)
    assert said.startswith(f"vLLM 9.9.9 is not supported ({error}); install one that is: ")
    assert "omnistage[cuda]" in said


# Arguments


@pytest.mark.parametrize(
    "error",
    [
        TypeError("from_checkpoint() got an unexpected keyword argument 'slots'"),
        ValueError("vLLM 0.32.0 has no engine argument max_num_seq; did you mean max_num_seqs"),
    ],
)
def test_an_engine_argument_that_is_not_known(error: Exception) -> None:
    said = explain(error)
    assert str(error) in said
    assert said.endswith("; take the argument out of the stage's `engine`, or correct its name")


# How it is told


def test_a_stage_leaves_what_is_said_and_still_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), start_failure_told(tmp_path, "one"):
        raise ValueError("no")
    assert read_start_failure(tmp_path, "one") == "no"


def test_what_starts_leaves_no_reason(tmp_path: Path) -> None:
    with start_failure_told(tmp_path, "one"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_reason_of_an_engine_is_its_stage_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLACE, "")
    begin_loading(tmp_path, "one.b")
    tell_engines_failure(ValueError("too little memory"))
    failed = RuntimeError("Engine core initialization failed.")
    with pytest.raises(RuntimeError), start_failure_told(tmp_path, "one.b"):
        raise failed
    assert read_start_failure(tmp_path, "one.b") == "too little memory"


# The disk


def test_a_full_disk() -> None:
    said = explained(lambda: Path("/dev/full").write_text("x"))
    assert said.startswith("a disk is full (OSError: [Errno 28]")
    assert "; free some space; XDG_CACHE_HOME moves caches" in said


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_is_not_writable_is_named(number: int) -> None:
    said = explained(raising(RuntimeError("x"), OSError(number, "Refused", "/home/me/.cache")))
    assert said.startswith("a file or folder cannot be used (")
    assert "'/home/me/.cache'" in said
    assert said.endswith("TMPDIR what is temporary")
