"""Malformed graph files: each is one error with its file, line and key, also from the shell."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from omnistage.server import cli
from omnistage.stage_configs.graph_file import GraphError, load_graph

GOOD = b"""\
model: some/model
stages:
  thinker:
    kind: qwen3_omni.thinker
    gpus: [0]
    engine: {max_model_len: 1024, max_num_seqs: 4}
  talker:
    kind: qwen3_omni.talker
  code2wav:
    kind: qwen3_omni.code2wav
edges:
  - {from: thinker, to: talker}
  - from: talker
    to: code2wav
    connector: {name: shm, arena_mb: 8}
    chunk: {first: 2, ramp: [4, 8], steady: 25}
outputs: {text: thinker, audio: code2wav}
"""


@dataclass(frozen=True)
class Mistake:
    """A good file with `old` replaced by `new`, or `new` alone; `says` follows the file's name."""

    name: str
    old: bytes
    new: bytes
    says: str

    @property
    def data(self) -> bytes:
        assert self.old in GOOD
        return GOOD.replace(self.old, self.new, 1) if self.old else self.new


ALIASES = b"a: &a [x, x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + n, 98 + n, b", ".join([b"*%c" % (97 + n)] * 10)) for n in range(9)
)

MISTAKES = [
    Mistake("typo", b"gpus:", b"gpsu:", "5: stages.thinker.gpsu: unknown key; did you mean 'gpus'"),
    Mistake(
        "unknown kind",
        b"qwen3_omni.talker",
        b"qwen3_omni.taler",
        "8: stages.talker.kind: unknown kind 'qwen3_omni.taler'; did you mean 'qwen3_omni.talker'?",
    ),
    Mistake(
        "edge to an unknown stage",
        b"to: code2wav",
        b"to: code2wave",
        "14: edges.1.to: no stage 'code2wave'; did you mean 'code2wav'?",
    ),
    Mistake(
        "cycle",
        b"to: code2wav",
        b"to: thinker",
        "11: edges: the edges make a cycle through talker, thinker",
    ),
    Mistake(
        "two stages of one name",
        b"  talker:\n",
        b"  thinker:\n",
        "7: stages.thinker: the key is there twice",
    ),
    Mistake(
        "key twice",
        b"    gpus: [0]\n",
        b"    gpus: [0]\n    gpus: [1]\n",
        "6: stages.thinker.gpus: the key is there twice",
    ),
    Mistake("tab", b"  talker:\n", b"\ttalker:\n", "7: found character '\\t' that cannot start"),
    Mistake(
        "bad type", b"gpus: [0]", b"gpus: zero", "5: stages.thinker.gpus: must be a list, not 'zero"
    ),
    Mistake(
        "negative number of sequences",
        b"seqs: 4",
        b"seqs: -4",
        "6: stages.thinker.engine.max_num_seqs: -4 is no size",
    ),
    Mistake(
        "negative length",
        b"len: 1024",
        b"len: -1024",
        "6: stages.thinker.engine.max_model_len: -1024 is no length",
    ),
    Mistake(
        "negative chunk",
        b"steady: 25",
        b"steady: -25",
        "16: edges.1.chunk.steady: must be greater than or equal to 1, not -25",
    ),
    Mistake(
        "negative arena",
        b"arena_mb: 8",
        b"arena_mb: -8",
        "15: edges.1.connector.arena_mb: must be greater than or equal to 1, not -8",
    ),
    Mistake(
        "an arena in words",
        b"arena_mb: 8",
        b"arena_mb: 8 MiB",
        "15: edges.1.connector.arena_mb: must be a valid integer, not '8 MiB'",
    ),
    Mistake("model of nothing", b"some/model", b"", "1: model: must be a string, not nothing"),
    Mistake(
        "two entries",
        b"  - {from: thinker, to: talker}\n",
        b"",
        "11: edges: stage 'talker' needs an edge that brings it rows and tokens",
    ),
    Mistake(
        "chunk nonsense",
        b"{first: 2, ramp: [4, 8], steady: 25}",
        b"sometimes",
        "16: edges.1.chunk: must be a mapping or 'whole', not 'sometimes'",
    ),
    Mistake(
        "unknown connector",
        b"name: shm",
        b"name: shn",
        "15: edges.1.connector.name: unknown connector 'shn'; did you mean 'shm'?",
    ),
    Mistake(
        "connector inside one process",
        b"{name: shm, arena_mb: 8}",
        b"{name: inprocess, arena_mb: 8}",
        "15: edges.1.connector.name: connector 'inprocess' works inside one process only; "
        "allowed: shm",
    ),
    Mistake(
        "connector inside one process by its name alone",
        b"{from: thinker, to: talker}",
        b"{from: thinker, to: talker, connector: inprocess}",
        "12: edges.0.connector: connector 'inprocess' works inside one process only; allowed: shm",
    ),
    Mistake(
        "unknown option of a connector",
        b"arena_mb",
        b"arena",
        "15: edges.1.connector.arena: connector shm has no option 'arena'; it has arena_mb, credit",
    ),
    Mistake(
        "negative GPU",
        b"gpus: [0]",
        b"gpus: [0, -1]",
        "5: stages.thinker.gpus.1: must be greater than or equal to 0, not -1",
    ),
    Mistake("GPU twice", b"gpus: [0]", b"gpus: [0, 0]", "5: stages.thinker.gpus.1: GPU 0 is there"),
    Mistake(
        "yes as a GPU", b"gpus: [0]", b"gpus: [yes]", "5: stages.thinker.gpus.0: must be an in"
    ),
    Mistake(
        "merge of a list",
        b"    gpus: [0]\n",
        b"    <<: [1, 2]\n",
        "5: stages.thinker.<<: only a mapping, or a list of mappings, can be merged",
    ),
    Mistake("empty file", b"", b"", "1: the file is empty"),
    Mistake("only a comment", b"", b"# to do\n", "1: the file is empty"),
    Mistake(
        "list at the top", b"", b"- a\n- b\n", "1: a graph is a mapping with stages, edges and"
    ),
    Mistake("anchor to nothing", b"[0]", b"*none", "5: found undefined alias 'none': gpus: *none"),
    Mistake(
        "alias inside itself",
        b"max_model_len: 1024",
        b"x: &x [*x]",
        "6: stages.thinker.engine.x.0: an alias stands inside what it names",
    ),
    Mistake("aliases that multiply", b"", ALIASES, "4: d: more than 10000 values"),
    Mistake("nested too deeply", b"", b"[" * 5000, "1: the document is nested too deeply"),
    Mistake(
        "Python object",
        b"some/model",
        b"!!python/object:os.system {}",
        "1: model: the tag 'tag:yaml.org,2002:python/object:os.system' is not allowed",
    ),
    Mistake(
        "number as a key",
        b"  talker:\n",
        b"  7:\n",
        "7: stages.7: the key '7' is no string: put it in quotes",
    ),
    Mistake(
        "truth as a key", b"  talker:\n", b"  on:\n", "7: stages.on: the key 'on' is no string"
    ),
    Mistake(
        "list as a key", b"outputs:", b"[a, b]:", "17: a key must be a string, not a list or a"
    ),
    Mistake("binary file", b"", b"\x7fELF\x01\n\x00\xff\xfe", "2: the file is no text in UTF-8"),
    Mistake(
        "NUL", b"some/model", b"some\0model", "1: a character that YAML does not allow: '\\x00"
    ),
    Mistake(
        "stage under another name",
        b"    kind: qwen3_omni.talker\n",
        b"    kind: qwen3_omni.talker\n    name: singer\n",
        "9: stages.talker.name: a stage's name is its key",
    ),
    Mistake(
        "key of another place",
        b"outputs:",
        b"deadlines: {strt_s: 1}\noutputs:",
        "17: deadlines.strt_s: unknown key; did you mean 'start_s'?",
    ),
    Mistake(
        "endless deadline",
        b"outputs:",
        b"deadlines: {start_s: .inf}\noutputs:",
        "17: deadlines.start_s: must be a finite number, not inf",
    ),
]


@pytest.fixture
def file(tmp_path: Path, mistake: Mistake) -> Path:
    path = tmp_path / "graph.yaml"
    path.write_bytes(mistake.data)
    return path


named = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)


@named
def test_a_mistake_names_file_line_and_key(file: Path, mistake: Mistake) -> None:
    with pytest.raises(GraphError) as caught:
        load_graph(file)
    assert str(caught.value).startswith(f"{file}:{mistake.says}")


@named
def test_check_prints_one_error_and_exits_1(file: Path, mistake: Mistake) -> None:
    result = CliRunner().invoke(cli.app, ["check", str(file)])
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    (line,) = result.output.splitlines()
    assert line.startswith(f"error: {file}:{mistake.says}")


def test_the_good_file_is_good(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace(b"\n", b"\r\n"))
    assert load_graph(path).order == ["thinker", "talker", "code2wav"]


def test_a_mistake_in_a_merged_mapping_is_named_where_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    merged = b"    kind: qwen3_omni.talker\n    <<: &shared\n      gpsu: [0]\n"
    path.write_bytes(GOOD.replace(b"    kind: qwen3_omni.talker\n", merged))
    with pytest.raises(GraphError, match=r":10: stages\.talker\.gpsu: unknown key"):
        load_graph(path)
