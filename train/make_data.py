"""Makes all that is trained on: talks, pictures, voices. Seeds are fixed; every core works."""

import argparse
import multiprocessing
import pickle
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pictures import SIZES, Scene, ask, draw, scene
from samples import (
    HOP,
    TRANSCRIBE,
    Sample,
    Writer,
    picture_marks,
    sound_marks,
    tokenizer_of_all,
    tool_talk,
    two_pictures,
)
from texts import SYSTEM, spoken, talk, to_speak
from voices import FLITE_RATE_HZ, SPEAKERS, speak, trimmed


def padded(samples: npt.NDArray[np.int16], pick: random.Random) -> npt.NDArray[np.int16]:
    """A spoken question with silence of random length around it, of whole hops."""
    before, after = pick.randrange(0, 4000), pick.randrange(0, 6000)
    after += -(before + after + len(samples)) % HOP
    return np.concatenate([np.zeros(before, np.int16), samples, np.zeros(after, np.int16)])


def make_texts(seed: int, count: int, _: str) -> list[Sample]:
    """Talks without media."""
    pick, writer = random.Random(seed), Writer()
    made = []
    for _number in range(count):
        one = talk(pick)
        made.append(writer.sample(one.turns, one.system))
    return made


def make_pictures(seed: int, count: int, _: str) -> list[tuple[int, npt.NDArray[np.uint8], Scene]]:
    """Side, pixels and contents."""
    pick = random.Random(seed)
    made = []
    for index in range(count):
        side = SIZES[index % len(SIZES)]
        one = scene(pick)
        made.append((side, draw(one, side, pick), one))
    return made


def make_voices(seed: int, count: int, folder: str) -> list[tuple[str, int, npt.NDArray[np.int16]]]:
    """Text, speaker and samples, for the talker."""
    pick = random.Random(seed)
    made = []
    for index in range(count):
        text, speaker = to_speak(pick), index % len(SPEAKERS)
        made.append((text, speaker, trimmed(speak(text, SPEAKERS[speaker], folder))))
    return made


def make_questions(
    seed: int, count: int, folder: str
) -> list[tuple[str, str, npt.NDArray[np.int16]]]:
    """Question, answer and samples: questions of the world, and sentences to transcribe only."""
    pick = random.Random(seed)
    made = []
    for index in range(count):
        voice = SPEAKERS[index % len(SPEAKERS)]
        if pick.random() < 0.7:
            _, asked, answer = spoken(pick)
        else:
            asked, answer = to_speak(pick), ""
        made.append((asked, answer, padded(trimmed(speak(asked, voice, folder)), pick)))
    return made


def make_picture_questions(
    seed: int, count: int, folder: str
) -> list[tuple[str, npt.NDArray[np.int16]]]:
    """Each question about pictures in each voice."""
    pick = random.Random(0)
    asked = sorted({ask(scene(pick), pick)[0] for _ in range(6000)})
    jobs = [(text, voice) for text in asked for voice in SPEAKERS]
    pick = random.Random(seed)
    chosen = jobs[seed % 1000 :: 64][:count]
    return [(text, padded(trimmed(speak(text, voice, folder)), pick)) for text, voice in chosen]


