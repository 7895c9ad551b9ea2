"""Draws the rooms of the product and who imports whom, as Mermaid: `python scripts/rooms.py`.

Folders below server/ and stages/ are rooms, and the families one of them; the other root folders
are one room each. An arrow that follows from others is left out. docs/architecture.md has the
drawing.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "omnistage"
HOUSES = ("server", "stages")
FOLDERS = (*HOUSES, "stage_configs", "connectors", "bench", "demo")
ENGINES = ("vllm", "diffusion")  # these have a family.py, too
FAMILIES = "families"
Arrows = Mapping[str, set[str]]


def room_of(parts: tuple[str, ...]) -> str | None:
    """Return the room of a module by the parts of its path; None for one that is in no room."""
    house = parts[0]
    if house not in HOUSES:
        return house if house in FOLDERS else None
    if len(parts) < 2 or not (ROOT / house / parts[1]).is_dir():
        return None  # a file beside the rooms, which puts them together
    is_family = parts[1] not in ENGINES and (ROOT / house / parts[1] / "family.py").exists()
    return f"{house}/{FAMILIES if is_family else parts[1]}"


def imported(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield the parts of the path of each module of ours that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, *parts = name.split(".")
            if package == PACKAGE and parts:
                yield tuple(parts)


def arrows() -> Arrows:
    """Return, for each room, the rooms that its files import."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            room = room_of(path.relative_to(ROOT).with_suffix("").parts)
            if room is not None:
                found[room] |= {other for parts in imported(path) if (other := room_of(parts))}
    return {room: targets - {room} for room, targets in found.items()}


def behind(room: str, of: Arrows) -> set[str]:
    """Return the rooms that a room reaches over its arrows."""
    reached: set[str] = set()
    waiting = [room]
    while waiting:
        new = of.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def reduced(of: Arrows) -> dict[str, set[str]]:
    """Return the arrows that do not follow from others."""
    return {
        room: {
            target
            for target in targets
            if not any(target in behind(other, of) for other in targets - {target})
        }
        for room, targets in of.items()
    }


def node(room: str) -> str:
    """Return the name of a room in the drawing."""
    return room.replace("/", ".")


def draw(of: Arrows) -> str:
    """Return a flowchart with a box around the rooms of each house."""
    lines = ["flowchart TB"]
    for house in HOUSES:
        rooms = sorted(room for room in of if room.startswith(f"{house}/"))
        boxes = [f"        {node(room)}[{room.removeprefix(f'{house}/')}]" for room in rooms]
        lines += [f"    subgraph {house}", *boxes, "    end"]
    for room in sorted(of):
        lines += [f"    {node(room)} --> {node(target)}" for target in sorted(of[room])]
    return "\n".join(lines)


if __name__ == "__main__":
    print(draw(reduced(arrows())))
