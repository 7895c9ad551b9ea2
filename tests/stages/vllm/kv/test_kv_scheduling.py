"""The step after which keys and values leave, and for how long their blocks are held."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from vllm.v1.request import RequestStatus

from omnistage.stages.messages.edge import KeysAndValues
from omnistage.stages.vllm.compat import SamplingParams
from omnistage.stages.vllm.kv.kv_meta import KvMeta
from omnistage.stages.vllm.kv.kv_scheduling import KvScheduling
from omnistage.stages.vllm.step.request_options import RequestOptions

PROMPT = list(range(40))


def new(request_id: str, blocks: list[int], num_computed: int = 0, has_kv: bool = True) -> Any:
    """A request that a step begins, or begins anew."""
    kv = KeysAndValues("contexts") if has_kv else None
    params = SamplingParams(extra_args=RequestOptions(request_id, kv=kv).extra_args())
    return SimpleNamespace(
        req_id=request_id,
        prompt_token_ids=PROMPT,
        block_ids=(blocks,),
        num_computed_tokens=num_computed,
        sampling_params=params,
    )


@dataclass
class Steps:
    """Steps of a scheduler."""

    half: KvScheduling = field(default_factory=KvScheduling)

    def step(
        self,
        num_tokens: dict[str, int],
        started: tuple[Any, ...] = (),
        cached: tuple[tuple[str, list[int] | None, int], ...] = (),
        resumed: tuple[str, ...] = (),
        preempted: tuple[str, ...] = (),
    ) -> KvMeta:
        ids, blocks, computed = zip(*cached, strict=True) if cached else ((), (), ())
        states = SimpleNamespace(
            req_ids=list(ids),
            new_block_ids=[None if one is None else (one,) for one in blocks],
            num_computed_tokens=list(computed),
            resumed_req_ids=set(resumed),
        )
        output: Any = SimpleNamespace(
            scheduled_new_reqs=list(started),
            scheduled_cached_reqs=states,
            num_scheduled_tokens=num_tokens,
            total_num_scheduled_tokens=sum(num_tokens.values()),
            preempted_req_ids=set(preempted),
        )
        return self.half.build(output)

    def finish(
        self, request_id: str, status: RequestStatus = RequestStatus.FINISHED_LENGTH_CAPPED
    ) -> bool:
        request: Any = SimpleNamespace(request_id=request_id, status=status)
        return self.half.finish(request)


def due(meta: KvMeta) -> list[tuple[str, list[int], int]]:
    return [(one.request_id, one.blocks, one.num_tokens) for one in meta.due]


def test_a_prompt_leaves_after_the_step_that_computes_its_last_part() -> None:
    steps = Steps()
    assert (
        due(steps.step({"a": 16, "b": 40}, (new("a", [4]), new("b", [1, 2, 3], has_kv=False))))
        == []
    )
    assert due(steps.step({"a": 16}, cached=(("a", [9], 16),))) == []
    assert due(steps.step({"a": 8, "b": 1}, cached=(("b", None, 40), ("a", [7], 32)))) == [
        ("a", [4, 9, 7], 40)
    ]
    assert due(steps.step({"a": 1}, cached=(("a", None, 40),))) == []  # it goes on to answer


def test_blocks_of_a_hit_are_among_those_that_leave() -> None:
    steps = Steps()
    assert due(steps.step({"a": 8}, (new("a", [5, 6, 2], num_computed=32),))) == [
        ("a", [5, 6, 2], 40)
    ]


def test_blocks_are_held_from_the_end_of_a_request_until_it_has_left() -> None:
    steps = Steps()
    steps.step({"a": 40}, (new("a", [1, 2, 3]),))
    assert not steps.half.is_holding
    assert steps.finish("a")
    assert steps.half.is_holding
    steps.half.sent({"a"})
    assert not steps.half.is_holding
    assert not steps.finish("a")  # the same id again, which nothing is known of


def test_of_a_request_that_is_aborted_nothing_more_leaves_and_its_blocks_wait_for_the_reader() -> (
    None
):
    steps = Steps()
    steps.step({"a": 40, "b": 16}, (new("a", [1, 2, 3]), new("b", [4])))
    assert steps.finish("a", RequestStatus.FINISHED_ABORTED)
    assert not steps.finish("b", RequestStatus.FINISHED_ABORTED)  # nothing of it has begun to leave
    meta = steps.step({})
    assert (meta.dropped, meta.is_idle) == (["a"], True)
    assert steps.step({}).dropped == []
    steps.half.sent({"a"})
    assert not steps.half.is_holding


def test_a_preempted_prompt_leaves_once_more_from_its_new_blocks() -> None:
    steps = Steps()
    steps.step({"a": 40}, (new("a", [1, 2, 3]),))
    meta = steps.step({"b": 40}, (new("b", [1, 2, 3], has_kv=False),), preempted=("a",))
    assert (meta.preempted, due(meta)) == (["a"], [])
    meta = steps.step({"a": 20}, cached=(("a", [7, 8], 0),), resumed=("a",))
    assert due(meta) == []
    meta = steps.step({"a": 20}, cached=(("a", [9], 20),))
    assert due(meta) == [("a", [7, 8, 9], 40)]
    again = Steps()
    again.step({"a": 40}, (new("a", [1, 2, 3]),))
    again.step({}, preempted=("a",))
    assert not again.finish("a", RequestStatus.FINISHED_ABORTED)
    assert not again.half.is_holding
