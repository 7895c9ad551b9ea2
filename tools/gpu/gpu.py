"""`make gpu`: an Omni model at its real size, served as shipped: tokens checked, then its speed.

`--family` says which: Qwen3-Omni, or Qwen2.5-Omni.

The folder has no weights: they are dummy ones, the same in every process. The graph is served under
NVIDIA's MPS (`--mps on`) and asked by 1, 8 and 64 streams; then the first graph's talker's engine
is killed and eight ask again. The same folder served alone, eager and without MPS, judges the
answers:

- Text: the reference reads each prompt with its answer, and says for every token how much less
  likely it is than the likeliest. Bfloat16 rounds differently with every batch, so answers need not
  be the same; but a wrong token is several nats away.
- Codes: the reference answers some of the prompts itself. Of the answers whose text begins with the
  same token, most must begin with the same code: the talker has read the same rows until then.
  Qwen2.5-Omni's rows are the thinker's own hidden states, which bfloat16 rounds in every batch: its
  codes are judged with `--float32`, where nearly all must begin alike.
- No stage may have seen a NaN among its logits.

The tables of a server's speeds are printed only if all of that holds for it; if it does for all,
the exit code is 0. `--graph` may be given several times: each graph is served in turn, and the
first one, eager, judges all. `--graph FILE=1,8` has levels of its own. `--before` is the root of a
checkout of an earlier state: graph files of the same names are served by its code first, as they
are there, and judged by the same reference. `--lengths` measures other prompts and answers, too,
and `--rates` requests that come whether or not others were answered. With `--deterministic LEVELS`
the first graph is served once more, deterministic: then answers one at a time must be those at
once, all tokens and codes. With `--replicas 0,1` each stage of a graph is there once on each of
these GPUs; one of each is the reference. Behind each table are the cores that each process used.
With `--talks` so many conversations with media are held with the first graph's server, with and
without the prefix cache (`make turns`).
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from candidates import (
    SUBJECTS,
    Candidate,
    hidden_problem,
    in_float32,
    reference_graph,
    replicas_of,
    with_replicas,
    with_share,
)
from gpu_run import Run
from judging import LENGTHS, NUM_SPOKEN
from support.printing import say

from omnistage.stage_configs.pick import GRAPHS

STREAMS = (1, 8, 64)
LEAST_IN_FLOAT32 = 0.9


def main() -> None:
    """Serve, ask, kill, ask, measure; then let the reference judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--family", choices=SUBJECTS, default="qwen3_omni")
    parser.add_argument(
        "--graph", action="append", metavar="FILE[=LEVELS]", help="default: the family's, one GPU"
    )
    parser.add_argument("--before", type=Path, help="a checkout of an earlier state, served first")
    parser.add_argument("--tiny", action="store_true", help="the tiny model on a CPU")
    parser.add_argument("--levels", default="1,8,32,64,128", help="streams of the speed table")
    parser.add_argument("--text-levels", default="", help="streams of a table without speech")
    parser.add_argument("--streams", default=",".join(map(str, STREAMS)), help="that are checked")
    parser.add_argument("--lengths", default="", help=f"of {','.join(LENGTHS)}, at 1 stream")
    parser.add_argument("--spoken", type=int, default=NUM_SPOKEN, help="by the reference itself")
    parser.add_argument("--rates", default="", help="requests a second")
    parser.add_argument("--seconds", type=float, default=8, help="that each rate lasts")
    parser.add_argument("--replicas", default="", help="GPUs of each stage's: 0,1, say")
    parser.add_argument("--max-first-sound", type=float, help="of the servers, in s")
    parser.add_argument("--no-mps", action="store_true")
    parser.add_argument("--float32", action="store_true", help="all stages: twice the memory")
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--compare-no-mps", action="store_true", help="measure both")
    parser.add_argument("--deterministic", metavar="LEVELS", help="and so, at these streams")
    parser.add_argument("--talks", type=int, default=0, help="conversations at once, of ten turns")
    parser.add_argument("--share", type=float, help="of the thinker: to see this check fail")
    parser.add_argument("--out", type=Path, help="a folder for logs and figures")
    parser.add_argument(
        "--model", type=Path, help="keep the model's folder here: the next start is a warm one"
    )
    asked = parser.parse_args()
    subject = SUBJECTS[asked.family]
    usual = str(GRAPHS / (subject.tiny_graph if asked.tiny else subject.graph))
    candidates = [Candidate.of(one, asked.levels) for one in asked.graph or [usual]]
    if len({one.name for one in candidates}) < len(candidates):
        parser.error("--graph: two files of the same name")
    now = candidates[0]
    candidates[0] = replace(now, has_talks=asked.talks > 0)
    if asked.deterministic:
        candidates.append(Candidate(now.path, asked.deterministic, is_deterministic=True))
    if asked.before is not None:
        if problem := hidden_problem(asked.before):
            parser.error(f"--before: {problem}")
        earlier = [one.before(asked.before) for one in candidates if not one.is_deterministic]
        if not any(one.path.exists() for one in earlier):
            names = ", ".join(str(one.path) for one in earlier)
            parser.error(f"--before: it has none of the graph files: {names}")
        candidates = [one for one in earlier if one.path.exists()] + candidates
    if unknown := {name for name in asked.lengths.split(",") if name} - LENGTHS.keys():
        parser.error(f"--lengths: {', '.join(sorted(unknown))}: is none of {', '.join(LENGTHS)}")
    if asked.spoken < 1:
        parser.error("--spoken: at least 1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = asked.out or folder
        sys.exit(check(asked, candidates, folder, out))


def check(
    asked: argparse.Namespace, candidates: Sequence[Candidate], folder: Path, out: Path
) -> int:
    """The exit code."""
    subject, model = SUBJECTS[asked.family], asked.model or folder / "model"
    if model.exists():
        say(f"a warm start: {model} is there, and what was compiled for it")
    else:
        subject.write(model, asked.tiny)
    graphs = {one.name: one.graph() for one in candidates}
    least = LEAST_IN_FLOAT32 if asked.float32 else subject.least_in_bf16
    for name, graph in graphs.items():
        if asked.float32:
            in_float32(graph)
        served = with_share(graph, asked.share) if asked.share else graph
        if gpus := replicas_of(asked.replicas):
            served = with_replicas(served, gpus)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(served))
    run = Run(asked, subject, model, folder, out)
    for one in candidates:
        for has_mps in [not asked.no_mps] + ([False] if asked.compare_no_mps else []):
            run.serve(one, has_mps)
    judging = next(graphs[one.name] for one in candidates if one.checkout is None)
    return 0 if run.judge(reference_graph(judging, folder), least) else 1


if __name__ == "__main__":
    main()
