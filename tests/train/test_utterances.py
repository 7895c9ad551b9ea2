"""Utterances are drawn from all files of codes; gradients are shared by ranks."""

import random
from pathlib import Path

import pytest
import torch
from language.samples import Writer
from loop import Run
from utterances import HELD_OUT, Library, Utterance, codes_path, flattened

WORDS = ("hello", "good morning", "the number is seven")


def write(out: Path, name: str, first: int, frames: int = 30) -> None:
    """A file of codes that count from a number: trained texts, then those held out."""
    said = [
        Utterance(
            WORDS[index % 3],
            index % 4,
            tuple(1280 * (1 + at) for at in range(len(WORDS[index % 3].split()))),
            frames,
        )
        for index in range(3 + HELD_OUT)
    ]
    made = flattened(said, Writer())
    rows = torch.arange(first, first + len(said)).repeat_interleave(frames)
    torch.save({**made, "codes": rows[:, None].to(torch.int16)}, codes_path(out, out / name))


def test_utterances_are_drawn_with_their_own_text_codes_and_ends(tmp_path: Path) -> None:
    write(tmp_path, "data", 0)
    library, pick = Library(tmp_path), random.Random(1)
    library.look()
    for held_out in (False, True):
        numbers = set()
        for _ in range(60):
            said = library.draw(pick, held_out)
            number = int(said.codes[0, 0])
            assert (said.codes == number).all()
            assert len(said.codes) == 30
            assert said.speaker == number % 4
            assert said.tokens == Writer().ids(WORDS[number % 3])
            assert len(said.ends) == len(said.tokens)
            numbers.add(number)
        assert all((number >= 3) == held_out for number in numbers)


def test_utterances_that_come_later_are_drawn_too(tmp_path: Path) -> None:
    library, pick = Library(tmp_path), random.Random(1)
    with pytest.raises(FileNotFoundError, match="has no codes"):
        library.look()
    write(tmp_path, "data", 0)
    library.look()
    write(tmp_path, "data1", 1000)
    library.look()
    seen = {int(library.draw(pick).codes[0, 0]) for _ in range(200)}
    assert seen == {0, 1, 2, 1000, 1001, 1002}


def test_a_text_longer_than_its_sound_is_not_drawn(tmp_path: Path) -> None:
    short = len(Writer().ids(WORDS[1])) + 1
    write(tmp_path, "data", 0, frames=short)
    library, pick = Library(tmp_path), random.Random(1)
    library.look()
    drawn = {int(library.draw(pick).codes[0, 0]) for _ in range(60)}
    fits = {one for one in range(3) if len(Writer().ids(WORDS[one])) + 1 < short}
    assert drawn == fits != set()


def test_ranks_have_the_first_ones_weights_and_clock_and_the_mean_of_all_gradients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of two ranks; torch's collectives bring what the first one has."""
    of_first = iter((torch.full((1, 2), 5.0), torch.full((1,), 7.0), torch.tensor(2.5)))
    monkeypatch.setattr(
        torch.distributed, "broadcast", lambda one, source: one.copy_(next(of_first))
    )
    first_grads = torch.tensor([1.0, 10.0, 1.0])
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda one: one.add_(first_grads))
    run = Run(tmp_path, tmp_path, 1, 1.0, torch.device("cpu"), rank=1, ranks=2)
    module = torch.nn.Linear(2, 1)
    run.share(module)
    assert module.weight.tolist() == [[5.0, 5.0]]
    assert module.bias.tolist() == [7.0]
    module(torch.tensor([[2.0, 20.0]])).sum().backward()
    run.average(module)
    assert module.weight.grad is not None
    assert module.bias.grad is not None
    assert module.weight.grad.tolist() == [[1.5, 15.0]]
    assert module.bias.grad.tolist() == [1.0]
    assert run.of_first(9.0) == 2.5
