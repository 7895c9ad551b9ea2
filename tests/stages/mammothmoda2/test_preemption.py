"""The stage of image ids, whose requests are preempted for want of blocks."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from references.mammothmoda2_drawings import DRAWINGS, Drawing
from support.oracles.mammothmoda2 import Recorded, recorded
from support.stages.feeding_stage import feeding_stage
from support.stages.preempting import num_preempted, num_unfinished, stopped_engine
from support.waiting import until

from omnistage.connectors.chunk import Chunk
from omnistage.connectors.contract import Receiver
from omnistage.stage_configs.graph_file import load_graph
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.diffusion.request.upstream.coming_arguments import ComingArguments
from omnistage.stages.mammothmoda2.image_ids import ImageIds
from omnistage.stages.messages.arguments import ArgumentsToCome
from omnistage.stages.messages.body import Draw
from omnistage.stages.messages.edge import Edge, Open
from omnistage.stages.messages.to_stage import Request
from omnistage.stages.worker.stage import Opened, StagePorts

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

CPU = torch.device("cpu")
BLOCK = 32  # tokens
TOKEN_BYTES = 4 * 2 * 2 * 64 * 4  # layers, keys and values, heads of both halves, size, float32
MAX_LEN, NUM_BLOCKS = 1024, 36
# 8 images, whose halves are a pair, and 8 texts without one. The large grow to 7 blocks each.
LARGE = DRAWINGS[-1]
TOGETHER = [*DRAWINGS[1:3], *[LARGE] * 6]
NUM_ENDLESS = 8
ENDLESS = {"prompt": ["a cat"] * NUM_ENDLESS, "height": 480, "width": 480}


class KeptIds(ImageIds):
    """Keeps what it made of each request's text, by the request's name and the text's."""

    def __init__(self, ports: StagePorts) -> None:
        super().__init__(ports)
        self.made: dict[str, list[int]] = {}

    async def _generated(self, request_id: str, *told: Any) -> list[int]:
        self.made[request_id] = found = await super()._generated(request_id, *told)
        return found


class Harness:
    """A stage of image ids, and a denoiser that reads what it sends."""

    def __init__(self, stage: Any, opens: Receiver[Edge], rows: Receiver[Edge]) -> None:
        self.stage = stage
        self._opens, self._rows = opens, rows
        self._coming: dict[str, ComingArguments] = {}
        self._early: dict[str, list[Chunk[Edge]]] = defaultdict(list)
        asyncio.get_running_loop().add_reader(rows.fileno(), self._read)

    def ids(self, name: str) -> list[int]:
        """The ids of a request's image, without its end and what is made of that."""
        return list(self.stage.made[f"{name}-prompt_embeds-0"][:-2])

    async def arguments(
        self, name: str, drawing: Drawing, seed: int | None = None
    ) -> Mapping[str, torch.Tensor]:
        """Serve one request; what its pipeline would be given."""
        width, height = drawing.size
        fields = {"prompt": drawing.prompt, "height": height, "width": width}
        await self.serve(name, fields | dict(drawing.arguments), seed)
        coming = self._coming[name]
        await until(lambda: coming.is_complete)
        return coming.arguments(CPU, torch.float32)

    async def serve(self, name: str, fields: Mapping[str, Any], seed: int | None = None) -> None:
        request = Request(Draw(dict(fields), []), ["image"], ["image_ids", "dit"], seed=seed)
        await self.stage.serve(Opened(name, request))

    def _read(self) -> None:
        while (chunk := self._rows.receive()) is not None:
            self._rows.grant(chunk.request_id)
            self._early[chunk.request_id].append(chunk)
        while (opened := self._opens.receive()) is not None:
            assert isinstance(opened.message, Open)
            about = opened.message.read(ArgumentsToCome)
            self._coming[opened.request_id] = ComingArguments(about)
        for name in self._coming.keys() & self._early.keys():
            for one in self._early.pop(name):
                self._coming[name].add(one)

    def close(self) -> None:
        """Read no more."""
        asyncio.get_running_loop().remove_reader(self._rows.fileno())


@pytest.fixture(scope="module")
def published(tiny_mammothmoda2: Path) -> Recorded:
    return recorded(tiny_mammothmoda2)


