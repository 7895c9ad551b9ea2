"""A command that ranks refuse: told once, and the next ones get their own answers."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from omnistage.stages.vllm.step import ranks
from omnistage.stages.vllm.workers import weights_worker
from omnistage.stages.vllm.workers.together import TogetherLLM, call_together
from omnistage.stages.vllm.workers.weights_worker import WeightsWorker


class Rank(WeightsWorker):
    """Fails at what it is told to."""

    def __init__(self, problem: str = "") -> None:
        self.problem = problem
        self.done: list[object] = []

    def act(self, argument: object) -> None:
        if self.problem:
            raise KeyError(self.problem)
        self.done.append(argument)


class Ranks:
    """Answers that are read as vLLM's executor reads them: up to the first that is an error."""

    def __init__(self, *problems: str) -> None:
        self.ranks = [Rank(problem) for problem in problems]
        self.unread: list[list[object]] = [[] for _ in problems]

    async def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[object]:
        for unread, answer in zip(self.unread, self._answers(method, args), strict=True):
            unread.append(answer)
        read: list[object] = []
        for unread in self.unread:
            answer = unread.pop(0)
            if isinstance(answer, Exception):
                raise answer
            read.append(answer)
        return read

    def _answers(self, method: str, args: tuple[Any, ...]) -> list[object]:
        """Each rank's; what they tell each other is known when all have begun."""
        told = [f"KeyError: {one.problem!r}" for one in self.ranks if one.problem]
        answers: list[object] = []
        for number, rank in enumerate(self.ranks):
            with pytest.MonkeyPatch.context() as patch:
                is_last = number == len(self.ranks) - 1
                patch.setattr(weights_worker, "is_read_last", lambda is_last=is_last: is_last)
                patch.setattr(weights_worker, "first_problem", lambda own: next(iter(told), own))
                try:
                    answers.append(getattr(rank, method)(*args))
                except RuntimeError as error:
                    answers.append(error)
        return answers


@pytest.mark.parametrize("problems", [("no",), ("no", "no"), ("", "no"), ("no", "", "")])
async def test_what_any_rank_refuses_is_told_and_no_answer_is_left(problems: Any) -> None:
    engine: Any = Ranks(*problems)
    with pytest.raises(RuntimeError, match="KeyError: 'no'"):
        await call_together(engine, "act", 1)
    assert engine.unread == [[] for _ in problems]


async def test_what_all_ranks_do_is_done() -> None:
    engine: Any = Ranks("", "")
    await call_together(engine, "act", 5)
    assert [rank.done for rank in engine.ranks] == [[5], [5]]


def test_the_first_problem_of_tensor_and_pipeline_ranks_is_known_to_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tensor = SimpleNamespace(world_size=2, cpu_group="tensor", is_last_rank=True)
    pipeline = SimpleNamespace(world_size=2, cpu_group="pipeline", is_last_rank=False)
    others = {"tensor": "", "pipeline": "no folder"}

    def gather(into: list[str], own: str, group: str) -> None:
        into[:] = [own, others[group]]

    monkeypatch.setattr(ranks, "get_tp_group", lambda: tensor)
    monkeypatch.setattr(ranks, "get_pp_group", lambda: pipeline)
    monkeypatch.setattr("torch.distributed.all_gather_object", gather)
    assert ranks.first_problem("") == "no folder"
    assert ranks.first_problem("own") == "own"
    assert not ranks.is_read_last()


async def test_adapters_are_told_to_the_ranks_by_plain_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[object] = []

    async def rpc(self: object, method: str, args: tuple[Any, ...] = ()) -> None:
        told.append((method, *args))

    base: Any = TogetherLLM.__mro__[1]
    monkeypatch.setattr(base, "collective_rpc", rpc)
    engine: Any = object.__new__(TogetherLLM)
    request: Any = SimpleNamespace(lora_name="ink", lora_int_id=3, lora_path="/ink")
    assert await engine.add_lora(request)
    assert await engine.pin_lora(3)
    add = ("omnistage_together", "omnistage_add_lora", "ink", 3, "/ink")
    assert told == [add, ("omnistage_together", "omnistage_pin_lora", 3)]


class CalledRank(WeightsWorker):
    """With a user's methods, in one of several lanes."""

    def __init__(self, lane: int) -> None:
        self.rank = 0
        self.vllm_config = SimpleNamespace(
            parallel_config=SimpleNamespace(data_parallel_index=lane)
        )

    def fail(self) -> None:
        raise ValueError("\ud800")

    def fine(self, number: int) -> Any:
        return {"number": number}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights_worker, "is_read_last", lambda: True)
    monkeypatch.setattr(weights_worker, "first_problem", lambda own: own)
    monkeypatch.setattr(weights_worker.logger, "disabled", True)  # no report holds half a pair


def test_a_call_of_a_users_method_is_answered_in_json_also_if_it_fails(alone: None) -> None:
    rank = CalledRank(lane=0)
    assert json.loads(rank.omnistage_rpc("fine", [3])) == {"result": {"number": 3}, "problem": ""}
    told = json.loads(rank.omnistage_rpc("fail", []))
    assert told == {"result": None, "problem": r"rank 0: ValueError: \ud800"}
    assert "TypeError" in json.loads(rank.omnistage_rpc("fine", []))["problem"]


def test_of_another_lane_only_errors_would_be_passed_on_so_it_is_one(alone: None) -> None:
    rank = CalledRank(lane=1)
    assert json.loads(rank.omnistage_rpc("fine", [3]))["problem"] == ""
    with pytest.raises(RuntimeError, match="lane 1, rank 0: ValueError"):
        rank.omnistage_rpc("fail", [])
