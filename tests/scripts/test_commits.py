"""The subjects of commits that `make check` takes and refuses."""

import subprocess
from pathlib import Path

import commits
import pytest


@pytest.mark.parametrize(
    "subject",
    [
        "gateway: hold the queue place until the answer ends",
        "server/runtime: do not lose a cancel",
        "docs, tests: pass",
        "cli: process what was typed",
        "tests: bring one server a graph",
        f"a: b {'c' * 67}",
    ],
)
def test_a_room_and_an_imperative_are_taken(subject: str) -> None:
    assert commits.problem(subject) == ""


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        (f"a: b {'c' * 68}", "has 73 characters, 72 are allowed"),
        ("mend the queue", "must be such as"),
        ("Gateway: Hold the place", "must be such as"),
        ("gateway: hold the place.", "must be such as"),
        ("gateway:hold the place", "must be such as"),
        ("gateway: holds the place", "an imperative, not 'holds'"),
        ("gateway: mended the place", "an imperative, not 'mended'"),
        ("gateway: holding the place", "an imperative, not 'holding'"),
        ("", "must be such as"),
    ],
)
def test_other_subjects_are_refused_with_the_rule(subject: str, why: str) -> None:
    assert why in commits.problem(subject)


def repository(folder: Path, *subjects: str) -> None:
    """A repository whose branch has these commits after main."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]

    def git(*arguments: str) -> None:
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)

    git("init", "--initial-branch", "main")
    git("commit", "--allow-empty", "--message", "Before the rule.")
    git("checkout", "-b", "branch")
    for subject in subjects:
        git("commit", "--allow-empty", "--message", subject)


@pytest.mark.parametrize(
    ("subjects", "code", "says"),
    [
        ((), 0, ""),
        (("tests: add one",), 0, ""),
        (("tests: add one", "Something else"), 1, "commit 'Something else' must be such as"),
    ],
)
def test_the_commits_of_a_branch_are_checked_and_those_of_main_are_not(
    subjects: tuple[str, ...],
    code: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    repository(tmp_path, *subjects)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["commits.py"])
    assert commits.main() == code
    assert says in capsys.readouterr().out


def test_without_a_history_there_is_nothing_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.setattr("sys.argv", ["commits.py"])
    assert commits.main() == 0
