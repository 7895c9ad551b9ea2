"""A YAML document whose every problem, also one found later, can be told by line and key."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

Place = tuple[str | int, ...]

STANDARD = "tag:yaml.org,2002:"
STRING, MERGE = f"{STANDARD}str", f"{STANDARD}merge"
# What JSON knows too.
ALLOWED = {f"{STANDARD}{kind}" for kind in ("str", "int", "float", "bool", "null", "seq", "map")}
MAX_NODES = 10_000  # with every alias written out


class YamlProblem(ValueError):
    """A problem of a document and its place: `line` counts from 1, `key` is dotted or empty."""

    def __init__(self, line: int, key: str, message: str) -> None:
        super().__init__(message)
        self.line = line
        self.key = key


@dataclass(frozen=True, slots=True)
class Document:
    """A document's value, and its nodes to find lines by."""

    value: Any
    root: yaml.Node

    def locate(self, place: Place) -> tuple[int, Place]:
        """The nearest line that is there for a place, and the part of the place it stands for.

        Parts that the document does not have are passed over: a validator names forms too.
        """
        node, line, written = self.root, self.root.start_mark.line + 1, list[str | int]()
        for part in place:
            found = _child(node, part)
            if found is not None:
                mark, node = found
                line = mark.line + 1
                written.append(part)
        return line, tuple(written)


def parse(text: str) -> Document:
    """Read one document; raises YamlProblem."""
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            raise YamlProblem(1, "", "the file is empty")
        _Check(loader).node(root, ())
        return Document(loader.construct_document(root), root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        number = 0 if mark is None else mark.line
        lines = text.splitlines()
        written = f": {lines[number].strip()}" if number < len(lines) else ""
        message = f"{error.problem or error.context}{written}"
        raise YamlProblem(number + 1, "", message) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"a character that YAML does not allow: {chr(int(error.character))!a}"
        raise YamlProblem(line, "", message) from error
    except RecursionError as error:
        raise YamlProblem(1, "", "the document is nested too deeply") from error


def dotted(place: Place) -> str:
    """A place as a key: `edges.0.from`."""
    return ".".join(str(part) for part in place)


def value_at(value: object, place: Place) -> object:
    """Returns what is at a place of mappings in each other; None where nothing is."""
    for part in place:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


class _Check:
    """Walks the nodes once; `size` of a node counts what its aliases stand for."""

    def __init__(self, loader: yaml.SafeLoader) -> None:
        self._loader = loader
        self._sizes: dict[int, int] = {}
        self._open: set[int] = set()

    def node(self, node: yaml.Node, place: Place) -> int:
        """Returns the node's size; raises YamlProblem."""
        if id(node) in self._open:
            raise _problem(node, place, "an alias stands inside what it names")
        if id(node) not in self._sizes:
            self._open.add(id(node))
            self._sizes[id(node)] = self._size(node, place)
            self._open.remove(id(node))
        return self._sizes[id(node)]

    def _size(self, node: yaml.Node, place: Place) -> int:
        if node.tag == f"{STANDARD}timestamp":
            raise _problem(node, place, f"{node.value!r} is read as a date: put it in quotes")
        if node.tag not in ALLOWED:
            raise _problem(node, place, f"the tag {node.tag!r} is not allowed")
        if isinstance(node, yaml.ScalarNode):
            self._scalar(node, place)
            return 1
        size = 1
        for child, below in self._children(node, place):
            size += self.node(child, below)
            if size > MAX_NODES:
                raise _problem(node, place, f"more than {MAX_NODES} values, aliases written out")
        return size

    def _children(self, node: yaml.Node, place: Place) -> Iterator[tuple[yaml.Node, Place]]:
        if isinstance(node, yaml.SequenceNode):
            yield from ((item, (*place, number)) for number, item in enumerate(node.value))
            return
        seen: set[str] = set()
        for key, value in node.value:
            below = (*place, key.value if isinstance(key, yaml.ScalarNode) else "?")
            if key.tag == MERGE:
                self._mergeable(value, below)
            elif not isinstance(key, yaml.ScalarNode):
                raise _problem(key, place, "a key must be a string, not a list or a mapping")
            elif key.tag != STRING:
                message = f"the key {key.value!r} is no string: put it in quotes"
                raise _problem(key, below, message)
            if below[-1] in seen:
                raise _problem(key, below, "the key is there twice")
            seen.add(str(below[-1]))
            yield value, below

    def _mergeable(self, value: yaml.Node, place: Place) -> None:
        merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for node in merged:
            if not isinstance(node, yaml.MappingNode):
                raise _problem(node, place, "only a mapping, or a list of mappings, can be merged")

    def _scalar(self, node: yaml.ScalarNode, place: Place) -> None:
        try:
            str(self._loader.construct_object(node)).encode()
        except (yaml.constructor.ConstructorError, ValueError) as error:
            kind = node.tag.rpartition(":")[2]
            raise _problem(node, place, f"{node.value[:40]!r} is no valid {kind}") from error


def _problem(node: yaml.Node, place: Place, message: str) -> YamlProblem:
    return YamlProblem(node.start_mark.line + 1, dotted(place), message)


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Mark, yaml.Node] | None:
    """The mark of a key or item, and its value; a merged key is where its own mapping has it."""
    if isinstance(node, yaml.SequenceNode):
        if isinstance(part, int) and part < len(node.value):
            return node.value[part].start_mark, node.value[part]
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    for key, value in node.value:
        if key.value == part:
            return key.start_mark, value
    for key, value in node.value:
        if key.tag == MERGE:
            for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                found = _child(merged, part)
                if found is not None:
                    return found
    return None
