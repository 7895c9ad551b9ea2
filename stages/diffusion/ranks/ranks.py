"""All ranks of a stage's denoisers, seen from rank 0, which is the engine's own process.

The pipeline, its schedulers, encoders and decoders are only here. The other ranks mirror the calls
of the denoisers: each call's arguments go to all, all compute it in lockstep, and the result that
is used is ours, or that of the rank which computed another call at the same time.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial, wraps
from pathlib import Path

import torch

from omnistage.stages.device.devices import device_of
from omnistage.stages.diffusion.loading.loading import LoadedPipeline
from omnistage.stages.diffusion.merging.calls import is_close, nested
from omnistage.stages.diffusion.merging.learning import SeenCall
from omnistage.stages.diffusion.ranks.group import RankPlace, device_of_rank, joined_group
from omnistage.stages.diffusion.ranks.lockstep import Lockstep
from omnistage.stages.diffusion.ranks.options import RankOptions
from omnistage.stages.diffusion.ranks.orders import Call, RankOrder
from omnistage.stages.diffusion.ranks.peers import RankError
from omnistage.stages.diffusion.ranks.tiles import SharedTiles
from omnistage.stages.diffusion.ranks.worker import ALONE_S, RankSpec, made_worker
from omnistage.stages.worker.extension import extension_of
from omnistage.stages.worker.process.engine_processes import ENGINE_DIED
from omnistage.stages.worker.start_error import tell_engines_failure

logger = logging.getLogger(__name__)


def end_stage(problem: str) -> None:
    """Ranks have ended or disagree: end at once, so that the server starts the stage again."""
    logger.error("%s", problem)
    tell_engines_failure(RankError(problem))
    os._exit(ENGINE_DIED)


class Ranks(Lockstep):
    """Starts the other ranks, puts the denoisers' calls through to all, and ends them."""

    def __init__(
        self,
        model: str,
        stage: str,
        engine: Mapping[str, object],
        on_failure: Callable[[str], None] = end_stage,
        alone_s: float = ALONE_S,
    ) -> None:
        """The ranks begin to load at once, while we do: `join` them. `engine`: as RankSpec's.

        `on_failure` is called when a rank has died or ranks disagree, from any thread. A rank that
        has failed alone in its group ends after `alone_s`; where we have failed, the others are in
        a collective without us if they have said nothing after half of it.
        """
        self._options = RankOptions.of(engine)
        self._folder = Path(tempfile.mkdtemp(prefix="ranks-"))
        group_size = self._options.group_size
        place = RankPlace(0, self._options.size, group_size, str(self._folder / "store"))
        super().__init__(RankSpec(place, model, stage, dict(engine), alone_s), on_failure)
        self.denoisers: Mapping[str, torch.nn.Module] = {}
        self._wholes: dict[str, Callable[..., object]] = {}
        self._stack = ExitStack()
        self.tiles: dict[str, SharedTiles] = {}  # of each VAE

    @property
    def size(self) -> int:
        """Ours included."""
        return self._options.size

    @property
    def num_groups(self) -> int:
        """How many calls can be computed at the same time."""
        return self._options.guidance_ranks

    @property
    def is_tensor_parallel(self) -> bool:
        """Returns whether Diffusers has cut each weight by its plan."""
        return self._options.tensor > 1

    @property
    def extension(self) -> type | None:
        """The user's class of more methods."""
        return extension_of(self._options.worker_extension_cls)

    def meet(self) -> None:
        """Make the process group; it is there when all ranks have come as far."""
        if self.size > 1:
            device = device_of_rank(0, device_of(self._spec.load_options.device))
            self._stack.enter_context(joined_group(self._spec.place, device))

    def shard(self, loaded: LoadedPipeline) -> None:
        """Before `join`, if weights are to be in parts: wait for the ranks, and leave each its own.

        From then on each call of a denoiser is put through to all, which compute it alike.
        """
        if self._options.shard > 1:
            self._await(loaded)
            self.rpc("shard")
            self._mirror()

    def join(self, loaded: LoadedPipeline, seen: Mapping[str, SeenCall]) -> None:
        """Wait for the ranks, spread the denoisers, and put their calls through to all.

        `seen`: a call of each, made before. Raises ValueError if a denoiser cannot be spread, or
        if one then comes to another result: one whose attention a plan does not reach computes
        nonsense in silence. RankError: a rank could not start.
        """
        if not self._wholes:
            self._await(loaded)
        if self.size == 1:
            return
        for name, denoiser in self.denoisers.items():
            denoiser.forward = self._wholes[name]
        self.rpc("spread")
        for name, call in seen.items():
            self._compare(name, call, loaded)
        self._mirror()

    def _await(self, loaded: LoadedPipeline) -> None:
        self._device = loaded.device
        self.denoisers = loaded.parts.dit
        self._wholes = {name: one.forward for name, one in self.denoisers.items()}
        self._worker = made_worker(self._spec, loaded)
        for rank in self.peers:
            reply = self._received(rank, 0, None)
            if reply is not None and reply.error:
                raise RankError(f"rank {rank}: {reply.error}")

    def _mirror(self) -> None:
        for name, denoiser in self.denoisers.items():
            denoiser.forward = self._mirrored(name, self._wholes[name])

    def share_tiles(self, loaded: LoadedPipeline) -> None:
        """After `join`: let VAEs decode in tiles, and the first ranks share these."""
        if self._options.vae == 1:
            return
        options, spec = self._spec.load_options, self._spec
        for name in options.tiled_in(options.folder_of(spec.model)):
            vae = getattr(loaded.pipeline, name)
            self.tiles[name] = SharedTiles(vae, self._options.vae, partial(self.decode_tiles, name))
            self.tiles[name].install()

    def _compare(self, name: str, seen: SeenCall, loaded: LoadedPipeline) -> None:
        call: Call = ((), nested(seen.arguments))
        kind = type(self.denoisers[name]).__name__
        try:
            results = self.run(name, [call] * self.num_groups)
        except Exception as error:
            raise ValueError(f"parallel: {kind} over {self.size} ranks: {error}") from error
        for result in results:
            if not is_close(seen.result, result):
                message = f"{kind} comes to another result over {self.size} ranks than alone"
                if self._spec.load_options.load_format != "dummy":
                    raise ValueError(f"parallel: {message}; take it out of the graph")
                logger.warning("%s; dummy weights amplify rounding", message)

    def _mirrored(self, name: str, whole: Callable[..., object]) -> Callable[..., object]:
        @wraps(whole)  # who looks for a denoiser reads its signature
        def forward(*args: object, **kwargs: object) -> object:
            return self.run(name, [(args, kwargs)])[0]

        return forward

    def close(self) -> None:
        """End the ranks; the denoisers are not what they were."""
        self.peers.ask_to_end(RankOrder(self._number + 1))
        self._stack.close()
        self.peers.close()
        shutil.rmtree(self._folder, ignore_errors=True)
