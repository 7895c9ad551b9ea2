"""Denoisers' stages that are killed while they decode an image, as OmniGen2's in its own file."""

import os
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from support.faults.killed_image_stage import check_a_killed_stage
from support.faults.stuck_decoders import HAS_BEGUN, STUCK_SIZE
from support.oracles.glm_image import make_greedy
from support.oracles.mammothmoda2 import recorded
from support.servers.image_requests import ask, bare_pipeline
from support.servers.server import running_server

from omnistage.stage_configs.pick import GRAPHS

pytestmark = pytest.mark.engine


def bare_glm_image(folder: Path) -> Any:
    return make_greedy(bare_pipeline(folder))


@pytest.mark.repeat  # of tests/e2e/images/test_omnigen2.py
@pytest.mark.parametrize(
    ("model", "made", "bare", "first"),
    [
        ("mammothmoda2", "StuckMammothModa2", recorded, "image_ids"),
        ("glm_image", "StuckGlmImage", bare_glm_image, "prior"),
    ],
    ids=["MammothModa2", "GLM-Image"],
)
async def test_a_stage_may_be_killed_while_it_decodes(
    model: str, made: str, bare: Any, first: str, request: Any, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(f"tiny_{model}")
    document = yaml.safe_load((GRAPHS / f"{model}_tiny.yaml").read_text())
    decoding = tmp_path / "decoding"
    document["stages"]["dit"]["engine"]["pipeline_class"] = f"support.faults.stuck_decoders.{made}"
    document["stages"]["dit"]["environment"] = {HAS_BEGUN: str(decoding)}
    if first == "prior":
        document["stages"][first]["engine"]["override_generation_config"] = {"temperature": 0}
    graph = tmp_path / "graph.yaml"
    graph.write_text(yaml.safe_dump(document))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        with running_server(str(graph), tmp_path / "log", "--model", str(folder)) as server:

            async def send(seed: int) -> httpx.Response:
                size = "{}x{}".format(*STUCK_SIZE)
                return await ask(server, "a cat", seed, size=size)

            await check_a_killed_stage(
                server, "dit", "worker", bare(folder), send=send, also=decoding.exists
            )
