"""The options that choose and change a graph: the same for `check`, `plan`, `serve`, `warm`."""

from typing import Annotated

import typer

from omnistage.server.cli.graphs import fail
from omnistage.stage_configs.overrides import (
    Override,
    OverrideError,
    alias_override,
    any_override,
    default_override,
    deterministic_override,
    name_override,
    stage_override,
)

MODEL = "Model"  # the panel of --help

Target = Annotated[
    str,
    typer.Argument(
        help="A graph file in YAML, a model folder, a Hugging Face name, or `small`, the toy that "
        "comes with the package."
    ),
]
OtherModel = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=MODEL, help="The model to use with a graph file, in place of its own."
    ),
]
StageChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--stage",
        rich_help_panel=MODEL,
        metavar="NAME.KEY=VALUE",
        help="Set a key of a stage (gpus, options.x, environment.X, engine.x) or, for short, an "
        "argument of its engine: thinker.max_model_len=8192. VALUE is YAML. May be given several "
        "times.",
    ),
]
AnyChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        rich_help_panel=MODEL,
        envvar="OMNISTAGE_SET",
        metavar="KEY=VALUE",
        help="Set any other key of the graph file: deadlines.start_s=600, edges.0.chunk.steady=50. "
        "May be given several times.",
    ),
]
DefaultChanges = Annotated[
    list[str] | None,
    typer.Option(
        "--set-default",
        rich_help_panel=MODEL,
        metavar="NAME.PARAMETER=VALUE",
        help="What a stage samples with where a request does not say it: talker.temperature=0.7. "
        "May be given several times.",
    ),
]
ModelNames = Annotated[
    list[str] | None,
    typer.Option(
        "--served-model-name",
        rich_help_panel=MODEL,
        metavar="NAME",
        help="What requests may call the model, in place of its name or folder; may be given "
        "several times. Answers carry the first.",
    ),
]

VoiceAliases = Annotated[
    list[str] | None,
    typer.Option(
        "--voice-alias",
        rich_help_panel=MODEL,
        metavar="NAME=VOICE",
        help="A further name of a voice, for clients that send OpenAI's: alloy=ethan. May be given "
        "several times.",
    ),
]

Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic",
        rich_help_panel=MODEL,
        help="The same seed gives the same answer, whatever else runs. It costs speed; what cannot "
        "keep to it is refused.",
    ),
]


def changes_of(
    stage: list[str] | None,
    set_any: list[str] | None,
    set_default: list[str] | None,
    names: list[str] | None = None,
    aliases: list[str] | None = None,
    *,
    deterministic: bool = False,
) -> list[Override]:
    """The changes in the order in which they are made; typer.Exit for one that cannot be read."""
    try:
        return [
            *map(any_override, set_any or ()),
            *map(stage_override, stage or ()),
            *map(default_override, set_default or ()),
            *([name_override(names)] if names else []),
            *map(alias_override, aliases or ()),
            *([deterministic_override()] if deterministic else []),
        ]
    except OverrideError as error:
        raise fail(str(error)) from None
