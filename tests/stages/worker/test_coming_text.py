"""A text whose pieces come while it is read."""

import asyncio

from omnistage.stages.worker.coming_text import ComingText, ComingTexts


async def read(text: ComingText, wait_s: float = 5.0) -> tuple[list[str], int]:
    """Its pieces, and how often life was shown."""
    shown: list[None] = []
    pieces = [piece async for piece in text.pieces(wait_s, lambda: shown.append(None))]
    return pieces, len(shown)


async def test_a_whole_text_is_one_piece() -> None:
    assert await read(ComingText("all", is_whole=True)) == (["all"], 0)


async def test_pieces_that_nobody_took_become_one_and_the_last_ends_the_text() -> None:
    texts = ComingTexts()
    text = texts.open("a", {"input": "", "open": True})
    reading = asyncio.create_task(read(text))
    await asyncio.sleep(0)
    for piece, last in (("one ", False), ("two", False)):
        texts.add("a", piece, last)
    await asyncio.sleep(0.01)
    texts.add("a", "", True)
    assert await reading == (["", "one two", ""], 0)


async def test_life_is_shown_while_nothing_comes() -> None:
    text = ComingText("one", is_whole=False)
    reading = asyncio.create_task(read(text, wait_s=0.01))
    await asyncio.sleep(0.1)
    text.add("two", True)
    pieces, num_shown = await reading
    assert pieces == ["one", "two"]
    assert num_shown >= 2


async def test_pieces_of_a_text_that_is_closed_or_unknown_are_dropped() -> None:
    texts = ComingTexts()
    text = texts.open("a", {"input": "x"})
    texts.close("a")
    texts.add("a", "y", True)
    texts.add("b", "z", True)
    assert await read(text) == (["x"], 0)
