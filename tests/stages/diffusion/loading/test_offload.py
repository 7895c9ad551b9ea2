"""Which module is where at each step: the accelerator is the meta device, or the CPU once more."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.denoising.other_device import OTHER_CPU, places
from support.models.layouts import (
    BAGEL_MODULES,
    SIZE,
    Bagel,
    Dit,
    DreamIdOmni,
    Encoder,
    Ltx2TwoStages,
    MammothModa2,
    OmniGen2,
)
from torch import nn

from omnistage.stages.diffusion.loading.components import Parts, Roles
from omnistage.stages.diffusion.loading.movable import Movable
from omnistage.stages.diffusion.loading.offload import Turns, offload

LTX2_ORDER = ("text_encoder", "connectors", "transformer", "audio_vae", "vocoder", "vae")
META = torch.device("meta")
LAYOUTS: list[tuple[Callable[[], Any], dict[str, list[str]], str]] = [
    (OmniGen2, {}, "mllm transformer vae"),
    (Bagel, BAGEL_MODULES, "vit_model language_model.model vae"),
    (
        Ltx2TwoStages,
        {},
        " ".join(f"pipe.{name}" for name in [*LTX2_ORDER, *LTX2_ORDER]),
    ),
    (MammothModa2, {}, "llm_model gen_transformer gen_vae"),
    (DreamIdOmni, {}, "text_model model vae_model_video vae_model_audio"),
]


def is_here(module: nn.Module) -> bool:
    return any(weight.is_meta for weight in module.parameters())


class Watched:
    """A pipeline whose modules note, at each use, which of them are on the device."""

    def __init__(self, make: Callable[[], Any], modules: Any, kind: str) -> None:
        self.pipeline = make()
        self.parts = Parts.find(self.pipeline, Roles.of(modules))
        self.turns: Turns = offload(self.pipeline, self.parts, kind, META)
        self.uses: list[tuple[str, set[str]]] = []
        self.blocks: list[set[int]] = []
        for name, module in self.parts.moved.items():
            leaf = next(one for one in module.modules() if isinstance(one, nn.Linear))
            leaf.register_forward_pre_hook(lambda *_, name=name: self.note(name))
        dit = next(iter(self.parts.dit.values()))
        assert isinstance(dit, Dit)
        self.dit: Dit = dit
        for block in self.dit.blocks:
            block.register_forward_pre_hook(self.note_blocks)

    def note(self, name: str) -> None:
        moved = self.parts.moved
        self.uses.append((name, {one for one in moved if self.has(one)}))

    def has(self, name: str) -> bool:
        blocks = getattr(self.parts.moved[name], "blocks", None)
        return is_here(blocks if isinstance(blocks, nn.Module) else self.parts.moved[name])

    def note_blocks(self, block: nn.Module, _: Any) -> None:
        assert is_here(block)
        self.blocks.append({n for n, one in enumerate(self.dit.blocks) if is_here(one)})

    def run(self) -> None:
        with torch.inference_mode():
            made = self.pipeline(torch.zeros(1, SIZE, device=META))
        assert made.is_meta


@pytest.mark.parametrize(("make", "modules", "order"), LAYOUTS)
def test_modules_take_turns(make: Any, modules: Any, order: str) -> None:
    watched = Watched(make, modules, "sequential")
    assert not any(map(is_here, watched.parts.encoder.values()))
    for _ in range(2):
        watched.run()
    assert watched.uses == [(name, {name}) for name in order.split() * 2]
    watched.turns.end()
    assert not any(watched.has(name) for name in watched.parts.moved)


@pytest.mark.parametrize(("make", "modules", "order"), LAYOUTS)
def test_blocks_come_with_the_next_and_go(make: Any, modules: Any, order: str) -> None:
    watched = Watched(make, modules, "layerwise")
    watched.run()
    for name, here in watched.uses:
        others = here - set(watched.parts.dit)
        assert others == (set() if name in watched.parts.dit else {name})
    assert watched.blocks[:5] == [{0, 1}, {0, 1, 2}, {1, 2, 3}, {2, 3, 4}, {3, 4, 0}]
    assert is_here(watched.dit.embed_tokens)


def test_residents_stay() -> None:
    watched = Watched(Bagel, BAGEL_MODULES, "sequential")
    model = watched.pipeline.language_model
    for _ in range(2):
        for resident in (model.model.embed_tokens, model.lm_head, watched.pipeline.time_embedder):
            assert is_here(resident)
        watched.run()
        watched.turns.end()


def test_what_two_modules_share_stays() -> None:
    def make() -> OmniGen2:
        pipeline = OmniGen2()
        block = next(iter(pipeline.transformer.blocks))
        assert isinstance(block, Encoder)
        pipeline.mllm.layer.weight = block.layer.weight
        return pipeline

    watched = Watched(make, {}, "sequential")
    shared = watched.pipeline.mllm.layer.weight
    assert shared.is_meta
    watched.run()
    watched.turns.end()
    assert watched.pipeline.mllm.layer.weight is shared
    assert watched.pipeline.transformer.blocks[0].layer.weight is shared


def test_uses_of_different_requests_may_alternate() -> None:
    watched = Watched(OmniGen2, {}, "sequential")
    pipeline, x = watched.pipeline, torch.zeros(1, SIZE, device=META)
    text = pipeline.mllm(x)
    pipeline.transformer(text, 1)
    pipeline.mllm.layer(x)  # a part of it, not by its forward
    pipeline.transformer(text, 1)
    pipeline.vae.decode(x)
    pipeline.transformer(text, 1)
    order = ["mllm", "transformer", "mllm", "transformer", "vae", "transformer"]
    assert watched.uses == [(name, {name}) for name in order]


def test_a_denoiser_without_blocks_cannot_be_streamed() -> None:
    pipeline = OmniGen2()
    pipeline.transformer.blocks = nn.Sequential(*pipeline.transformer.blocks)  # type: ignore[assignment]
    with pytest.raises(ValueError, match="transformer has no repeated blocks; use sequential"):
        offload(pipeline, Parts.find(pipeline), "layerwise", META)


@pytest.mark.parametrize("device", [META, OTHER_CPU], ids=str)
def test_the_host_keeps_what_it_had(device: torch.device) -> None:
    module = Dit()
    tensors = list(module.state_dict(keep_vars=True).values())
    before, homes = [tensor.detach().clone() for tensor in tensors], places(tensors)
    movable = Movable([module])
    movable.bring(device)
    copies = list(module.state_dict(keep_vars=True).values())
    assert not set(places(copies)) & set(homes)
    assert movable.is_here
    movable.leave()
    assert not movable.is_here
    for now, tensor, value in zip(
        module.state_dict(keep_vars=True).values(), tensors, before, strict=True
    ):
        assert now is tensor
        assert torch.equal(now, value)
    assert places(tensors) == homes


def test_copies_lie_elsewhere_and_have_the_values_of_the_host() -> None:
    module = Dit()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    homes = places(module.parameters())
    Movable([module]).bring(OTHER_CPU)
    assert not set(places(module.parameters())) & set(homes)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_pinning_moves_all_into_one_piece_and_changes_no_value() -> None:
    module = Dit()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    homes = places(module.parameters())
    Movable([module]).pin()
    assert len(pieces(module)) == 1
    assert not set(places(module.parameters())) & set(homes)
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def pieces(module: nn.Module) -> set[int]:
    return {value.untyped_storage().data_ptr() for value in module.state_dict().values()}
