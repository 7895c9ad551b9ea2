"""How fast a pipeline is here, from its warm-up, and what it can so make within its deadlines."""

import functools
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from omnistage.stages.diffusion.loading.components import can_decode, modules_in
from omnistage.stages.diffusion.merging.calls import tensors_in
from omnistage.stages.diffusion.pipeline import Arguments, Pipeline

logger = logging.getLogger(__name__)

SIDES = ("height", "width")
# A call that takes so long computes; what is faster may as well be the way to the device.
SURE_S = 0.1
MAX_AGAIN_S = 1.0  # one that takes longer is not made again to be sure
MAX_PIXELS = 1 << 20  # a size that every pipeline makes; none is tried above it


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of one step and of the decoding of so many pixels, all pictures and frames."""

    pixels: int
    step_s: float
    decode_s: float

    @property
    def longest_s(self) -> float:
        """Returns the longer time of both."""
        return max(self.step_s, self.decode_s)

    def best(self, other: "Speed | None") -> "Speed":
        """Returns the better of two speeds, each by its own pixels, for the pixels of this one."""
        if other is None:
            return self
        scale = self.pixels / other.pixels
        step_s = min(self.step_s, other.step_s * scale)
        return replace(self, step_s=step_s, decode_s=min(self.decode_s, other.decode_s * scale))

    def max_pixels(self, step_s: float, decode_s: float) -> int:
        """Returns what surely takes longer than that for a step, or than that to decode, is more.

        Attention grows faster than the pixels that it is counted by here, and nothing slower.
        """
        shares = [(step_s, self.step_s), (decode_s, self.decode_s)]
        return int(min(self.pixels * limit / max(took, 1e-9) for limit, took in shares))


class Stopwatch:
    """Times calls of a pipeline's denoisers and decoders."""

    def __init__(
        self, pipeline: Pipeline, denoisers: Mapping[str, torch.nn.Module], device: torch.device
    ) -> None:
        self._parts = [(module, "forward") for module in denoisers.values()]
        self._parts += [
            (module, "decode") for _, module in modules_in(pipeline) if can_decode(module)
        ]
        self._device = device

    @contextmanager
    def timed(self) -> Iterator[Callable[[], Speed | None]]:
        """Around one call of the pipeline; what comes out says how fast it was, if it decoded."""
        steps: list[float] = []
        decodings: list[float] = []
        pixels: list[int] = []

        def note(method: str, seconds: float, result: object) -> None:
            (steps if method == "forward" else decodings).append(seconds)
            if method == "decode":
                pixels.append(max(map(_num_pixels, tensors_in(result)), default=0))

        own = [(module, method, vars(module).get(method)) for module, method in self._parts]
        for module, method in self._parts:
            setattr(module, method, self._timing(getattr(module, method), method, note))
        try:
            yield lambda: _speed(steps, decodings, pixels)
        finally:
            for module, method, before in own:
                if before is None:
                    delattr(module, method)
                else:
                    setattr(module, method, before)

    def _timing(
        self,
        function: Callable[..., object],
        method: str,
        note: Callable[[str, float, object], None],
    ) -> Callable[..., object]:
        @functools.wraps(function)  # the signature says which argument is which
        def call(*args: object, **kwargs: object) -> object:
            started = self._now()
            result = function(*args, **kwargs)
            note(method, self._now() - started, result)
            return result

        return call

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def _speed(
    steps: Sequence[float], decodings: Sequence[float], pixels: Sequence[int]
) -> Speed | None:
    if not steps or not sum(pixels):
        return None
    return Speed(sum(pixels), min(steps), sum(decodings))


def _num_pixels(tensor: torch.Tensor) -> int:
    """Returns the pixels of images [n, channels, height, width] or videos [n, channels, frames,
    height, width].
    """
    return tensor.numel() // tensor.shape[1] if tensor.dim() in (4, 5) else 0


class Trials:
    """Calls of a pipeline that are timed, until one takes long enough to say something."""

    def __init__(self, pipeline: Pipeline, arguments: Arguments, watch: Stopwatch) -> None:
        self._pipeline = pipeline
        self._arguments = arguments
        self._watch = watch

    @torch.inference_mode()
    def speed(self, warm_up: Speed) -> Speed:
        """Returns the speed of the largest images so far, in each size the better of two calls.

        Without a size among the arguments it stays that of the warm-up.
        """
        sides = {name: self._arguments.get(name) for name in SIDES}
        if not all(isinstance(side, int) for side in sides.values()):
            return warm_up
        speed = warm_up
        try:
            speed = self._sure(speed, sides)
            while speed.longest_s < SURE_S and 4 * speed.pixels <= MAX_PIXELS:
                sides = {name: 2 * side for name, side in sides.items() if side is not None}
                made = self._call(sides)
                if made is None or made.pixels <= speed.pixels:  # it has sizes of its own
                    return speed
                speed = self._sure(made, sides)
        except Exception:  # a size that it does not make, or has no memory for
            logger.info("no pictures of %s to learn the speed from", sides, exc_info=True)
        return speed

    def _sure(self, speed: Speed, sides: Mapping[str, int | None]) -> Speed:
        """The first call of a size may have had more to do."""
        is_again = SURE_S <= speed.longest_s < MAX_AGAIN_S and speed.pixels < MAX_PIXELS
        return speed.best(self._call(sides)) if is_again else speed

    def _call(self, sides: Mapping[str, int | None]) -> Speed | None:
        with self._watch.timed() as took:
            self._pipeline(**{**self._arguments, **sides})
        return took()
