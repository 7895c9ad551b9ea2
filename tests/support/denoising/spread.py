"""A tiny pipeline whose denoiser has two ranks."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch
from support.tiny_pipelines import Settings, doubled, error, made, quiet, result

from omnistage.stages.diffusion.checkpoint import make_tiny, write_tiny
from omnistage.stages.diffusion.control.control import Control, ControlOptions
from omnistage.stages.diffusion.engine.job import Job
from omnistage.stages.diffusion.engine.step_batcher import StepBatcher
from omnistage.stages.diffusion.loading.loading import LoadOptions
from omnistage.stages.diffusion.merging.learning import first_calls
from omnistage.stages.diffusion.ranks.ranks import Ranks
from omnistage.stages.diffusion.ranks.worker import ALONE_S

EXTENSION = "support.denoising.rank_extension"
TOGETHER = [Settings(seed, 3, 3.0) for seed in range(3)]  # prompts of three lengths


class Spread:
    """A tiny pipeline whose denoiser has two ranks, and a bare twin."""

    def __init__(
        self, name: str, folder: Path, engine: Mapping[str, Any], alone_s: float = ALONE_S
    ) -> None:
        write_tiny(name, folder)
        self.name, self.folder, self.bare = name, folder, quiet(make_tiny(name))
        self.failures: Queue[str] = Queue()
        given = {"dtype": "float32", "worker_extension_cls": f"{EXTENSION}.Extension", **engine}
        load = LoadOptions.of(given)
        self.ranks = Ranks(str(folder), "dit", given, self.failures.put, alone_s)
        try:
            self._start(folder, load)
        except Exception:
            self.ranks.close()
            raise

    def _start(self, folder: Path, load: LoadOptions) -> None:
        name = self.name
        self.ranks.meet()
        loaded = load.load(str(folder))
        once = Settings(0, 2, 3.0).arguments(name)
        with torch.inference_mode():
            self.ranks.shard(loaded)
            self.ranks.join(loaded, first_calls(loaded.pipeline, loaded.parts.dit, once))
            self.ranks.share_tiles(loaded)
        options = ControlOptions.of({})
        self.control = Control(
            loaded,
            options,
            lambda path: load.read(path or str(folder)),
            "dit",
            self.ranks,
            self.failures.put,
        )
        parts = loaded.parts.dit
        self.engine = StepBatcher(
            loaded.pipeline, once, doubled(once), denoisers=parts, beside=self.ranks
        )
        self.control.attach(self.engine)

    def ask(self, settings: Settings, /, **body: Any) -> Job:
        """A job; `body`: of its request."""
        return self.control.submit(body, **settings.arguments(self.name))

    def expected(self, settings: Settings) -> torch.Tensor:
        """The bare twin's."""
        with torch.inference_mode():
            return made(self.bare(**settings.arguments(self.name)))

    async def obey(self, command: str, **arguments: Any) -> Mapping[str, Any]:
        """A command to the stage."""
        return await self.control.obey(command, arguments)

    async def rpc(self, method: str, *args: Any, **more: Any) -> Any:
        """A method of the extension."""
        asked = {"args": list(args), "reply": True, "from_all": False, **more}
        return (await self.obey("rpc", method=method, **asked))["result"]

    def close(self) -> None:
        self.control.close()
        self.engine.close()
        self.ranks.close()


@contextmanager
def spread_over_ranks(
    name: str,
    tmp_path_factory: pytest.TempPathFactory,
    alone_s: float = ALONE_S,
    **engine: Any,
) -> Iterator[Spread]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    one = Spread(name, tmp_path_factory.mktemp(name), engine, alone_s)
    try:
        yield one
    finally:
        one.close()
        torch.set_num_threads(threads)


def check_pictures(spread: Spread) -> None:
    """One alone, then three at once."""
    calls = spread.ranks.num_calls
    assert error(result(spread.ask(TOGETHER[0])), spread.expected(TOGETHER[0])) < 1e-5
    assert spread.ranks.num_calls >= calls + TOGETHER[0].num_steps
    expected = [spread.expected(one) for one in TOGETHER]
    jobs = [spread.ask(one) for one in TOGETHER]
    for job, pictures in zip(jobs, expected, strict=True):
        assert error(result(job), pictures) < 1e-5
