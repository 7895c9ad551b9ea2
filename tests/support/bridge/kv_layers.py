"""KV caches of tiny models, laid out as backends of attention do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from omnistage.stages.vllm.kv.cached_kv import CachedKv

BLOCKS, SIZE, HEADS, HEAD = 9, 16, 2, 32
Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int, int], None]


@dataclass
class Layer:
    """A layer of attention whose implementation is itself."""

    write: Write  # key and value [heads, size] of one token into a block
    block_size: int = SIZE

    @property
    def impl(self) -> "Layer":
        return self

    def do_kv_cache_update(
        self,
        layer: object,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Write token by token."""
        for one, slot in enumerate(slot_mapping.tolist()):
            self.write(kv_cache, key[one], value[one], *divmod(slot, self.block_size))


def side_by_side(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block: int, at: int
) -> None:
    """[blocks, heads, tokens, 2 x size], as vLLM 0.32 has it on GPUs."""
    head = key.shape[1]
    cache[block, :, at, :head], cache[block, :, at, head:] = key, value


def apart(cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block: int, at: int) -> None:
    """[2, blocks, tokens, heads, size], as before that."""
    cache[0, block, at], cache[1, block, at] = key, value


def transposed(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block: int, at: int
) -> None:
    """The same shape with keys transposed and values behind them, as on CPUs."""
    heads, head, size = *key.shape, cache.shape[2]
    place = cache[block].view(heads, 2 * size, head)
    place[:, :size].view(heads, head, size)[:, :, at] = key
    place[:, size + at] = value


def packed(
    cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block: int, at: int
) -> None:
    """Pairs of a key's elements together, as for matrix units of CPUs: no strides say where."""
    heads, head, size = *key.shape, cache.shape[2]
    place = cache[block].view(heads, 2 * size, head)
    pairs = place[:, :size].view(heads, head // 2, size, 2)
    pairs[:, :, at] = key.view(heads, head // 2, 2)
    place[:, size + at] = value


WHOLE = (BLOCKS, HEADS, SIZE, 2 * HEAD)
LAYOUTS: dict[str, tuple[Write, tuple[int, ...]]] = {
    "side by side": (side_by_side, WHOLE),
    "apart": (apart, (2, BLOCKS, SIZE, HEADS, HEAD)),
    "transposed": (transposed, WHOLE),
    "packed": (packed, WHOLE),
}


@dataclass
class Model:
    """The caches of a model's layers."""

    layer: Layer
    caches: Sequence[torch.Tensor]
    cached: CachedKv

    @classmethod
    def of(
        cls, layout: str = "transposed", dtype: torch.dtype = torch.float32, num_layers: int = 3
    ) -> "Model":
        """Make caches in one memory, as vLLM does."""
        write, shape = LAYOUTS[layout]
        caches = list(torch.zeros(num_layers, *shape, dtype=dtype))
        layer = Layer(write)
        return cls(layer, caches, CachedKv(layer, caches, BLOCKS, SIZE, (HEADS, HEAD)))

    def fill(self, blocks: Sequence[int], num_tokens: int, seed: int = 0) -> torch.Tensor:
        """Write tokens into blocks; what they are, [layers, 2, n, heads, size]."""
        made = torch.Generator().manual_seed(seed)
        shape = len(self.caches), 2, num_tokens, HEADS, HEAD
        kv = torch.randn(shape, generator=made).to(self.caches[0].dtype)
        slots = [blocks[at // SIZE] * SIZE + at % SIZE for at in range(num_tokens)]
        for cache, (keys, values) in zip(self.caches, kv, strict=True):
            self.layer.do_kv_cache_update(None, keys, values, cache, torch.tensor(slots))
        return kv
