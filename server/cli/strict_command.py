"""A command whose flags are asked for by wrong names: the error says what is meant, or instead.

Its options may come from the environment, too: OMNISTAGE_ and the flag's name.
"""

import difflib
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typer.core import TyperCommand

from omnistage.server.cli.graphs import fail
from omnistage.server.cli.vllm_flags import instead_of

PREFIX = "OMNISTAGE"
SETTINGS = {"auto_envvar_prefix": PREFIX}
CLOSE = 0.7  # how alike two flags must be for one to be meant by the other
ALL_OPTIONS = "--help lists all options"
EPILOG = (
    f"Every option may also come from the environment: {PREFIX}_ and its name in capitals, such "
    f"as {PREFIX}_LOG_LEVEL=warning for --log-level warning."
)
USAGE = 2  # the exit code of a command that was typed wrong
SERVED = "--served-model-name"
# Kubernetes sets such a variable, with an address in it, for a service of the name omnistage.
OF_A_SERVICE = f"{PREFIX}_PORT"


class StrictCommand(TyperCommand):
    """Says what to type in place of a flag that it does not have."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{**settings, "epilog": EPILOG})
        for option in self.params:
            option.show_envvar = False  # type: ignore[attr-defined]  # one line for all of them

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses as Typer does, but for unknown flags and for variables that Kubernetes sets."""
        if "://" in os.environ.get(OF_A_SERVICE, ""):
            del os.environ[OF_A_SERVICE]
        takes_value = {
            name: not getattr(option, "is_flag", False)
            for option in self.get_params(ctx)
            for name in (*option.opts, *option.secondary_opts)
            if name.startswith("-")
        }
        unknown, words = _read(args, takes_value)
        if unknown is not None:
            raise fail(unknown_flag(*unknown, takes_value), USAGE)
        if len(words) > 1 and SERVED in args:
            raise fail(f"{SERVED}: give it once for each name, so {SERVED} {words[-1]}", USAGE)
        return super().parse_args(ctx, args)


def _read(
    args: Sequence[str], takes_value: Mapping[str, bool]
) -> tuple[tuple[str, str] | None, list[str]]:
    """The first flag that is not known, with its value; the words that belong to no flag."""
    words = list[str]()
    rest = iter(args)
    for arg in rest:
        name, has_value, value = arg.partition("=")
        if arg == "--":
            return None, [*words, *rest]
        if not name.startswith("-") or name == "-":
            words.append(arg)
        elif name not in takes_value:
            following = next(rest, "-")
            return (name, value or ("" if following.startswith("-") else following)), words
        elif takes_value[name] and not has_value:
            next(rest, None)
    return None, words


def unknown_flag(flag: str, value: str, known: Iterable[str]) -> str:
    """Returns what is wrong with a flag, and what to type."""
    dashed = flag.replace("_", "-")
    if dashed in known:
        return f"there is no {flag}; did you mean '{dashed}'?"
    advice = instead_of(flag, value)
    if advice:
        return f"there is no {flag} here, as vLLM has it: {advice}"
    close = difflib.get_close_matches(dashed, sorted(known), n=1, cutoff=CLOSE)
    return f"there is no {flag}; " + (f"did you mean '{close[0]}'?" if close else ALL_OPTIONS)
