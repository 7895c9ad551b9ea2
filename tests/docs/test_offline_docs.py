"""The examples of docs/offline.md print what it shows; its tables are those of the code."""

import contextlib
import io
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.gateway.offline import ObedientStages, fake_async_omni, fake_omni
from support.gateway.serving import IMAGES, OMNI, SYNTH, making_videos

import omnistage
from omnistage import OmniError
from omnistage.server import offline
from omnistage.server.offline.options import OmniOptions
from omnistage.server.options.declared import declared
from omnistage.server.options.gateway import RunKeywords, RunOptions

TEXT = (Path(__file__).parents[2] / "docs" / "offline.md").read_text()
GRAPHS = {"Image": IMAGES, "Wan": making_videos("studio"), "stable-audio": SYNTH}
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.DOTALL)


def cells(title: str) -> list[str]:
    """The first cell of each row of the table below a heading."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    return [line.split("|")[1] for line in section.splitlines() if line.startswith("|")][2:]


def over_fake_stages(make: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """What stands for a class: the same object over fake stages of the graph that fits a model."""

    def made(model: str, **options: Any) -> Any:
        place = folder / str(len(list(folder.iterdir())))
        place.mkdir()
        graph = next((one for part, one in GRAPHS.items() if part in model), OMNI)
        return make(ObedientStages(place), {**graph, "model": model})

    return made


def test_each_example_shows_what_it_prints() -> None:
    assert len(EXAMPLES) == TEXT.count("```python")
    assert len(EXAMPLES) >= 10


def test_the_examples_print_what_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other: later ones use what earlier ones have made."""
    (tmp_path / "stages").mkdir()
    monkeypatch.setattr(offline, "Omni", over_fake_stages(fake_omni, tmp_path / "stages"))
    made = over_fake_stages(fake_async_omni, tmp_path / "stages")
    monkeypatch.setattr(offline, "AsyncOmni", made)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    names = types.ModuleType("example").__dict__
    for code, printed in EXAMPLES:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(code, names)
        assert output.getvalue() == printed, code
    assert (tmp_path / "hello.wav").read_bytes().startswith(b"RIFF")
    assert (tmp_path / "night.png").is_file()
    assert b"ftyp" in (tmp_path / "boat.mp4").read_bytes()


def test_the_table_of_options_has_each() -> None:
    named = {name for cell in cells("Start and end")[1:] for name in re.findall(r"`(\w+)`", cell)}
    assert named == set(OmniOptions.__annotations__)


def test_keywords_are_those_of_the_options_that_are_declared() -> None:
    assert {one.keyword for one in declared(RunOptions)} == RunKeywords.__annotations__.keys()


def test_the_table_of_errors_has_each() -> None:
    named = {name for cell in cells("Errors") for name in re.findall(r"`(\w+)`", cell)}
    ours = {getattr(omnistage, name) for name in omnistage.__all__}
    errors = {one.__name__ for one in ours if isinstance(one, type) and issubclass(one, OmniError)}
    assert named == errors - {"OmniError"}


def test_the_codes_that_only_python_has_are_named() -> None:
    files = Path(offline.__file__).parent.glob("*.py")
    codes = {code for path in files for code in re.findall(r'code="(\w+)"', path.read_text())}
    (sentence,) = re.findall(r"Python alone has the codes ([^.]*)\.", TEXT)
    assert set(re.findall(r"`([a-z_]+)`", sentence)) == codes
