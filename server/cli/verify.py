"""`omnistage verify`."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from omnistage.server.cli.changes import (
    AnyChanges,
    DefaultChanges,
    Deterministic,
    OtherModel,
    StageChanges,
    Target,
    changes_of,
)
from omnistage.server.cli.graphs import fail, resolve
from omnistage.server.cli.guard import refused
from omnistage.server.cli.serving.machine import check_machine
from omnistage.server.cli.verifying.asking import Answered, answer_all
from omnistage.server.cli.verifying.judge import OF_HALVES, TOLERANCES, Judged, judged
from omnistage.server.cli.verifying.questions import Question, questions_of
from omnistage.server.cli.verifying.reference import NoReference, check_packages, run_reference
from omnistage.server.cli.verifying.report import NOT_RUN, Comparison
from omnistage.server.telemetry.logs import configure_logging
from omnistage.server.telemetry.quiet import quieten
from omnistage.stage_configs.families import KINDS
from omnistage.stage_configs.graph import StageGraph
from omnistage.stage_configs.graph_file import GraphError
from omnistage.stage_configs.kinds import PublishedReference
from omnistage.stage_configs.models.cache_folder import logs_folder
from omnistage.stage_configs.overrides import Override
from omnistage.stages.messages.to_reference import Found, ReferenceJob

# A first answer may wait for a compiler.
PATIENCE = {"first_chunk_s": 600.0, "next_chunk_s": 300.0}


def verify(
    target: Target,
    model: OtherModel = None,
    reference_model: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="MODEL",
            help="The checkpoint that the reference reads, for one that is served quantized. "
            "Default: the same.",
        ),
    ] = None,
    reference_python: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="The Python that runs the reference, for one that needs other libraries. "
            "Default: this one.",
        ),
    ] = sys.executable,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, help="Write the report to this file, too."),
    ] = None,
    stage: StageChanges = None,
    set_any: AnyChanges = None,
    set_default: DefaultChanges = None,
    deterministic: Deterministic = False,
) -> None:
    """Compare the answers to a few questions with those of the model's published implementation.

    Exits with 0 if they are equal but for rounding, 1 if one differs, and 2 if something could not
    be run.
    """
    try:
        changes = changes_of(stage, set_any, set_default, deterministic=deterministic)
        graph = resolve(target, model, changes)
        graph = resolve(target, model, [*exact(graph), *changes])
        check_machine(graph)
        report = verified(graph, reference_model, reference_python)
        Console().print(report.to_table())
        if json_file is not None:
            json_file.write_text(json.dumps(report.to_json(), indent=1) + "\n")
    except (GraphError, NoReference) as error:
        raise fail(str(error), NOT_RUN) from None
    except OSError as error:
        raise fail(refused(error), NOT_RUN) from None
    except typer.Exit:  # what was typed cannot be served
        raise typer.Exit(NOT_RUN) from None
    raise typer.Exit(report.exit_code)


def exact(graph: StageGraph) -> list[Override]:
    """Returns the changes with which stages compute as their references do, and patience."""
    patience = [
        Override(f"deadlines.{name}", ("deadlines", name), value)
        for name, value in PATIENCE.items()
    ]
    return patience + [
        Override(f"{name}.{key}", ("stages", name, *key.split(".")), value)
        for name, spec in graph.stages.items()
        for key, value in KINDS[spec.kind].exact.items()
    ]


def verified(graph: StageGraph, reference_model: str | None, python: str) -> Comparison:
    """Asks the server, ends it, and then asks the references.

    Raises NoReference, before anything loads, if there is none or its packages are missing, and if
    the server or a reference cannot run.
    """
    questions = {name: list(questions_of(graph, spec)) for name, spec in graph.stages.items()}
    questions = {name: some for name, some in questions.items() if some}
    if not questions:
        raise NoReference(f"{graph.model}: there is no reference for what this graph makes")
    references = {
        name: reference
        for name in questions
        if (reference := KINDS[graph.stages[name].kind].reference) is not None
    }
    for reference in references.values():
        check_packages(python, reference.needs)
    answers = ask_server(graph, questions)
    report = Comparison(graph.model, graph.model_dump(mode="json"))
    for name, answered in answers.items():
        spec = graph.stages[name]
        model = reference_model or spec.model or graph.model
        dtype = str(spec.engine.get("dtype", "auto"))
        compare(answered, references[name], model, dtype, python, report)
    return report


def compare(
    answered: Sequence[Answered],
    reference: PublishedReference,
    model: str,
    dtype: str,
    python: str,
    report: Comparison,
) -> None:
    """Adds to a report what a reference says of the answers; raises NoReference if it fails."""
    asked = [one.asked for one in answered if one.asked is not None]
    found: Iterator[Found] = iter(())
    tolerance = OF_HALVES
    if asked:
        typer.echo(f"asking the reference of {model}", err=True)
        outcome = run_reference(python, ReferenceJob(reference.path, model, dtype, asked))
        tolerance = TOLERANCES.get(outcome.dtype, OF_HALVES)
        how = {"model": model, "dtype": outcome.dtype, "device": outcome.device}
        report.references.append({**how, "versions": outcome.versions})
        found = iter(outcome.found)
    for one in answered:
        failed = Judged(one.name, [], one.problem)
        report.questions.append(
            failed if one.asked is None else judged(one, next(found), tolerance)
        )


def ask_server(
    graph: StageGraph, questions: Mapping[str, Sequence[Question]]
) -> dict[str, list[Answered]]:
    """Returns the answers to each stage's questions; the server has ended by then.

    What its stages print goes to files. Raises NoReference if it cannot start.
    """
    from omnistage.server.offline.errors import StartFailed
    from omnistage.server.offline.omni import Omni

    logs = logs_folder() / "verify"
    configure_logging(Console(stderr=True))
    quieten(logs)
    typer.echo(f"starting {graph.model}; its stages log to {logs}", err=True)
    try:
        with Omni(graph) as omni:
            return {name: answer_all(omni, some) for name, some in questions.items()}
    except StartFailed as error:
        raise NoReference(str(error)) from None
