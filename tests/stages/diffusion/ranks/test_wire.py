"""What goes from rank to rank comes out as it went in."""

from typing import Any

import pytest
import torch

from omnistage.stages.diffusion.ranks.wire import as_bytes, from_bytes, pack, unpack

HOST = torch.device("cpu")


def sent(value: Any) -> Any:
    header, tensors = pack(value)
    return unpack(header, from_bytes(header, as_bytes(header, tensors, HOST)))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(7, dtype=torch.float32),
        torch.tensor(0.25, dtype=torch.bfloat16),
        torch.tensor([True, False, True]),
        torch.zeros(0, 3),
        torch.arange(12).reshape(3, 4).T,
        torch.randn(3, dtype=torch.complex64),
        torch.randn(2, 3, requires_grad=True),
        torch.tensor(0.5).expand(1),
    ],
    ids=["floats", "number", "bools", "empty", "transposed", "complex", "grad", "expanded"],
)
def test_a_tensor_of_any_type_and_shape(tensor: torch.Tensor) -> None:
    # the first one's length is no multiple of any type's size
    before, made = sent([torch.ones(3, dtype=torch.uint8), tensor])
    assert before.tolist() == [1, 1, 1]
    assert (made.dtype, made.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(made, tensor)


def test_tensors_inside_of_anything() -> None:
    value = {"shapes": [[(1, 8, 8)]], "more": {"mask": torch.ones(2), "dtype": torch.float16}}
    made = sent((value, "text", None, 3))
    assert made[1:] == ("text", None, 3)
    assert made[0]["shapes"] == value["shapes"]
    assert made[0]["more"]["dtype"] is torch.float16
    assert made[0]["more"]["mask"].tolist() == [1, 1]


def test_one_that_is_there_twice_is_sent_once() -> None:
    tensor = torch.ones(100)
    header, tensors = pack([tensor, {"again": tensor}])
    assert len(tensors) == 1
    assert header.num_bytes == 400
    first, second = sent([tensor, {"again": tensor}])
    assert first is second["again"]


def test_what_cannot_be_sent_is_refused_before_anything_leaves() -> None:
    with pytest.raises(Exception, match="pickle"):
        pack(lambda: None)
