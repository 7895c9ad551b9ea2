"""The fused layers against the exact ones; without a GPU, TRITON_INTERPRET=1 runs them on a CPU."""

import copy
from typing import Any

import pytest
import torch
from support.kernels import DEVICE, IS_INTERPRETED, RUNS_KERNELS
from torch import nn
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavConfig,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCode2WavTransformerModel,
)

from omnistage.stages.vocoder.layers.transformer import ExactTransformer, TransformerLayers
from omnistage.stages.vocoder.state import StateLayout, StreamBatch

pytestmark = RUNS_KERNELS
SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 80,
    "num_hidden_layers": 2 if IS_INTERPRETED else 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "sliding_window": 20,
}
FEW = {"num_hidden_layers": 1 if IS_INTERPRETED else 2}  # enough for sizes of one layer
BEFORE = 3  # numbers of another layer in front of the window's, and behind it


def make_net(**sizes: Any) -> Any:
    torch.manual_seed(0)
    config = Qwen3OmniMoeCode2WavConfig(**(SIZES | sizes))
    net: Any = Qwen3OmniMoeCode2WavTransformerModel(config)
    for name, parameter in net.named_parameters():
        if parameter.ndim == 1:
            is_scale = name.endswith("scale")
            parameter.data.uniform_(*((0.2, 0.8) if is_scale else (0.5, 1.5)))
        else:
            parameter.data.normal_(0, 2 * parameter.shape[1] ** -0.5)
    return net.requires_grad_(False).to(DEVICE)


class Streams:
    """Streams that go on chunk by chunk with the state of one kind of layers."""

    def __init__(self, kind: Any, net: Any, num: int, dtype: torch.dtype = torch.float32) -> None:
        layout = StateLayout()
        layout.reserve(BEFORE)
        self._layers: TransformerLayers = kind(net, layout)
        layout.reserve(BEFORE)
        self._rows = torch.zeros(num, layout.num_elements, device=DEVICE, dtype=dtype)
        self._positions = torch.zeros(num, dtype=torch.int64, device=DEVICE)

    def start(self, stream: int, position: int) -> None:
        """Let it be so far, and what it has seen zeros."""
        self._rows[stream] = 0.0
        self._positions[stream] = position

    def put(self, streams: list[int], hidden: torch.Tensor) -> torch.Tensor:
        """The next chunk of some of them."""
        rows, positions = self._rows[streams], self._positions[streams]
        rows[:, :BEFORE] = rows[:, -BEFORE:] = 7.0
        started = (positions > 0).to(rows.dtype)[:, None, None]
        output = self._layers(hidden, StreamBatch(rows, positions, started))
        assert (rows[:, :BEFORE] == 7.0).all()
        assert (rows[:, -BEFORE:] == 7.0).all()
        self._rows[streams] = rows
        self._positions[streams] += hidden.shape[1]
        return output


def both_kinds(net: Any, num: int) -> tuple[Streams, Streams]:
    from omnistage.stages.vocoder.layers.fused_transformer import FusedTransformer, is_fusible

    assert is_fusible(net)
    return Streams(ExactTransformer, net, num), Streams(FusedTransformer, net, num)


def check_chunks(net: Any, chunks: list[tuple[list[int], int]], seed: int = 1) -> None:
    kinds = both_kinds(net, 1 + max(max(numbers) for numbers, _ in chunks))
    generator = torch.Generator().manual_seed(seed)
    width = net.config.hidden_size
    for numbers, length in chunks:
        hidden = torch.randn(len(numbers), length, width, generator=generator).to(DEVICE)
        expected, found = (kind.put(numbers, hidden) for kind in kinds)
        assert found.shape == expected.shape == hidden.shape
        assert expected.std() > 0.1
        assert (found - expected).abs().max() < 1e-4


CHUNKS = [
    ([0], 2),
    ([0, 1], 1),
    ([2, 1, 0], 25),
    ([1, 2], 1),
    ([2, 0], 19),
    ([1], 20),
    ([0, 1], 33),
]


@torch.inference_mode()
def test_fused_layers_equal_exact_ones_in_any_chunks() -> None:
    """Streams that start at different times, chunks shorter and longer than the window."""
    check_chunks(make_net(), [*CHUNKS, ([3, 2, 1, 0], 1), ([0, 3], 16), ([3], 17)])


@torch.inference_mode()
@pytest.mark.parametrize(
    "sizes",
    [
        {"num_attention_heads": 2, "head_dim": 64, "sliding_window": 72},
        {"num_attention_heads": 2, "num_key_value_heads": 1, "sliding_window": 2},
        {"num_attention_heads": 2, "sliding_window": 33, "hidden_size": 32},
    ],
    ids=str,
)
def test_heads_and_windows_of_other_sizes(sizes: dict[str, Any]) -> None:
    """Chunks that drop all of a window, and one whose last frames see none of its first tile."""
    above = sizes["sliding_window"] + 3
    chunks = [([0], 1), ([0, 1], 3), ([1, 0], above), ([0, 1], 2), ([1], 66)]
    check_chunks(make_net(**(FEW | sizes)), chunks)


