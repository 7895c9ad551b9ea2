"""Makes all sounds that are trained on: texts to speak, spoken questions. Seeds are fixed."""

import argparse
import multiprocessing
import pickle
import random
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from language.questions import weather
from language.samples import HOP, Sound
from language.tasks import Asked
from language.texts import spoken, to_speak
from pictures import ask, scene
from utterances import FRAME_16K, HELD_OUT, Utterance, padded_frames, save_part
from voices import FLITE_RATE_HZ, SPEAKERS, speak, speak_words, trimmed

PARTS = 64  # of the work; the data depend on it
SHIFTS = 3  # of a text's sound, so that frames begin anywhere in its words


def padded(samples: npt.NDArray[np.int16], pick: random.Random) -> npt.NDArray[np.int16]:
    """A spoken question with silence of random length around it, of whole hops."""
    before, after = pick.randrange(0, 4000), pick.randrange(0, 6000)
    after += -(before + after + len(samples)) % HOP
    return np.concatenate([np.zeros(before, np.int16), samples, np.zeros(after, np.int16)])


def make_voices(
    seed: int, count: int, folder: str, data: Path, held_out: bool = False
) -> list[Utterance]:
    """Texts for the talker, several times each; their samples are written to disk."""
    pick = random.Random(seed)
    made, waves = [], []
    for index in range(count):
        text, speaker = to_speak(pick, held_out), index % len(SPEAKERS)
        said = speak_words(text, SPEAKERS[speaker], folder)
        for shift in range(1 if held_out else SHIFTS):
            lead = pick.randrange(FRAME_16K) if shift else 0
            waves.append(padded_frames(np.pad(said.samples, (lead, 0))))
            ends = tuple(end + lead for end in said.ends)
            made.append(Utterance(text, speaker, ends, len(waves[-1]) // FRAME_16K))
    save_part(data / "waves", seed, waves)
    return made


def make_questions(
    seed: int, count: int, folder: str, held_out: bool = False, transcripts: float = 0.2
) -> list[Asked]:
    """Questions of the world, and a share of sentences that are to be written down only."""
    pick = random.Random(seed)
    made = []
    for index in range(count):
        voice = SPEAKERS[index % len(SPEAKERS)]
        answer, city = "", ""
        if pick.random() < transcripts:
            kind, asked = "sentence", to_speak(pick, held_out)
        else:
            kind, asked, answer = spoken(pick, held_out)
        if kind == "weather":
            city = next(one for one in weather_cities() if one in asked)
        samples = padded(trimmed(speak(asked, voice, folder)), pick)
        made.append(Asked(kind, Sound(samples, asked), answer, city))
    return made


def weather_cities() -> set[str]:
    """The cities whose weather is asked for."""
    return {weather(random.Random(seed))[1] for seed in range(200)}


def make_held_out(seed: int, count: int, folder: str) -> list[Asked]:
    """Spoken questions that are judged and never trained."""
    return make_questions(seed, count, folder, held_out=True, transcripts=0.1)


def make_picture_questions(seed: int, count: int, folder: str) -> list[Sound]:
    """Each question about pictures in each voice; `count` is not looked at."""
    jobs = [(text, voice) for text in questions_about_pictures() for voice in SPEAKERS]
    pick = random.Random(seed)
    chosen = jobs[seed % 1000 :: PARTS]
    return [
        Sound(padded(trimmed(speak(text, voice, folder)), pick), text) for text, voice in chosen
    ]


@cache
def questions_about_pictures() -> list[str]:
    pick = random.Random(0)
    return sorted({ask(scene(pick), pick)[0] for _ in range(6000)})


def in_parallel(
    make: Callable[[int, int, str], list[Any]], count: int, folder: str, seed: int
) -> list[Any]:
    """The results of all parts, in their order."""
    jobs = [(seed * 1000 + part, max(1, count // PARTS), folder) for part in range(PARTS)]
    with multiprocessing.Pool() as pool:
        return [one for part in pool.starmap(make, jobs, chunksize=1) for one in part]


def main() -> None:
    """Write utterances.pkl and waves, or questions.pkl, into a folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path(".cache/small/data"))
    parser.add_argument("--scale", type=float, default=1.0, help="a share of the full amount")
    parser.add_argument("--round", type=int, default=0, help="other texts to speak, in other data")
    parser.add_argument("--only", choices=("voices", "questions"), required=True)
    parser.add_argument("--flite", default="", help="folder of flite's libraries")
    given = parser.parse_args()
    given.data.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()

    def say(what: str, sounds: list[npt.NDArray[np.int16]]) -> None:
        hours = sum(map(len, sounds)) / FLITE_RATE_HZ / 3600
        spent = time.monotonic() - started
        print(f"{spent:.0f} s: {len(sounds)} {what}, {hours:.1f} h", flush=True)

    def full(count: int) -> int:
        return max(PARTS, int(count * given.scale))

    if given.only == "voices":
        make = partial(make_voices, data=given.data)
        said = in_parallel(make, full(80_000), given.flite, seed=10 * given.round + 1)
        # The last ones are held out.
        make = partial(make_voices, data=given.data, held_out=True)
        said += in_parallel(make, HELD_OUT, given.flite, seed=10 * given.round + 5)
        _save(given.data / "utterances.pkl", said)
        frames = sum(one.frames for one in said)
        print(f"{time.monotonic() - started:.0f} s: {len(said)} sounds, {frames / 45_000:.1f} h")
        return
    questions_about_pictures()  # before there are processes, which then have them
    asked = in_parallel(make_questions, full(30_000), given.flite, seed=2)
    say("spoken questions", [one.sound.samples for one in asked])
    about: dict[str, list[Sound]] = {}
    for sound in in_parallel(make_picture_questions, 0, given.flite, seed=3):
        about.setdefault(sound.words, []).append(sound)
    judged = in_parallel(make_held_out, HELD_OUT, given.flite, seed=4)
    questions = {"asked": asked, "about": about, "judged": judged}
    _save(given.data / "questions.pkl", questions)
    say("questions about pictures", [one.samples for every in about.values() for one in every])


def _save(path: Path, value: Any) -> None:
    new = path.with_suffix(".new")
    with new.open("wb") as file:
        pickle.dump(value, file, protocol=5)
    new.replace(path)


if __name__ == "__main__":
    main()
