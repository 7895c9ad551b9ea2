"""Positions of a denoiser's sequences over the ranks of a group, by Ulysses, a ring or both.

Diffusers' plan of a class names the tensors that are split, and those that are gathered. Around
attention ranks exchange what each needs of the others. Lengths and numbers of heads are any, and
so is the attention: it sees whole sequences. All sizes are known on the host: nothing here waits
for the device.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
import torch.distributed as dist
from diffusers.hooks import HookRegistry, ModelHook
from diffusers.hooks.context_parallel import ContextParallelSplitHook, _get_submodule_by_name
from diffusers.models._modeling_parallel import ContextParallelInput, ContextParallelOutput
from diffusers.models.attention_dispatch import _AttentionBackendRegistry
from torch import Tensor
from torch.nn.functional import pad

Attend = Callable[..., Tensor]  # query, key, value: [rows, positions, heads, size]

# Torch 2.13 has another name for it.
GATHER: Callable[..., object] = (
    getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
)
NUM_KNOWN = 100_000  # sizes that are kept
CONFIG = "_parallel_config"  # a processor's attribute that Diffusers hands on to the back end
MARK = "_exchanges"  # an attribute of a back end that ranks can share


@dataclass(frozen=True, slots=True)
class Groups:
    """Process groups of the ranks that share a call, ring x ulysses of them; one or both ways."""

    all: dist.ProcessGroup
    ring: dist.ProcessGroup | None = None
    ulysses: dist.ProcessGroup | None = None


class SharedSequences:
    """The sequences of one denoiser: who has how many positions of each, and their exchange."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self.rank, self.num_ranks = dist.get_rank(groups.all), groups.all.size()
        self._ring = 1 if groups.ring is None else groups.ring.size()
        self._ulysses = 1 if groups.ulysses is None else groups.ulysses.size()
        self._place = self.rank % self._ulysses  # among those that exchange heads
        self._lengths: list[int] = []
        self._num_sizes = 0  # so many were needed in this call
        self._known: dict[tuple[object, ...], list[list[int]]] = {}
        self._new: dict[tuple[object, ...], list[list[int]]] = {}

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of the denoiser, with the same arguments on all ranks."""
        self._lengths, self._new, self._num_sizes = [], {}, 0
        yield
        if len(self._known) > NUM_KNOWN:
            self._known = {}
        self._known |= self._new

    def split(self, whole: Tensor, axis: int) -> Tensor:
        """This rank's part, which may be empty."""
        self._lengths.append(whole.shape[axis])
        return whole.tensor_split(self.num_ranks, axis)[self.rank]

    def gather(self, part: Tensor, axis: int) -> Tensor:
        """Return all ranks' parts, one after another."""
        (sizes,) = self._sizes(part.shape[axis])
        return gathered(part.movedim(axis, 0), sizes, self._groups.all).movedim(0, axis)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(
        self,
        attention: Attend,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attention of this rank's queries to all ranks' keys, each [rows, positions, heads, size].

        `mask`: of this rank's keys [rows, keys] or [rows, 1 or heads, 1, keys], or None.
        Raises ValueError for another one, and for fewer heads of keys than of queries.
        """
        num_heads, given = query.shape[2], [query, key, value]
        if key.shape[2] != num_heads:
            raise ValueError("ranks do not share attention with fewer heads of keys")
        queries, keys = self._sizes(query.shape[1], key.shape[1])
        if mask is not None:
            mask = self._whole_mask(mask, keys, key.shape[1], num_heads)
        if self._ulysses > 1:
            ours = self._in_ulysses(queries)
            if queries == keys and query.shape == value.shape:
                query, key, value = self._to_heads(given, ours)
            else:
                every = (ours, *[self._in_ulysses(keys)] * 2)
                pairs = zip(given, every, strict=True)
                query, key, value = (self._to_heads([one], sizes)[0] for one, sizes in pairs)
        if self._ring > 1:
            firsts = range(0, self.num_ranks, self._ulysses)
            sizes = [sum(keys[first : first + self._ulysses]) for first in firsts]
            key, value = self._around_ring(key, value, sizes)
        masked = {} if mask is None else {"attn_mask": mask}
        attended = attention(query, key, value, **masked)
        if self._ulysses == 1:
            return attended
        return self._to_positions(attended, ours)[:, :, :num_heads]

    def _sizes(self, *local: int) -> list[list[int]]:
        """Each rank's numbers of that of which this one has `local`.

        Ranks ask each other once for each place in calls with the same lengths: what is known is
        known to all.
        """
        self._num_sizes += 1
        place = (*self._lengths, "at", self._num_sizes)
        if place in self._known:
            return self._known[place]
        own = torch.tensor(local)
        every = [torch.empty_like(own) for _ in range(self.num_ranks)]
        dist.all_gather(every, own, self._groups.all)
        self._new[place] = torch.stack(every, 1).tolist()
        return self._new[place]

    def _in_ulysses(self, sizes: Sequence[int]) -> list[int]:
        """The sizes of those ranks that exchange heads with this one."""
        first = self.rank - self._place
        return list(sizes[first : first + self._ulysses])

    def _to_heads(self, given: Sequence[Tensor], sizes: list[int]) -> list[Tensor]:
        """Some heads of all positions, for all heads of some; heads that lack are zeros."""
        num, (rows, length, heads, size) = self._ulysses, given[0].shape
        per_rank = -(-heads // num)
        sent = given[0].new_empty(num, length, len(given), rows, per_rank, size)
        for place, one in enumerate(given):
            padded = pad(one, (0, 0, 0, num * per_rank - heads)) if heads % num else one
            sent[:, :, place] = padded.unflatten(2, (num, per_rank)).permute(2, 1, 0, 3, 4)
        got = sent.new_empty(sum(sizes), *sent.shape[2:])
        group = self._groups.ulysses
        dist.all_to_all_single(got, sent.flatten(0, 1), sizes, [length] * num, group)
        return [got[:, place].transpose(0, 1) for place in range(len(given))]

    def _to_positions(self, attended: Tensor, sizes: list[int]) -> Tensor:
        """Exchange some heads of all positions for all heads of some."""
        num, length = self._ulysses, sizes[self._place]
        sent = attended.transpose(0, 1).contiguous()
        got = sent.new_empty(num * length, *sent.shape[1:])
        dist.all_to_all_single(got, sent, [length] * num, sizes, self._groups.ulysses)
        whole: Tensor = got.unflatten(0, (num, length)).permute(2, 1, 0, 3, 4).flatten(2, 3)
        return whole

    def _around_ring(self, key: Tensor, value: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
        """Keys and values of all ranks of the ring."""
        if key.shape != value.shape:
            both = [gathered(one.transpose(0, 1), sizes, self._groups.ring) for one in (key, value)]
            return both[0].transpose(0, 1), both[1].transpose(0, 1)
        whole = gathered(torch.stack([key, value]).transpose(0, 2), sizes, self._groups.ring)
        return whole[:, :, 0].transpose(0, 1), whole[:, :, 1].transpose(0, 1)

    def _whole_mask(self, mask: Tensor, keys: list[int], own: int, num_heads: int) -> Tensor:
        """The mask of all keys, and of the heads that this rank will have."""
        if mask.dim() > 2 and mask.shape[-2] != 1:
            raise ValueError("ranks do not share attention with a mask of queries")
        if mask.shape[-1] == own:
            mask = gathered(mask.movedim(-1, 0), keys, self._groups.all).movedim(0, -1)
        elif mask.shape[-1] != sum(keys):
            raise ValueError(f"a mask of {mask.shape[-1]} keys, where there are {sum(keys)}")
        if mask.dim() != 4 or mask.shape[1] == 1 or self._ulysses == 1:
            return mask
        per_rank = -(-num_heads // self._ulysses)
        lacking = per_rank * self._ulysses - num_heads
        first = self._place * per_rank
        return pad(mask, (0, 0, 0, 0, 0, lacking)).narrow(1, first, per_rank)


def gathered(part: Tensor, sizes: list[int], group: dist.ProcessGroup | None) -> Tensor:
    """Join all ranks' parts, which have these sizes on the first axis, one after another."""
    longest, own = max(sizes), part.shape[0]
    part = part.contiguous()
    if own < longest:
        part = torch.cat([part, part.new_zeros(longest - own, *part.shape[1:])])
    whole = part.new_empty(len(sizes) * longest, *part.shape[1:])
    GATHER(whole, part, group)
    if min(sizes) == longest:
        return whole
    starts = range(0, len(whole), longest)
    return torch.cat([whole[at : at + size] for at, size in zip(starts, sizes, strict=True)])


# Diffusers' plans and back ends


def share_sequences(denoiser: torch.nn.Module, groups: Groups) -> None:
    """Split and gather a denoiser's tensors by its class's plan, and exchange around attention."""
    shared = SharedSequences(groups)
    plan: Any = denoiser._cp_plan
    for place, rules in plan.items():
        found = _get_submodule_by_name(denoiser, place)
        is_input = isinstance(rules, Mapping)
        for module in found if isinstance(found, list) else [found]:
            hook = _Split(rules, shared) if is_input else _Gather(rules, shared)
            name = f"omnistage_{'split' if is_input else 'gather'}_{place}"
            HookRegistry.check_if_exists_or_initialize(module).register_hook(hook, name)
    for module in denoiser.modules():
        processor = getattr(module, "processor", None)
        if hasattr(processor, CONFIG):
            setattr(processor, CONFIG, shared)
    reach_attention()
    whole = denoiser.forward

    @wraps(whole)
    def forward(*args: object, **kwargs: object) -> object:
        with shared.call():
            return whole(*args, **kwargs)

    denoiser.forward = forward


def reach_attention() -> None:
    """Let all back ends of Diffusers' registry exchange what ranks share, in this process."""
    registry = _AttentionBackendRegistry
    for name, attention in list(registry._backends.items()):
        if not hasattr(attention, MARK):
            constraints = registry._constraints[name]
            registry.register(name, constraints, supports_context_parallel=True)(
                _exchanging(attention)
            )


def _exchanging(attention: Attend) -> Attend:
    """A back end that also takes shared sequences."""
    signature = inspect.signature(attention)
    has_config = CONFIG in signature.parameters

    @wraps(attention)
    def over_ranks(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
        shared = given.pop(CONFIG, None)
        if not isinstance(shared, SharedSequences):
            if has_config:
                given[CONFIG] = shared
            return attention(query, key, value, **given)
        if given.get("is_causal"):
            raise ValueError("ranks do not share causal attention")
        mask = given.pop("attn_mask", None)
        attended: Tensor = shared.attend(partial(attention, **given), query, key, value, mask)
        return attended

    config = inspect.Parameter(CONFIG, inspect.Parameter.KEYWORD_ONLY, default=None)
    if not has_config:
        parameters = [*signature.parameters.values(), config]
        signature = signature.replace(parameters=parameters)
    over_ranks.__signature__ = signature  # type: ignore[attr-defined]
    setattr(over_ranks, MARK, True)
    return over_ranks


class _Split(ContextParallelSplitHook):  # type: ignore[misc]
    """Splits a module's inputs or outputs by Diffusers' rules."""

    def _prepare_cp_input(self, x: Tensor, cp_input: ContextParallelInput) -> Tensor:
        if cp_input.expected_dims is not None and x.dim() != cp_input.expected_dims:
            return x
        shared: SharedSequences = self.parallel_config
        return shared.split(x, cp_input.split_dim)


class _Gather(ModelHook):  # type: ignore[misc]
    """Gathers a module's outputs by Diffusers' rules, one for each."""

    def __init__(self, rules: Any, shared: SharedSequences) -> None:
        super().__init__()
        self._rules = [rules] if isinstance(rules, ContextParallelOutput) else list(rules)
        self._shared = shared

    def post_forward(self, module: torch.nn.Module, output: Any) -> Any:
        """Gather all ranks' parts of what the module returns."""
        is_one = isinstance(output, Tensor)
        parts = [output] if is_one else list(output)
        for place, rule in enumerate(self._rules):
            if rule is not None:
                parts[place] = self._shared.gather(parts[place], rule.gather_dim)
        return parts[0] if is_one else tuple(parts)
