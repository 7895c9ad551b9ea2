"""Who imports whom below stages/: families, what they share, the engines and their rooms."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.repository.layers import (
    ATTENTION_OF_VLLM,
    BESIDE,
    DIFFUSION,
    HEAVY,
    MODEL_LIBRARIES,
    NAMING,
    OURS,
    ROOT,
    SHARED,
    VERSIONS_OF_VLLM,
    VLLM,
    arrows,
    families,
    files,
    names_of_families,
    naming,
    own_families,
    place,
    refuse,
)


def test_there_are_families() -> None:
    assert {"diffusion", "qwen3_omni", "qwen_image"} <= set(families())


@pytest.mark.parametrize("family", families())
def test_a_family_imports_no_other(family: str) -> None:
    assert not arrows("stages", family) & set(families())


@pytest.mark.parametrize("folder", SHARED)
def test_what_families_share_imports_what_its_table_says(folder: str) -> None:
    assert arrows("stages", folder) == set(SHARED[folder])


@pytest.mark.parametrize("folder", ["messages", "worker"])
def test_the_process_of_a_stage_imports_no_model_library(folder: str) -> None:
    refuse(f"stages/{folder}", MODEL_LIBRARIES)


def test_only_the_seam_imports_the_engine() -> None:
    """Model files may take vLLM's layers and its own models; its engine is for stages/vllm."""
    engine = ("vllm.v1.engine", "vllm.engine", "vllm.entrypoints", "vllm.AsyncEngineArgs")
    refuse("stages", engine, but=("stages/vllm/",))


@pytest.mark.parametrize(
    "folder", ["stages/device", "stages/diffusion", "stages/vocoder", "stages/checkpoint"]
)
def test_what_needs_no_engine_imports_no_vllm(folder: str) -> None:
    refuse(folder, ("vllm", f"{OURS}.stages.vllm"), but=(ATTENTION_OF_VLLM,))
    refuse(ATTENTION_OF_VLLM, (f"{OURS}.stages.vllm",))


@pytest.mark.parametrize("room", DIFFUSION)
def test_a_room_of_the_diffusion_stage_imports_what_its_table_says(room: str) -> None:
    assert arrows("stages/diffusion", room) == set(DIFFUSION[room])
    refuse(f"stages/diffusion/{room}", (f"{OURS}.stages.diffusion.stage",))


@pytest.mark.parametrize("room", VLLM)
def test_a_room_of_the_bridge_to_vllm_imports_what_its_table_says(room: str) -> None:
    assert arrows("stages/vllm", room) == set(VLLM[room])
    above = [name for name in BESIDE["stages/vllm"] if name != VERSIONS_OF_VLLM]
    refuse(f"stages/vllm/{room}", [f"{OURS}.stages.vllm.{name}" for name in above])


def test_what_differs_between_versions_of_vllm_is_below_all_rooms() -> None:
    refuse(f"stages/vllm/{VERSIONS_OF_VLLM}.py", [f"{OURS}.stages.vllm"])


# What asks the registry, and so names none of them.
ASKING = (
    *("stage_configs", "connectors", "bench", "server/cli", "stages/vllm/plugin.py"),
    *(f"stages/{folder}" for folder in ("messages", "worker", "device")),
)


@pytest.mark.parametrize("place_of_code", ASKING)
def test_what_asks_the_registry_names_no_family(place_of_code: str) -> None:
    folder = ROOT / place_of_code
    for path in files(place_of_code) if folder.is_dir() else [folder]:
        if place(path) not in NAMING:
            assert not naming(path, names_of_families()), place(path)


@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("import omnistage.stages.diffusion.stage", ["stages.diffusion"]),
        ("from omnistage.stages.vocoder import decoder", []),
        ("PLACE = 'stages/diffusion'", ["stages/diffusion"]),
        ("KIND = 'vllm.embedding'", ["vllm.embedding"]),
        ("KIND = 'qwen3_omni.thinker'", ["qwen3_omni", "qwen3_omni.thinker"]),
        ("HELP = 'such as flux'", ["flux"]),
        ("HELP = 'for stages of kind diffusers'", ["diffusers"]),
        ("HELP = 'a diffusion stage of --diffusion-load-format'", []),
        ("OUTPUTS = 'text', 'embedding'", []),
        ("ENGINE = 'vllm'", []),
    ],
)
def test_a_familys_name_is_found_in_code(tmp_path: Path, code: str, named: list[str]) -> None:
    path = tmp_path / "asking.py"
    path.write_text(code)
    assert naming(path, names_of_families()) == named


def test_every_folder_of_a_family_registers_it() -> None:
    registered = {
        path
        for family in own_families().values()
        for path in (
            *(kind.path for kind in family.kinds.values()),
            *(one.write for one in family.tiny.values()),  # of a family that is a pipeline
        )
    }
    for folder in [*families(), "vllm"]:
        assert any(path.startswith(f"{OURS}.stages.{folder}.") for path in registered), folder


def test_every_dotted_path_of_a_family_leads_to_a_file() -> None:
    for family in own_families().values():
        tiny = [path for one in family.tiny.values() for path in (one.write, one.write_real_size)]
        kinds = [kind.path for kind in family.kinds.values()]
        named = (family.benches, family.vllm_models, family.pipelines)
        others = [path for one in named for path in one.values()]
        for path in filter(None, [*kinds, *tiny, *others]):
            module, _, name = path.partition(":")
            assert find_spec(module) is not None, path
            assert name.isidentifier(), path


def test_what_registers_families_and_connectors_imports_no_library_of_models() -> None:
    program = (
        "import sys\n"
        "from omnistage.connectors import CONNECTORS\n"
        "from omnistage.stage_configs.families import FAMILIES\n"
        "assert [*FAMILIES.usable()] and [*CONNECTORS.usable()]\n"
        "assert not FAMILIES.problems() + CONNECTORS.problems()\n"
        f"sys.exit(' '.join({set(HEAVY)} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.strip() == ""
    assert done.returncode == 0
