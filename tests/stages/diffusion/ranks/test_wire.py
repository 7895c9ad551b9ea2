"""What goes from rank to rank comes out as it went in, or does not leave."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from diffusers.models.autoencoders.vae import DecoderOutput
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.utils import BaseOutput
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves
from transformers.modeling_outputs import BaseModelOutputWithPooling

from omnistage.stages.diffusion.merging.torch_modes import TorchModes
from omnistage.stages.diffusion.ranks.tiles import FromBefore, TileCall
from omnistage.stages.diffusion.ranks.wire import (
    DTYPES,
    Header,
    NotSendable,
    TreeRecord,
    as_bytes,
    from_bytes,
    pack,
    unpack,
)

HOST = torch.device("cpu")

INTEGERS = st.integers(-(2**63), 2**64 - 1)
PLAIN = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | st.text()
OF_TORCH = (
    st.sampled_from(list(DTYPES.values()))
    | st.sampled_from([HOST, torch.device("meta"), torch.device("cuda", 1)])
    | st.lists(st.integers(0, 2**40), max_size=4).map(torch.Size)
)


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(PLAIN, inner, max_size=4)
        | st.builds(TileCall, st.tuples(inner), st.dictionaries(st.text(), inner, max_size=3))
    )


def sent(value: Any) -> Any:
    header, tensors = pack(value)
    return unpack(header, from_bytes(header, as_bytes(header, tensors, HOST)))


def leaves_of(output: Any) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = tree_leaves(output.to_tuple())
    return leaves


def typed(value: Any) -> Any:
    """With the type of each part: True is not 1 here, and a torch.Size is no tuple."""
    if isinstance(value, TileCall):
        value = (value.args, value.kwargs)
    if isinstance(value, dict):
        return dict, [(typed(key), typed(one)) for key, one in value.items()]
    if isinstance(value, tuple | list):
        return type(value), [typed(one) for one in value]
    return type(value), value


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


@given(st.recursive(PLAIN | OF_TORCH, containers))
def test_a_tree_of_any_shape(value: Any) -> None:
    assert typed(sent(value)) == typed(value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -0.0, 1.0, 2**64 - 1, -(2**63)])
def test_numbers_at_the_edge(number: float) -> None:
    assert repr(sent(number)) == repr(number)


def test_modes_and_signs_of_our_own() -> None:
    modes = TorchModes.now()
    kwargs = {"feat_cache": FromBefore(), "first_chunk": True}
    assert sent([modes, TileCall((1,), kwargs)]) == [modes, TileCall((1,), kwargs)]


@pytest.mark.parametrize(
    "output",
    [
        Transformer2DModelOutput(sample=torch.arange(3)),
        DecoderOutput(sample=torch.arange(3), commit_loss=None),
        BaseModelOutputWithPooling(torch.arange(3), None, (torch.ones(1), torch.zeros(2))),
    ],
    ids=["denoiser", "decoder", "transformers"],
)
def test_what_models_give(output: Any) -> None:
    (made,) = sent((output,))
    assert type(made) is type(output)
    assert list(made) == list(output)
    assert torch.equal(made[0], output[0])
    assert all(map(torch.equal, leaves_of(made), leaves_of(output)))
    assert len(leaves_of(made)) == len(leaves_of(output))


@pytest.mark.parametrize("number", [np.float64(3.5), np.float32(0.5), np.int64(7), np.bool_(True)])
def test_a_number_of_numpys_is_pythons_there(number: Any) -> None:
    (made,) = sent([number])
    assert made == number
    assert type(made) is type(number.item())


def test_one_that_is_there_twice_is_sent_once() -> None:
    tensor = torch.ones(100)
    header, tensors = pack([tensor, {"again": tensor}])
    assert len(tensors) == 1
    assert header.num_bytes == 400
    first, second = sent([tensor, {"again": tensor}])
    assert first is second["again"]


def test_lists_and_dicts_that_are_the_same_are_the_same_there() -> None:
    """A decoder writes into lists that several calls of a tile share."""
    empty, other, entries = list[Any](), [0], {"count": [1]}
    within: list[Any] = [empty]
    within.append(within)
    made = sent(((empty, other), [other, empty, entries], {"e": entries}, within))
    assert made[0][0] is made[1][1] is made[3][0]
    assert made[0][1] is made[1][0]
    assert made[0][0] is not made[0][1]
    assert made[1][2] is made[2]["e"]
    assert made[3][1] is made[3]


# What is refused


class Odd:
    """No type that ranks know."""


@dataclass
class OddOutput:
    """A dataclass that is none of a model's results."""

    sample: int = 0


