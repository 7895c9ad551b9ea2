"""Changes the pages of docs/ for mkdocs: links that leave the folder, and lists.

On GitHub a page may link to any file of the repository; the site has the pages of docs/ alone. So
a link to another file becomes that file's name. GitHub also begins a list right below a line of
text, where the site's Markdown wants an empty line between.
"""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[([^]]+)\]\(((?:\.\./)+[^)\s]+)\)")
FENCE = re.compile(r"^(?:```|~~~)")
ITEM = re.compile(r"^(?:[-*]|\d+\.) ")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Changes a page before mkdocs reads it."""
    folder = Path(page.file.abs_src_path).parent
    return "\n".join(with_lists_apart(without_links_out(markdown, folder).split("\n")))


def without_links_out(markdown: str, folder: Path) -> str:
    """Links to files of the repository outside of docs/, as their names; they must exist."""

    def name_of(link: re.Match[str]) -> str:
        text, target = link.groups()
        path = (folder / target.partition("#")[0]).resolve()
        if path.is_relative_to(ROOT / "docs"):
            return link[0]
        if not path.exists():
            raise FileNotFoundError(f"{folder}: {target}")
        name = path.relative_to(ROOT).as_posix()
        return f"`{name}`" if text.strip("`") in (name, path.name) else f"{text} (`{name}`)"

    return LINK.sub(name_of, markdown)


def with_lists_apart(lines: list[str]) -> list[str]:
    """An empty line before each list that has none."""
    found: list[str] = []
    is_code = False
    for line in lines:
        is_code ^= bool(FENCE.match(line))
        before = found[-1] if found else ""
        is_text = bool(before.strip()) and not ITEM.match(before) and not before.startswith(" ")
        if not is_code and ITEM.match(line) and is_text:
            found.append("")
        found.append(line)
    return found
