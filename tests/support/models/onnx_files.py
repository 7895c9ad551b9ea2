"""Small ONNX models, written without a library: protobuf's fields one by one."""

from collections.abc import Sequence

FLOAT, INT = 1, 2  # of a tensor's elements, of an attribute


def varint(number: int) -> bytes:
    """An unsigned number."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def part(field: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(field << 3 | 2) + varint(len(data)) + data


def tensor(name: str, shape: Sequence[int]) -> bytes:
    """The name and the type of an input or output."""
    dims = b"".join(part(1, number(1, size)) for size in shape)
    kind = part(1, number(1, FLOAT) + part(2, dims))
    return part(1, name) + part(2, kind)


def node(kind: str, given: str, made: str, **attributes: int) -> bytes:
    listed = b"".join(
        part(5, part(1, name) + number(3, value) + number(20, INT))
        for name, value in attributes.items()
    )
    return part(1, given) + part(2, made) + part(4, kind) + listed


def model(shape: Sequence[int], *kinds: str) -> bytes:
    """A model of operators one behind the other, the first of which may reduce its input."""
    names = ["x", *(f"y{index}" for index in range(len(kinds)))]
    nodes = []
    for kind, given, made in zip(kinds, names, names[1:], strict=False):
        options = {"keepdims": 0} if kind.startswith("Reduce") else {}
        nodes.append(node(kind, given, made, **options))
    graph = b"".join(part(1, one) for one in nodes) + part(2, "g")
    graph += part(11, tensor("x", shape)) + part(12, tensor(names[-1], ()))
    opset = part(1, "") + number(2, 13)
    return number(1, 8) + part(7, graph) + part(8, opset)
