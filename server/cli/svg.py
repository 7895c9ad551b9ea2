"""A graph as a drawing in SVG: a box a stage, in columns from the entry to the last."""

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from omnistage.stage_configs.edge_payloads import named
from omnistage.stage_configs.graph import Edge, StageGraph, StageSpec

WIDTH, GAP, MARGIN = 250, 150, 24  # of a box, between columns, around all
HEAD, LINE, PADDING = 62, 15, 12  # of a box: its titles, a line of its arguments, around them
SPACE, PILL = 34, 26  # between boxes of a column, the height of an output
FONT = "font-family:system-ui,sans-serif"
MONO = "font-family:ui-monospace,monospace"
INK, DIM, BLUE, GREEN = "#1f2937", "#6b7280", "#2563eb", "#047857"
SECRET = frozenset({"hf_token"})  # arguments that are not shown
MAX_CHARACTERS, MAX_LINES = 34, 12  # of a box's arguments


@dataclass(frozen=True, slots=True)
class Box:
    """A stage, with the place of its upper left corner."""

    stage: StageSpec
    lines: list[str]
    outputs: list[str] = field(default_factory=list)
    x: float = 0
    y: float = 0

    @property
    def height(self) -> float:
        """Of the box alone; the names of its outputs are below it."""
        return HEAD + LINE * len(self.lines) + PADDING

    @property
    def room(self) -> float:
        """With its outputs."""
        return self.height + (SPACE + PILL if self.outputs else 0)

    @property
    def middle(self) -> float:
        """Where edges come and go."""
        return self.y + HEAD / 2


def svg(graph: StageGraph) -> str:
    """The drawing, as a document of its own."""
    boxes = _placed(graph)
    width = max(box.x for box in boxes.values()) + WIDTH + MARGIN
    height = max(box.y + box.room for box in boxes.values()) + MARGIN
    size = {"width": f"{width:g}", "height": f"{height:g}", "viewBox": f"0 0 {width:g} {height:g}"}
    root = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", "role": "img", **size})
    SubElement(root, "title").text = graph.served_name or "graph"
    _arrow_heads(root)
    SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": "#ffffff"})
    title = graph.served_name or "a graph without a model"
    _text(root, MARGIN, MARGIN + 8, title, size=15, weight="bold")
    for box in boxes.values():
        if not graph.incoming(box.stage.name):
            _line(root, (MARGIN, box.middle), (box.x, box.middle), INK)
            _text(root, MARGIN, box.middle - 8, "requests", fill=DIM)
    for edge in graph.edges:
        carried = named(graph.carried(edge))
        _edge(root, edge, carried, boxes[edge.source], boxes[edge.target])
    for box in boxes.values():
        _box(root, box)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode")


def argument_lines(stage: StageSpec) -> list[str]:
    """What the graph says of a stage beside its kind and its GPUs, a line each."""
    said = {name: "…" if name in SECRET else value for name, value in stage.engine.items()}
    if counted := replica_count(stage):
        said = {"replicas": counted.removesuffix(" replicas"), **said}
    said |= {f"options.{name}": value for name, value in stage.options.items()}
    said |= {f"default {name}": one for name, one in stage.default_sampling_params.given.items()}
    return [f"{name}: {_shown(value)}" for name, value in said.items()]


def gpu_names(stage: StageSpec) -> str:
    """The GPUs of a stage, in words; those of each replica where they differ."""
    if stage.num_gpus:
        return f"{stage.num_gpus:g} of a node"
    lists = dict.fromkeys(replica.gpus for replica in stage.all_replicas)
    return " | ".join(", ".join(map(str, gpus)) for gpus in lists) or "not set"


def replica_count(stage: StageSpec) -> str:
    """How many replicas are started, and how many may run; empty for a stage that has one."""
    if stage.most_replicas == 1:
        return ""
    most = f" of at most {stage.most_replicas}"
    return f"{stage.num_replicas}{most if stage.max_replicas else ''} replicas"


def chunk_sizes(edge: Edge) -> str:
    """How much of a request goes along an edge at once; the last size repeats."""
    sizes = edge.chunk_sizes
    while sizes[1:] and sizes[-1] == sizes[-2]:
        sizes.pop()
    return " ".join([*map(str, sizes), "…"]) if sizes else "whole"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _placed(graph: StageGraph) -> dict[str, Box]:
    """A column for each number of edges that lie before a stage; boxes one below the other."""
    column: dict[str, int] = {}
    bottom: dict[int, float] = {}
    boxes: dict[str, Box] = {}
    for name in graph.order:
        place = max((column[edge.source] + 1 for edge in graph.incoming(name)), default=0)
        made = [output for output, maker in graph.outputs.items() if maker == name]
        y = bottom.get(place, MARGIN + SPACE)
        x = MARGIN + GAP / 2 + place * (WIDTH + GAP)
        box = Box(graph.stages[name], _lines(graph.stages[name]), made, x, y)
        column[name], bottom[place], boxes[name] = place, y + box.room + SPACE, box
    return boxes


