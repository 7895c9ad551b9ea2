"""`make snippets`: runs those of docs/clients.md with curl, Python and node, over fake stages.

curl and node must be there; npm fetches OpenAI's package for node unless `--modules` names a
folder that has it.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support.repository.snippets import SERVER, Section, check_json, sections, servers

LIMIT_S = 120


def run(words: list[str], folder: Path) -> str:
    """Returns what a program prints."""
    env = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, env=env
    )
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def check(section: Section, url: str, folder: Path) -> None:
    """Fails unless each language prints what is shown."""
    texts = {name: text.replace(SERVER, url) for name, text in section.blocks.items()}
    printed = run(["bash", "-c", texts["sh"].replace("curl ", "curl -sS ", 1)], folder)
    if "json" in section.blocks:
        check_json(printed, section.blocks["json"])
    (folder / "snippet.py").write_text(texts["python"])
    assert run([sys.executable, "snippet.py"], folder) == section.blocks["text"]
    (folder / "snippet.mjs").write_text(texts["js"])
    assert run(["node", "snippet.mjs"], folder) == section.blocks["text"]


def check_all(folder: Path) -> None:
    """Every section, in the order of the page."""
    with servers(folder) as urls:
        for section in sections():
            check(section, urls[section.title], folder)
            print(f"ok: {section.title}", flush=True)  # noqa: T201


def bring_modules(folder: Path, modules: Path | None) -> None:
    """OpenAI's package for node, where node finds it."""
    if modules is not None:
        (folder / "node_modules").symlink_to(modules.resolve())
    else:
        run(["npm", "install", "--no-save", "--prefix", ".", "openai"], folder)


def missing(programs: Mapping[str, bool]) -> list[str]:
    return [name for name, is_needed in programs.items() if is_needed and not shutil.which(name)]


def main() -> None:
    """Run all of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--modules", type=Path, help="a folder node_modules with openai in it")
    arguments = parser.parse_args()
    if gone := missing({"curl": True, "node": True, "npm": arguments.modules is None}):
        raise SystemExit(f"not there: {', '.join(gone)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        bring_modules(Path(name), arguments.modules)
        check_all(Path(name))


if __name__ == "__main__":
    main()
