"""Counts what a reader has to follow: `python scripts/house.py [--static] [--list]`.

It counts how often the code says `Any`, the import arrows inside the gateway, the classes with a
method `take` and, over fake stages, the files and names through which a spoken chat's body goes.
"""

import ast
import json
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("server", "stages", "stage_configs", "connectors", "bench")
SERVER, WIRE = ROOT / "server", ROOT / "connectors"
JSON = "application/json"
MARKER = "a text that is nowhere else"


def trees(*folders: str) -> Iterator[tuple[Path, ast.Module, int]]:
    """Each Python file with its syntax and its number of lines."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            yield path, ast.parse(text), text.count("\n")


def any_per_thousand_lines() -> float:
    """How often product code says `Any`, imports left out."""
    names = num_lines = 0
    for _, tree, lines in trees(*PRODUCT):
        names += sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))
        num_lines += lines
    return 1000 * names / num_lines


def classes_that_take() -> list[str]:
    """Classes with a method of this name."""
    return [
        node.name
        for _, tree, _ in trees(*PRODUCT)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(getattr(method, "name", "") == "take" for method in node.body)
    ]


def server_imports() -> set[tuple[str, str]]:
    """Returns which module of the gateway imports which other, below `server`."""
    modules = {
        path.relative_to(SERVER).with_suffix("").as_posix().replace("/", "."): tree
        for path, tree, _ in trees("server")
    }
    found = set()
    for name, tree in modules.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            for full in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                target = full.removeprefix("omnistage.server.")
                if target in modules and target != name:
                    found.add((name, target))
    return found


def room_of(module: str) -> str:
    """The folder that a module is in, or itself if it is in none."""
    return module.split(".")[0]


class BodyTrace:
    """Where a text goes in the gateway, from the first function that has it to the wire.

    A name counts once a function: the same thing under another name is one more to know.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.names: set[str] = set()
        self._files: list[str] = []

    def __call__(self, frame: FrameType, event: str, given: object) -> None:
        """Records a call or return, as a profile function."""
        file = frame.f_code.co_filename
        if not self.is_on or event not in ("call", "return"):
            return
        path = Path(file).resolve() if "server" in file or "connectors" in file else ROOT
        if path.is_relative_to(WIRE):
            self.is_on = not any(self._has(value) for value in list(frame.f_locals.values()))
        if not path.is_relative_to(SERVER):
            return
        having = {name for name, value in list(frame.f_locals.items()) if self._has(value)}
        self.names |= {f"{path.stem}:{frame.f_code.co_qualname}:{name}" for name in having}
        is_passing = having or (event == "return" and self._has(given))
        if is_passing and self._files[-1:] != [str(path)]:
            self._files.append(str(path))

    def _has(self, value: object) -> bool:
        try:
            return MARKER in repr(value)
        except Exception:  # noqa: BLE001  # an object that is only half made
            return False

    @property
    def path(self) -> list[str]:
        """The files in the order in which it comes to them."""
        return [Path(file).relative_to(SERVER).as_posix() for file in self._files]

    @property
    def files(self) -> set[str]:
        """The files that it passes."""
        return set(self._files)

    @property
    def num_returns(self) -> int:
        """How often it comes to a file that it has left already."""
        return len(self._files) - len(self.files)


def trace_spoken_chat() -> BodyTrace:
    """One streamed chat with text and sound over fake stages."""
    sys.path.insert(0, str(ROOT / "tests"))
    import httpx
    from support.gateway.serving import MODEL, OMNI, running_gateway

    trace = BodyTrace()
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": MARKER},
            {"role": "user", "content": "words"},
        ],
        "modalities": ["text", "audio"],
        "audio": {"voice": "ethan", "format": "pcm16"},
        "stream": True,
    }
    threading.setprofile(trace)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            running_gateway(Path(folder), OMNI) as gateway,
        ):
            gateway.wait_until_idle()
            url = f"{gateway.url}/v1/chat/completions"
            trace.is_on = True
            answer = httpx.post(url, content=json.dumps(body), headers={"Content-Type": JSON})
            trace.is_on = False
            answer.raise_for_status()
    finally:
        threading.setprofile(None)
    return trace


def main() -> None:
    """Print one line a figure."""
    arrows = server_imports()
    between = {(room_of(a), room_of(b)) for a, b in arrows if room_of(a) != room_of(b)}
    rooms = {room for arrow in between for room in arrow}
    files = {file for arrow in arrows for file in arrow}
    figures: dict[str, object] = {
        "`Any` per 1,000 lines": f"{any_per_thousand_lines():.1f}",
        "import arrows between files of the gateway": f"{len(arrows)} ({len(files)} files)",
        "import arrows between its rooms": f"{len(between)} ({len(rooms)} rooms)",
        "classes with a method `take`": len(classes_that_take()),
    }
    if "--static" not in sys.argv:
        trace = trace_spoken_chat()
        figures |= {
            "files that a spoken chat's body passes": len(trace.files),
            "returns to a file already left": trace.num_returns,
            "names under which it goes": len(trace.names),
        }
        if "--list" in sys.argv:
            print("\n".join(trace.path))
    for about, figure in figures.items():
        print(f"{about:45} {figure}")
    if "--list" in sys.argv:
        sources: dict[str, set[str]] = defaultdict(set)
        for source, target in between:
            sources[source].add(target)
        for source in sorted(sources):
            print(f"{source} -> {', '.join(sorted(sources[source]))}")


if __name__ == "__main__":
    main()
