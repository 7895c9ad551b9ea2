"""A text whose pieces come while it is read."""

import asyncio

from support.waiting import until

from omnistage.stages.messages.body import GivenText
from omnistage.stages.worker.requests.coming_text import ComingText, ComingTexts


async def read(text: ComingText, wait_s: float = 5.0) -> tuple[list[str], int]:
    """Its pieces, and how often life was shown."""
    shown: list[None] = []
    pieces = [piece async for piece in text.pieces(wait_s, lambda: shown.append(None))]
    return pieces, len(shown)


async def test_a_whole_text_is_one_piece() -> None:
    pieces, _ = await read(ComingText("all", is_whole=True))
    assert pieces == ["all"]


async def test_pieces_that_nobody_took_become_one_and_the_last_ends_the_text() -> None:
    texts = ComingTexts()
    text = texts.open("a", GivenText("", is_open=True))
    reading = asyncio.create_task(read(text))
    await asyncio.sleep(0)
    for piece, last in (("one ", False), ("two", False)):
        texts.add("a", piece, last)
    await asyncio.sleep(0.01)
    texts.add("a", "", True)
    pieces, _ = await reading
    assert pieces == ["", "one two", ""]


async def test_life_is_shown_while_nothing_comes() -> None:
    text = ComingText("one", is_whole=False)
    pieces: list[str] = []
    shown: list[None] = []

    async def take() -> None:
        async for piece in text.pieces(0.01, lambda: shown.append(None)):
            pieces.append(piece)

    reading = asyncio.create_task(take())
    await until(lambda: len(shown) >= 3)  # twice beside that of the piece
    assert pieces == ["one"]
    text.add("two", True)
    await reading
    assert pieces == ["one", "two"]


async def test_life_is_shown_behind_each_piece_however_soon_the_next_one_comes() -> None:
    """What is made of a text comes as slowly as the text, though the text is never late."""
    text = ComingText("one", is_whole=False)
    events: list[str] = []

    async def take() -> None:
        async for piece in text.pieces(5.0, lambda: events.append("alive")):
            events.append(piece)

    reading = asyncio.create_task(take())
    for piece, last in (("two", False), ("three", True)):
        await asyncio.sleep(0.01)
        text.add(piece, last)
    await reading
    assert events == ["one", "alive", "two", "alive", "three", "alive"]


async def test_pieces_of_a_text_that_is_closed_or_unknown_are_dropped() -> None:
    texts = ComingTexts()
    text = texts.open("a", GivenText("x"))
    texts.close("a")
    texts.add("a", "y", True)
    texts.add("b", "z", True)
    pieces, _ = await read(text)
    assert pieces == ["x"]
