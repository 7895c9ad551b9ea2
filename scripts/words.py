"""Reports where docs and docstrings break the rules of language.

python scripts/words.py [--check] [PAGE ...]

A sentence has at most 30 words; it does not open with What, Which, Whether, Of, As, Those or Its;
its verbs are the field's ("reports", not "tells"). Code and the addresses of links are not read.
Prints a line per page, most findings first. With --check prints the sentences instead, and the
docstrings of the product with such an opening and the public class names with several meanings, and
ends with 1 if there are any: `make check` runs it.
"""

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
MAX_WORDS = 30
OPENINGS = re.compile(r"^(What|Which|Whether|Of|As|Those|Its)\b")
VERBS = re.compile(
    r"\b(tell|tells|told|say|says|said|shown|ask|asks|asked|hear|hears|heard|obey|obeys|struck|dear)\b",
    re.IGNORECASE,
)
DOCSTRINGS = re.compile(rf"(?:{OPENINGS.pattern[1:]}|See\b)")
RUNNING = ("server", "stages", "stage_configs", "connectors", "bench", "demo")
PRODUCT = (*RUNNING, "scripts", "tools")
# Each family has such a class of its own.
SHARED_NAMES = frozenset(
    {
        *("Thinker", "ThinkerProcessor", "Talker", "TalkerBackbone", "TalkerPrompt", "SpeechIds"),
        *("Code2WavStage", "StreamingVocoder"),
    }
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
KINDS = ("long", "opening", "verb")
LOWER = "vLLM|vllm|code2wav|token2wav"  # names that begin sentences as they are
SENTENCE = re.compile(rf"(?<=[.!?]) +(?=[A-Z*]|{LOWER})|: (?=[A-Z])")


def sentences(page: str) -> Iterator[str]:
    """Yield a page's sentences: of paragraphs, list items and cells of tables."""
    text = re.sub(r"^(```|~~~).*?^\1", "", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"^    .*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`(?:, `[^`]*`)*", "CODE", text)  # a list of names is no sentence
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^\|[-| :]+\|$", "", text, flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n|\n(?=[|#]|\s*[-*] |\s*\d+\. )|(?<=\S) \| ", text):
        words = " ".join(block.strip("|#-* \n").split())
        yield from (one for one in SENTENCE.split(words) if one)


def faults(sentence: str) -> Counter[str]:
    """Count what is wrong with a sentence: its length, its opening, verbs of another field."""
    return Counter(
        long=int(len(sentence.split()) > MAX_WORDS),
        opening=int(bool(OPENINGS.match(sentence))),
        verb=len(VERBS.findall(sentence)),
    )


def findings(page: str) -> Counter[str]:
    """Count a page's long sentences, wrong openings and verbs of another field."""
    return sum(map(faults, sentences(page)), Counter(dict.fromkeys(KINDS, 0)))


def broken(page: str) -> Iterator[str]:
    """Yield the sentences that break a rule, each with the rules."""
    for sentence in sentences(page):
        found = [kind for kind, count in faults(sentence).items() if count]
        if found:
            yield f"{', '.join(found)}: {sentence}"


def wrong_docstrings(code: str) -> Iterator[str]:
    """Yield the docstrings of a file that do not open with a verb or a noun, each with its line."""
    for node in ast.walk(ast.parse(code)):
        text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        if text and DOCSTRINGS.match(text):
            yield f"{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"


def shared_names(files: Iterable[Path]) -> Iterator[str]:
    """Yield the public class names that several files define, each with the files."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path))
    for name, found in places.items():
        if len(found) > 1 and name not in SHARED_NAMES:
            yield f"class {name} has several meanings: {', '.join(found)}"


def product() -> Iterator[Path]:
    """Yield the product's files of Python."""
    for folder in PRODUCT:
        yield from sorted((ROOT / folder).rglob("*.py"))


def main() -> None:
    """Print the counts of each page and their sums, or each sentence that breaks a rule."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("pages", nargs="*", type=Path)
    options = parser.parse_args()
    paths = options.pages or [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").glob("*.md"))]
    pages = {path: path.read_text(encoding="utf-8") for path in paths}
    if options.check:
        lines = [f"{path.name}: {line}" for path, text in pages.items() for line in broken(text)]
        files = [] if options.pages else [*product()]
        for path in files:
            found = wrong_docstrings(path.read_text(encoding="utf-8"))
            lines += [f"{path.relative_to(ROOT)}:{line}" for line in found]
        lines += shared_names(path for path in files if path.relative_to(ROOT).parts[0] in RUNNING)
        sys.exit("\n".join(lines) or None)
    counts = {path: findings(text) for path, text in pages.items()}
    for path in sorted(counts, key=lambda one: -counts[one].total()):
        print(f"{path.name:28}", *(f"{kind} {counts[path][kind]:4}" for kind in KINDS))
    total = sum(counts.values(), Counter[str]())
    print(f"{'all':28}", *(f"{kind} {total[kind]:4}" for kind in KINDS))


if __name__ == "__main__":
    main()
