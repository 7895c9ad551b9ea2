"""Columns as they are declared, packed and read."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnistage.stages.vllm.step import step
from omnistage.stages.vllm.step.step_schema import (
    Column,
    ColumnLayout,
    Export,
    RowInput,
    StepSchema,
)

COLUMN = st.builds(
    Column,
    st.sampled_from("abcdef"),
    st.sampled_from(["int32", "int64", "float32"]),
    st.integers(1, 4),
)


@given(st.lists(COLUMN, max_size=5, unique_by=lambda column: column.name))
def test_columns_of_any_widths_and_dtypes_are_read_as_they_were_packed(
    columns: list[Column],
) -> None:
    layout, num_lines = ColumnLayout(columns), 3
    values = {
        column.name: np.arange(num_lines * column.width).reshape(num_lines, -1) + 100 * number
        for number, column in enumerate(columns)
    }
    lines = np.zeros((num_lines, layout.num_words), np.int32)
    lines[:, step.NUM_OWN :] = layout.pack(num_lines, values)
    table = torch.from_numpy(lines)
    for name, given_values in values.items():
        assert layout.of_lines(table, name).tolist() == given_values.tolist()
    assert (lines[:, : step.NUM_OWN] == 0).all()


@pytest.mark.parametrize(
    ("schema", "is_repeatable"),
    [
        (StepSchema((Column("position", fed_by="position"),)), True),
        (StepSchema((Column("position", counts=True),), export=Export("hidden", "row")), True),
        (StepSchema(rows=RowInput(4)), False),
        (StepSchema(export=Export("codes", "frame")), False),
    ],
    ids=["ids", "rows out", "rows in", "frames"],
)
def test_tokens_whose_inputs_are_kept_may_be_computed_twice(
    schema: StepSchema, is_repeatable: bool
) -> None:
    assert schema.is_repeatable == is_repeatable


def test_values_of_no_column_and_of_another_width_are_refused() -> None:
    layout = ColumnLayout([Column("a", width=2)])
    with pytest.raises(ValueError, match="no column 'b'"):
        layout.pack(1, {"b": [1]})
    with pytest.raises(ValueError, match="broadcast"):
        layout.pack(1, {"a": [[1, 2, 3]]})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([{"name": "a", "width": 0}], "width 0"),
        ([{"name": "a", "fed_by": "b", "counts": True}], "fed or counts"),
        ([{"name": "a", "dtype": "int8"}], "int8"),
        ([{"name": "a"}, {"name": "a"}], "one name"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(columns: Any, message: str) -> None:
    with pytest.raises((ValueError, msgspec.ValidationError), match=message):
        msgspec.convert({"columns": columns}, StepSchema)