@torch.inference_mode()
def test_fused_layers_equal_exact_ones_in_random_chunks() -> None:
    generator = torch.Generator().manual_seed(3)
    for seed in range(1 if IS_INTERPRETED else 2):
        window = int(torch.randint(2, 40, (), generator=generator))
        num_chunks = 4 if IS_INTERPRETED else 6
        lengths = torch.randint(1, 50, (num_chunks,), generator=generator).tolist()
        counts = torch.randint(1, 5, (num_chunks,), generator=generator).tolist()
        numbers = [torch.randperm(4, generator=generator)[:count].tolist() for count in counts]
        chunks = list(zip(numbers, lengths, strict=True))
        check_chunks(make_net(sliding_window=window, **FEW), chunks, seed)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_as_near_to_float32_as_that_of_the_exact_layers(
    dtype: torch.dtype,
) -> None:
    from omnistage.stages.vocoder.layers.fused_transformer import FusedTransformer

    if IS_INTERPRETED and dtype == torch.bfloat16:
        pytest.skip("the interpreter takes bfloat16 for integers in products")
    rounded = make_net().to(dtype)
    full = copy.deepcopy(rounded).float()
    full.rotary_emb = make_net().rotary_emb
    kinds = [
        Streams(ExactTransformer, full, 2),
        Streams(ExactTransformer, rounded, 2, dtype),
        Streams(FusedTransformer, rounded, 2, dtype),
    ]
    generator = torch.Generator().manual_seed(5)
    parts: list[list[torch.Tensor]] = [[], [], []]
    for length in (3, 1, 18):
        hidden = torch.randn(2, length, SIZES["hidden_size"], generator=generator).to(DEVICE, dtype)
        for own, kind in zip(parts, kinds, strict=True):
            own.append(kind.put([0, 1], hidden.float() if own is parts[0] else hidden).float())
    expected, exact, fused = (torch.cat(own, dim=1) for own in parts)
    assert 0 < (fused - expected).norm() < 1.3 * (exact - expected).norm()


@torch.inference_mode()
def test_a_stream_that_is_far_has_the_rotations_of_its_position() -> None:
    net = make_net(num_hidden_layers=1)
    kinds = both_kinds(net, 2)
    generator = torch.Generator().manual_seed(4)
    for kind in kinds:
        kind.start(0, 7000)
        kind.start(1, 5)
    for length in (3, 18):
        hidden = torch.randn(2, length, SIZES["hidden_size"], generator=generator).to(DEVICE)
        expected, found = (kind.put([0, 1], hidden) for kind in kinds)
        assert (found - expected).abs().max() < 1e-3


@torch.inference_mode()
def test_rotations_are_those_of_frequencies_in_float32() -> None:
    """Whatever has become of the module's own, as in half precision."""
    from omnistage.stages.vocoder.layers.fused_transformer import FusedTransformer

    net = make_net()
    exact = net.rotary_emb.inv_freq.clone()
    net.rotary_emb.to(torch.bfloat16)
    layers = FusedTransformer(net, StateLayout())
    assert not torch.equal(net.rotary_emb.inv_freq.float(), exact)
    assert torch.equal(layers._frequencies, exact)


@torch.inference_mode()
def test_parameters_are_views_of_what_the_kernels_read() -> None:
    from omnistage.stages.vocoder.layers.fused_transformer import FusedTransformer

    net = make_net()
    before = {name: one.clone() for name, one in net.named_parameters()}
    layers = FusedTransformer(net, StateLayout())._layers
    for own, layer in zip(net.layers, layers, strict=True):
        attention, network = own.self_attn, own.mlp
        parts = [one.weight for one in (attention.q_proj, attention.k_proj, attention.v_proj)]
        assert {one.untyped_storage().data_ptr() for one in parts} == {layer.inputs.data_ptr()}
        parts = [network.gate_proj.weight, network.up_proj.weight]
        assert {one.untyped_storage().data_ptr() for one in parts} == {layer.first.data_ptr()}
        assert layer.output.data_ptr() == attention.o_proj.weight.data_ptr()
        assert layer.second.data_ptr() == network.down_proj.weight.data_ptr()
    for name, one in net.named_parameters():
        assert torch.equal(one, before[name])


def with_bias(net: Any) -> Any:
    net.layers[1].self_attn.q_proj.bias = nn.Parameter(torch.zeros(1))
    return net


def with_scaled_rotations(net: Any) -> Any:
    net.rotary_emb.rope_type = "dynamic"
    return net


@pytest.mark.parametrize(
    "make",
    [
        lambda: make_net(head_dim=16),
        lambda: make_net(head_dim=48),
        lambda: make_net(hidden_act="gelu"),
        lambda: with_bias(make_net()),
        lambda: with_scaled_rotations(make_net()),
        lambda: make_net(num_hidden_layers=0),
        lambda: make_net(sliding_window=1),
    ],
    ids=["narrow", "odd", "gelu", "bias", "rotations", "no layer", "no window"],
)
def test_what_the_kernels_do_not_take_is_told(make: Any) -> None:
    from omnistage.stages.vocoder.layers.fused_transformer import is_fusible

    assert is_fusible(make_net())
    assert not is_fusible(make())
