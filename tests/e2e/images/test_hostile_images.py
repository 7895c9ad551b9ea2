"""Pictures that are too much for a stage: it must serve the next request all the same."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from support.faults.stuck_pipeline import ENDLESS_SIZE, STUCK_SIZE
from support.servers.image_requests import ask, picture_server, pictures_of
from support.servers.server import TinyServer
from support.waiting import until

pytestmark = pytest.mark.engine

FIRST_S, NEXT_S = 13, 10
# Ten seconds for the layers of their decoder, a second for each of them; and then it never ends.
SIZE = f"{ENDLESS_SIZE}x{ENDLESS_SIZE}"
LONG = {"prompt": "cats", "n": 5, "size": SIZE, "num_inference_steps": 2}
GIVEN_UP_AFTER_S = 3
SPARE_BYTES = 50 << 20  # 9 are usual; a picture that is kept has 92


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def server(tiny_qwen_image: Path, folder: Path) -> Iterator[TinyServer]:
    """One whose operator allows more than it can do in its deadlines."""
    engine = {
        "max_megapixels": 100,
        "pipeline_class": "support.faults.stuck_pipeline.StuckPipeline",
    }
    deadlines = {"first_chunk_s": FIRST_S, "next_chunk_s": NEXT_S}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
        # Blocks of a MiB go back when they are freed: what is there afterwards is kept by somebody.
        patch.setenv("MALLOC_MMAP_THRESHOLD_", str(1 << 20))
        with picture_server(
            "diffusers.yaml", tiny_qwen_image, folder, deadlines=deadlines, **engine
        ) as running:
            yield running


async def be_overdue(server: TinyServer) -> None:
    async with httpx.AsyncClient(timeout=600) as client:
        url = f"{server.url}/v1/images/generations"
        header = {"x-request-timeout": str(GIVEN_UP_AFTER_S)}
        answer = await client.post(url, json=LONG, headers=header)
    assert answer.status_code == 504


async def hang_up(server: TinyServer) -> None:
    async with httpx.AsyncClient(timeout=httpx.Timeout(60, read=GIVEN_UP_AFTER_S)) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post(f"{server.url}/v1/images/generations", json=LONG)


def stage_bytes(server: TinyServer) -> int:
    """What the stages have in memory."""
    processes = psutil.Process(server.process.pid).children(recursive=True)
    return sum(process.memory_info().rss for process in processes)


@pytest.mark.parametrize("give_up", [be_overdue, hang_up])
async def test_after_an_endless_decoding_that_was_given_up_a_plain_request_is_answered(
    give_up: Any, server: TinyServer
) -> None:
    pictures_of(await ask(server, "a cat", 1))
    before = stage_bytes(server)
    await give_up(server)
    pictures_of(await ask(server, "a cat", 1))
    await until(lambda: stage_bytes(server) < before + SPARE_BYTES)
    dit = server.health()["dit"]
    assert (dit["restarts"], dit["ended_by"]) == (0, "")


async def test_a_stage_that_is_late_with_everything_starts_again_and_says_why(
    server: TinyServer, folder: Path
) -> None:
    stuck = await ask(server, "a cat", 1, size=f"{STUCK_SIZE}x64")
    assert (stuck.status_code, stuck.json()["error"]["code"]) == (504, "stage_timeout")
    await until(lambda: server.health()["dit"]["restarts"] == 1)
    await until(lambda: httpx.get(f"{server.url}/ready").status_code == 200)
    pictures_of(await ask(server, "a cat", 1))
    why = f"no progress for {NEXT_S} s after a request was overdue"
    assert server.health()["dit"]["ended_by"] == why
    assert f"stage dit ended: {why}" in (folder / "log").read_text()
