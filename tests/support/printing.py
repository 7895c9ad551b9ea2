"""What the measuring scripts read from their options and print."""

from rich.console import Console

WIDTH = 150


def say(what: str) -> None:
    """Print it as it is, at once."""
    Console(width=WIDTH).print(what, markup=False, highlight=False)


def numbers(text: str) -> list[int]:
    """Of a list with commas; raises ValueError for what is not at least 1."""
    found = [int(one) for one in text.split(",")]
    if min(found) < 1:
        raise ValueError(f"{text}: each must be at least 1")
    return found
