"""Late inputs: what is available when, and that nothing is made up."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from omnistage.connectors.chunk import Chunk, Tensor
from omnistage.stages.vllm.late_inputs import ALL, LateInputs, RequestInputs, late_input_options
from omnistage.stages.vllm.step import NUM_INPUTS

MAX_LEN = 40
END, PAD = 901, 902


def options(num_prompt: int = 6, hidden: tuple[int, ...] = (), **more: Any) -> dict[str, Any]:
    inputs = np.arange(num_prompt * NUM_INPUTS).reshape(num_prompt, NUM_INPUTS)
    return late_input_options(
        "a",
        inputs,
        hidden_positions=np.array(hidden, np.int32),
        hidden_sources=np.array(hidden, np.int32) + 100,
        first_token_position=num_prompt - 1,
        position_delta=3,
        end_ids=(END, PAD),
        **more,
    )


def tokens(*values: int, last: bool = False) -> Chunk:
    tensors = {"tokens": Tensor.from_numpy(np.array(values, np.int32))}
    return Chunk("a", "tokens", 0, tensors, {}, last)


def rows(*sources: int) -> Chunk:
    values = np.array([[source] * 4 for source in sources], np.float32).reshape(-1, 4)
    tensors = {
        "hidden": Tensor.from_numpy(values),
        "positions": Tensor.from_numpy(np.array(sources, np.int32)),
    }
    return Chunk("a", "hidden", 0, tensors, {}, False)


def test_the_last_prompt_position_waits_for_the_first_token() -> None:
    inputs = RequestInputs(options(), MAX_LEN)
    assert inputs.available == 5
    inputs.add(tokens(7))
    assert inputs.available == 6
    assert inputs.table[5, 0] == 7


def test_after_the_last_token_come_the_end_and_pads_for_ever() -> None:
    inputs = RequestInputs(options(), MAX_LEN)
    inputs.add(tokens(7, 8))
    inputs.add(tokens(last=True))
    assert inputs.available == ALL
    assert inputs.table[5:9, 0].tolist() == [7, 8, END, PAD]
    assert inputs.table[-1, 0] == PAD


def test_decode_positions_count_on_from_the_prompts() -> None:
    inputs = RequestInputs(options(), MAX_LEN)
    assert inputs.table[6:9, 2:].tolist() == [[9] * 3, [10] * 3, [11] * 3]


def test_a_hidden_row_that_has_not_come_is_waited_for() -> None:
    inputs = RequestInputs(options(hidden=(1, 2, 4), tokens=(7,), complete=True), MAX_LEN)
    assert inputs.available == 1
    inputs.add(rows(101))
    assert inputs.available == 2
    inputs.add(rows(104))
    assert inputs.available == 2
    inputs.add(rows(101, 102))  # a repeat after a preemption
    assert inputs.available == ALL


def test_rows_that_nobody_asked_for_are_ignored() -> None:
    inputs = RequestInputs(options(hidden=(1,)), MAX_LEN)
    inputs.add(rows(100, 102, 300))
    assert inputs.available == 1


def test_hidden_rows_come_back_by_position() -> None:
    inputs = RequestInputs(options(hidden=(1, 2, 4)), MAX_LEN)
    inputs.add(rows(101, 102, 104))
    positions, values = inputs.hidden_between(2, 5)
    assert positions.tolist() == [2, 4]
    assert [value.view(np.float32)[0] for value in values] == [102, 104]


def test_chunks_that_come_before_their_request_are_kept() -> None:
    late = LateInputs([], MAX_LEN)
    late._early["a"] = [tokens(7)]
    assert late.open(options()).available == 6
    assert not late._early


@given(st.lists(st.integers(0, 3), max_size=12))
def test_any_split_of_the_tokens_gives_the_same_table(sizes: list[int]) -> None:
    whole = RequestInputs(options(), MAX_LEN)
    parts = RequestInputs(options(), MAX_LEN)
    values = list(range(1, sum(sizes) + 1))
    whole.add(tokens(*values, last=True))
    for size in sizes:
        parts.add(tokens(*values[:size]))
        values = values[size:]
    parts.add(tokens(last=True))
    assert np.array_equal(whole.table, parts.table)
