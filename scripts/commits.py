"""Checks the subjects of a branch's commits: `room: imperative`, at most 72 characters.

python scripts/commits.py [BASE]

Reads the commits since BASE; unless given, since the branch left origin/main or main. There is
nothing to check on main itself, or without a history. Prints the subjects that break a rule, and
ends with 1 if there are any: `make check` runs it.
"""

import re
import subprocess
import sys

MAX_LENGTH = 72
BASES = ("origin/main", "main")
FORM = re.compile(r"[\w./-]+(?:, [\w./-]+)*: (?P<verb>[a-z][\w'-]*)(?: .*[^.])?")
# Endings of verbs that are no imperative, and imperatives that end so.
OTHER_MOODS = re.compile(r"(?:ed|ing|[^s]s)$")
IMPERATIVES = frozenset({"bring", "embed", "feed", "focus", "need", "seed", "speed", "string"})


def git(*arguments: str) -> str | None:
    """Returns what git prints, None if it fails."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def subjects(base: str) -> list[str]:
    """Returns the subjects of the commits since the branch left `base`, merges left out."""
    fork = git("merge-base", base, "HEAD")
    listed = None if fork is None else git("log", "--no-merges", "--format=%s", f"{fork}..HEAD")
    return listed.splitlines() if listed else []


def problem(subject: str) -> str:
    """Returns what is wrong with a subject; empty if nothing is."""
    if len(subject) > MAX_LENGTH:
        return f"has {len(subject)} characters, {MAX_LENGTH} are allowed"
    found = FORM.fullmatch(subject)
    if found is None:
        return "must be such as `gateway: hold the queue place until the answer ends`"
    verb = found["verb"]
    if OTHER_MOODS.search(verb) and verb not in IMPERATIVES:
        return f"must begin with an imperative, not {verb!r}"
    return ""


def main() -> int:
    """Returns the exit code of the check."""
    known = [base for base in BASES if git("rev-parse", "--verify", "--quiet", base) is not None]
    bases = sys.argv[1:] or known[:1]
    wrong = [(one, why) for base in bases for one in subjects(base) if (why := problem(one))]
    for subject, why in wrong:
        print(f"commit {subject!r} {why}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