def in_parallel(
    make: Callable[[int, int, str], list[Any]], count: int, folder: str, seed: int, parts: int = 64
) -> list[Any]:
    """The results of all parts, in their order."""
    jobs = [(seed * 1000 + part, max(1, count // parts), folder) for part in range(parts)]
    with multiprocessing.Pool() as pool:
        return [one for part in pool.starmap(make, jobs, chunksize=1) for one in part]


def main() -> None:
    """Write talks.pkl, voices.pkl and questions.npz's like into a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path(".cache/small/data"))
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the full amount")
    parser.add_argument("--only", choices=("voices", "talks"), help="half of the work")
    parser.add_argument("--flite", default="", help="folder of flite's libraries")
    given = parser.parse_args()
    given.data.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    tokenizer_of_all()  # before there are processes, which then have it

    def say(what: str, count: int) -> None:
        print(f"{time.monotonic() - started:.0f} s: {count} {what}", flush=True)

    def full(count: int) -> int:
        return max(64, int(count * given.scale))

    if given.only != "talks":
        voices = in_parallel(make_voices, full(15_000), given.flite, seed=1)
        _save(given.data / "voices.pkl", voices)
        hours = sum(len(samples) for *_, samples in voices) / FLITE_RATE_HZ / 3600
        say(f"spoken texts, {hours:.1f} h", len(voices))
    if given.only == "voices":
        return
    questions = in_parallel(make_questions, full(11_000), given.flite, seed=2)
    about = in_parallel(make_picture_questions, 1_000_000, given.flite, seed=3)
    say("spoken questions", len(questions) + len(about))
    pictures = in_parallel(make_pictures, full(45_000), "", seed=4)
    say("pictures", len(pictures))
    texts = in_parallel(make_texts, full(130_000), "", seed=5)
    say("talks", len(texts))
    _save(given.data / "talks.pkl", _talks(texts, pictures, questions, about))
    say("written", 1)


def _talks(texts: list[Any], pictures: list[Any], questions: list[Any], about: list[Any]) -> Any:
    """Everything of the thinker: samples of four kinds, pixels, sounds."""
    pick, writer = random.Random(6), Writer()
    texts += [
        writer.sample(turns, system)
        for system, turns in (tool_talk(pick) for _ in range(len(texts) // 20))
    ]
    seen = []
    by_side: dict[int, list[int]] = {}
    for index, (side, _, one) in enumerate(pictures):
        by_side.setdefault(side, []).append(index)
        for _ in range(2):
            asked, answer = ask(one, pick)
            marks = picture_marks(1, side)
            content = f"{asked}{marks}" if pick.random() < 0.15 else f"{marks}{asked}"
            system = SYSTEM if pick.random() < 0.1 else ""
            seen.append(writer.sample((content, answer), system, side, (index,)))
    for side, indices in by_side.items():
        for _ in range(len(indices) // 6):
            two = pick.sample(indices, 2)
            asked, answer = two_pictures(pick, [pictures[index][2] for index in two])
            content = f"{picture_marks(2, side)}{asked}"
            seen.append(writer.sample((content, answer), "", side, tuple(two)))
    heard, both = [], []
    sounds = [samples for *_, samples in questions] + [samples for _, samples in about]
    for index, (asked, answer, samples) in enumerate(questions):
        marks = sound_marks(len(samples))
        heard.append(writer.sample((f"{marks}{TRANSCRIBE}", asked), "", sound=index))
        if answer:
            system = SYSTEM if pick.random() < 0.1 else ""
            heard.append(writer.sample((marks, answer), system, sound=index))
    answers: dict[str, list[int]] = {}
    for index, (asked, samples) in enumerate(about):
        answers.setdefault(asked, []).append(len(questions) + index)
        marks = sound_marks(len(samples))
        heard.append(
            writer.sample((f"{marks}{TRANSCRIBE}", asked), "", sound=len(questions) + index)
        )
    for index, (side, _, one) in enumerate(pictures):
        asked, answer = ask(one, pick)
        if asked not in answers:
            continue
        sound = pick.choice(answers[asked])
        marks = picture_marks(1, side) + sound_marks(len(sounds[sound]))
        both.append(writer.sample((marks, answer), "", side, (index,), sound))
    return {
        "text": texts,
        "seen": seen,
        "heard": heard,
        "both": both,
        "pixels": [pixels for _, pixels, _ in pictures],
        "sounds": sounds,
    }


def _save(path: Path, value: Any) -> None:
    with path.open("wb") as file:
        pickle.dump(value, file, protocol=5)


if __name__ == "__main__":
    main()