class Bare(BaseOutput):  # type: ignore[misc]
    """A result without fields."""


def output_of_a_function() -> Any:
    @dataclass
    class Local(BaseOutput):  # type: ignore[misc]
        sample: int = 0

    return Local()


HERE = __name__


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (lambda: None, "call: a function"),
        ((0, {"mask": [Odd()]}), f"call[1].mask[0]: a {HERE}.Odd"),
        (((), {"attention_kwargs": {3: {1, 2}}}), "call[1].attention_kwargs.3: a set"),
        ([TileCall((), {"x": (b"",)})], "call[0].kwargs.x[0]: a bytes"),
        (Transformer2DModelOutput(sample=[print]), "call.sample[0]: a builtin_function_or_method"),
        ({"sizes": {(1, 2): 0}}, "call.sizes: a dict whose keys are no plain values"),
        ([OddOutput()], f"call[0]: a {HERE}.OddOutput"),
        (Bare(), f"call: a {HERE}.Bare"),
        (output_of_a_function(), f"call: a {HERE}.output_of_a_function.<locals>.Local"),
        (SimpleNamespace(), "call: a types.SimpleNamespace"),
        (Odd, "call: a type"),
    ],
)
def test_what_cannot_be_sent_is_refused_with_its_place_before_anything_leaves(
    value: Any, says: str
) -> None:
    with pytest.raises(TypeError) as refused:
        pack(value, "call")
    assert str(refused.value) == f"{says} cannot be sent to another rank"


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, "\ud800"], ids=["large", "small", "half"])
def test_numbers_and_texts_that_messages_cannot_have_are_refused(value: Any) -> None:
    for place in (value, [value], {value: 0}):
        with pytest.raises(NotSendable, match=r"^call: a number or text of it \(.* cannot"):
            pack(place, "call")


@pytest.mark.parametrize(
    "name",
    [
        "subprocess.Popen",
        "subprocess.run",
        "nowhere.Thing",
        "builtins.eval",
        "eval",
        "",
        f"{HERE}.OddOutput",
        f"{HERE}.Bare",
        "diffusers.utils.outputs.BaseOutput",
        "torch.Tensor",
    ],
)
def test_a_message_makes_no_object_of_another_class(name: str) -> None:
    header = Header(msgspec.msgpack.encode(TreeRecord(name, ["true"])), ())
    with pytest.raises(NotSendable, match=f"^a {name} cannot be sent"):
        unpack(header, [])


def test_a_message_does_not_load_what_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a module, as that of Diffusers, loads others when it is asked for a name."""
    header = Header(msgspec.msgpack.encode(TreeRecord("diffusers.Lazy", ["true"])), ())
    asked: list[str] = []
    monkeypatch.setattr(type(__import__("diffusers")), "__getattr__", lambda _, n: asked.append(n))
    with pytest.raises(NotSendable, match=r"a diffusers\.Lazy cannot be sent"):
        unpack(header, [])
    assert asked == []


def test_a_message_of_another_form_is_refused() -> None:
    for tree in ([9, 0], [0, "first"], [3, [[3]]]):
        with pytest.raises(msgspec.ValidationError):
            unpack(Header(msgspec.msgpack.encode(tree), ()), [])