@asynccontextmanager
async def crowded(model: Path, folder: Path, **engine: Any) -> AsyncIterator[Harness]:
    """A stage with a seat for each, and a cache that holds a few of them."""
    options = {
        **load_graph(GRAPHS / "mammothmoda2_tiny.yaml").stages["image_ids"].engine,
        "max_num_seqs": 2 * len(TOGETHER) + 2,
        "max_model_len": MAX_LEN,
        "block_size": BLOCK,
        "kv_cache_memory_bytes": NUM_BLOCKS * BLOCK * TOKEN_BYTES,
        "disable_log_stats": False,
        **engine,
    }
    async with feeding_stage(KeptIds, "image_ids", model, folder, options, "rows") as (
        stage,
        *ends,
    ):
        harness = Harness(stage, *ends)
        yield harness
        harness.close()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def small(
    tiny_mammothmoda2: Path, tmp_path_factory: pytest.TempPathFactory, cpu_engine: None
) -> AsyncIterator[Harness]:
    async with crowded(tiny_mammothmoda2, tmp_path_factory.mktemp("small")) as harness:
        yield harness


async def made_at_once(
    small: Harness, name: str, asked: Sequence[tuple[Drawing, int | None]]
) -> list[Mapping[str, torch.Tensor]]:
    """Return what is given for images by their seeds, begun by the engine at the same time."""
    with stopped_engine(small.stage):
        tasks = [
            asyncio.create_task(small.arguments(f"{name}-{n}", *one)) for n, one in enumerate(asked)
        ]
        await until(lambda: num_unfinished(small.stage, f"{name}-") == 2 * len(asked))
    return await asyncio.gather(*tasks)


UNSEEDED = [(one, None) for one in TOGETHER]


async def test_preempted_pairs_and_singles_make_the_published_ids_and_the_same_states(
    small: Harness, published: Recorded
) -> None:
    before = num_preempted(small.stage)
    alone = {one.prompt: await small.arguments(one.prompt, one) for one in TOGETHER[:3]}
    assert num_preempted(small.stage) == before
    together = await made_at_once(small, "one", UNSEEDED)
    assert num_preempted(small.stage) > before
    for number, (arguments, drawing) in enumerate(zip(together, TOGETHER, strict=True)):
        assert small.ids(f"one-{number}") == published.of(drawing.prompt, "ids").tolist()
        for name, wanted in alone[drawing.prompt].items():
            torch.testing.assert_close(arguments[name], wanted, atol=1e-5, rtol=1e-5)


async def test_a_pair_that_is_cancelled_among_preempted_ones_changes_no_other(
    small: Harness, published: Recorded
) -> None:
    before = num_preempted(small.stage)
    gone = asyncio.create_task(small.serve("gone", ENDLESS))
    await until(lambda: num_unfinished(small.stage, "gone-") >= NUM_ENDLESS)
    others = asyncio.create_task(made_at_once(small, "other", UNSEEDED))
    await until(lambda: num_preempted(small.stage) > before)
    assert gone.cancel()
    await asyncio.wait({gone})
    assert gone.cancelled()
    await others
    for number, drawing in enumerate(TOGETHER):
        assert small.ids(f"other-{number}") == published.of(drawing.prompt, "ids").tolist()


async def test_sampled_ids_repeat_with_their_seed_only_also_of_preempted_pairs(
    tiny_mammothmoda2: Path, tmp_path_factory: pytest.TempPathFactory, cpu_engine: None
) -> None:
    sampled = {"override_generation_config": {"temperature": 1.0}}
    folder = tmp_path_factory.mktemp("sampled")
    async with crowded(tiny_mammothmoda2, folder, **sampled) as harness:
        alone = []
        for seed in (1, 2):
            await harness.arguments(f"alone-{seed}", LARGE, seed)
            alone.append(harness.ids(f"alone-{seed}"))
        assert num_preempted(harness.stage) == 0
        seeds = [1, 2, *[None] * (len(TOGETHER) - 2)]
        await made_at_once(harness, "one", [(LARGE, seed) for seed in seeds])
        assert num_preempted(harness.stage) > 0
        made = [harness.ids(f"one-{number}") for number in range(len(seeds))]
    assert made[:2] == alone
    assert len(set(map(tuple, made))) == len(made)
