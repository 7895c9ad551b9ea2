"""Keys and values are found in every layout of a cache, and read bit for bit."""

import pytest
import torch
from support.bridge.kv_layers import BLOCKS, HEAD, HEADS, LAYOUTS, SIZE, Layer, Model

from omnistage.stages.vllm.kv.cached_kv import CachedKv, in_order


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_read_has_the_bits_of_what_was_written(layout: str, dtype: torch.dtype) -> None:
    model = Model.of(layout, dtype)
    assert not any(cache.any() for cache in model.caches)  # the search leaves nothing
    blocks = [3, 1, 7, 5]
    kv = model.fill(blocks, 3 * SIZE + 5)
    for first, count in ((0, 1), (0, 53), (3, 20), (SIZE, SIZE), (47, 6)):
        out = torch.empty_like(kv[:, :, :count]).contiguous()
        model.cached.read(torch.tensor(blocks), first, out)
        assert torch.equal(out, kv[:, :, first : first + count])


def test_blocks_of_several_kernels_are_found() -> None:
    """A backend may cut the blocks of a request into smaller ones of its own."""
    model = Model.of()
    large = CachedKv(model.layer, model.caches, BLOCKS // 3, 3 * SIZE, (HEADS, HEAD))
    kv = model.fill([6, 7, 8, 0, 1, 2], 5 * SIZE)
    out = torch.empty_like(kv)
    large.read(torch.tensor([2, 0]), 0, out)
    assert torch.equal(out, kv)


def test_layers_in_memories_of_their_own_are_read_too() -> None:
    model = Model.of()
    caches = [cache.clone() for cache in model.caches]
    own = Model(model.layer, caches, CachedKv(model.layer, caches, BLOCKS, SIZE, (HEADS, HEAD)))
    kv = own.fill([4], 9)
    out = torch.empty_like(kv)
    own.cached.read(torch.tensor([4]), 0, out)
    assert torch.equal(out, kv)


def test_a_cache_that_does_not_keep_what_is_computed_is_refused() -> None:
    def halved(
        cache: torch.Tensor, key: torch.Tensor, value: torch.Tensor, block: int, at: int
    ) -> None:
        cache[block, :, at, :HEAD], cache[block, :, at, HEAD:] = key // 2, value

    caches = [torch.zeros(BLOCKS, HEADS, SIZE, 2 * HEAD)]
    with pytest.raises(ValueError, match="does not keep keys and values as they are computed"):
        CachedKv(Layer(halved), caches, BLOCKS, SIZE, (HEADS, HEAD))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
def test_a_quantized_cache_is_refused(dtype: torch.dtype) -> None:
    write, shape = LAYOUTS["side by side"]
    with pytest.raises(ValueError, match="is quantized; allowed: float32, float16, bfloat16"):
        CachedKv(Layer(write), [torch.zeros(shape, dtype=dtype)], BLOCKS, SIZE, (HEADS, HEAD))


def test_layers_are_in_the_model_s_order() -> None:
    names = {f"model.layers.{number}.attn": torch.zeros(1) for number in (10, 2, 1)}
    assert in_order(names) == [f"model.layers.{number}.attn" for number in (1, 2, 10)]
    with pytest.raises(ValueError, match="several KV caches"):
        in_order({"layers.1.self": torch.zeros(1), "layers.1.cross": torch.zeros(1)})