def _lines(stage: StageSpec) -> list[str]:
    lines = [textwrap.shorten(line, MAX_CHARACTERS, placeholder=" …") for line in _cut(stage)]
    more = len(lines) - MAX_LINES
    return lines if more <= 0 else [*lines[:MAX_LINES], f"… and {more} more"]


def _cut(stage: StageSpec) -> Iterator[str]:
    """A line without spaces cannot be shortened by words."""
    for line in argument_lines(stage):
        name, _, value = line.partition(": ")
        room = MAX_CHARACTERS - len(name) - 2
        yield line if len(value) <= room else f"{name}: {value[: max(room - 2, 1)]}…"


def _box(root: Element, box: Box) -> None:
    group = SubElement(root, "g", {"transform": f"translate({box.x:g} {box.y:g})"})
    shape = {"width": f"{WIDTH}", "height": f"{box.height:g}", "rx": "8", "fill": "#f3f6fc"}
    SubElement(group, "rect", {**shape, "stroke": BLUE, "stroke-width": "1.5"})
    _text(group, PADDING, 22, box.stage.name, size=14, weight="bold")
    _text(group, PADDING, 38, box.stage.kind, fill=BLUE)
    _text(group, PADDING, 54, f"GPUs: {gpu_names(box.stage)}", fill=DIM)
    for number, line in enumerate(box.lines):
        _text(group, PADDING, HEAD + LINE * number + 12, line, size=10.5, font=MONO)
    if box.outputs:
        middle, below = WIDTH / 2, box.height + SPACE
        _line(group, (middle, box.height), (middle, below), GREEN)
        label = ", ".join(box.outputs)
        wide = 8 * len(label) + 28
        pill = {"x": f"{middle - wide / 2:g}", "y": f"{below:g}", "width": f"{wide}"}
        look = {"height": f"{PILL}", "rx": f"{PILL / 2:g}", "fill": "#ecfdf5", "stroke": GREEN}
        SubElement(group, "rect", {**pill, **look})
        _text(group, middle, below + 17, label, fill=GREEN, anchor="middle", weight="bold")


def _edge(root: Element, edge: Edge, carried: str, source: Box, target: Box) -> None:
    """An arrow with what it carries and the sizes of its chunks, from one box to another."""
    begin, end = (source.x + WIDTH, source.middle), (target.x, target.middle)
    _line(root, begin, end, BLUE)
    x, y = (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2
    _text(root, x, y - 8, carried, fill=DIM, anchor="middle")
    _text(root, x, y + 16, chunk_sizes(edge), size=10.5, fill=DIM, anchor="middle")


def _line(root: Element, begin: tuple[float, float], end: tuple[float, float], color: str) -> None:
    """A curve that leaves and comes level; a straight one between points that are."""
    (x, y), (to_x, to_y) = begin, end
    bend = (to_x - x) / 2
    path = f"M{x:g} {y:g} C{x + bend:g} {y:g} {to_x - bend:g} {to_y:g} {to_x:g} {to_y:g}"
    look = {"fill": "none", "stroke": color, "stroke-width": "1.5"}
    SubElement(root, "path", {"d": path, **look, "marker-end": f"url(#{color[1:]})"})


def _arrow_heads(root: Element) -> None:
    definitions = SubElement(root, "defs")
    for color in (INK, BLUE, GREEN):
        place = {"viewBox": "0 0 10 10", "refX": "9", "refY": "5", "orient": "auto"}
        size = {"id": color[1:], "markerWidth": "8", "markerHeight": "8"}
        head = SubElement(definitions, "marker", {**size, **place})
        SubElement(head, "path", {"d": "M0 0 L10 5 L0 10 z", "fill": color})


def _text(
    root: Element,
    x: float,
    y: float,
    text: str,
    *,
    size: float = 12,
    fill: str = INK,
    weight: str = "normal",
    anchor: str = "start",
    font: str = FONT,
) -> None:
    look = {"font-size": f"{size:g}", "font-weight": weight, "fill": fill, "text-anchor": anchor}
    SubElement(root, "text", {"x": f"{x:g}", "y": f"{y:g}", "style": font, **look}).text = text
