"""`make soak-images`: clients of a tiny family of images that hang up in every phase of a request.

`--tiny` names the family, as for `omnistage tiny`. `--cancels` clients hang up, in turns within
0.1 s and in the family's phases: while a model answers or thinks, while ids are made or keys and
values wait for memory, at the first step and after the last. Each phase but the first is seen in
the request's own stream or trace. One in a round is not given up: its images must equal the solo
run's. At the end nothing may be held, no file, descriptor or stage's generation may be new.
"""

import argparse
import asyncio
import io
import itertools
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from uuid import uuid4

import av
import httpx
import numpy as np
import numpy.typing as npt
import yaml
from references.dreamid_omni_scenes import face_file, voice_file
from rich.console import Console
from soak import memory_kb
from support.api.prompts import data_url
from support.faults.chaos import open_files, open_targets
from support.media.pictures import pixels_of
from support.servers.server import TinyServer, check_that_nothing_is_held, running_server

from omnistage.connectors.sweep import PREFIX
from omnistage.stage_configs.families import FAMILIES
from omnistage.stage_configs.pick import GRAPHS
from omnistage.stages.omnigen2.checkpoint.tiny import make_tokenizer
from omnistage.stages.omnigen2.prompt import PICTURE

Pictures = list[npt.NDArray[np.uint8]]
NUM_CLIENTS = 10
TOKEN_BYTES = 3 * 2 * 32 * 4  # of the tiny BAGEL: layers, keys and values, a head, float32
ROOM_TOKENS = 80  # in the memory of the pipeline's stage: fewer than the clients' prompts have
PATIENCE_S = 300.0
DEADLINES = {"first_chunk_s": PATIENCE_S, "next_chunk_s": PATIENCE_S, "hang_s": PATIENCE_S}
INTERVAL_S = 0.05  # between two looks at a request's trace
PROMPTS: list[str | list[str]] = [
    "a cat",
    "a boat on the sea, in oil",
    [f"cat number {number}" for number in range(4)],
]
ENDLESS = 1000  # steps: they take minutes
LOSS = 12.0  # of 255, in mean: what h264 makes of a rounding
Mark = tuple[str, str]  # a stage, and an event of its
FLOW: dict[str, Mark] = {"flow": ("dit", "first_step"), "decoding": ("dit", "last_step")}
TALK = {"messages": [{"role": "user", "content": "A small boat."}], "stream": True}
SPOKEN = {
    "size": "32x32",
    "num_frames": 5,
    "input_reference": data_url("image/png", face_file((40, 40), 0)),
    "audio_reference": data_url("audio/wav", voice_file(2.0, 0)),
    "seed": 1,
}


@dataclass(frozen=True)
class Soaked:
    """A family: its first stage, what is asked of it, and its phases by the marks that begin them.

    `ids`: what makes so many ids that they take minutes. `talk`: a chat whose stream is left, and
    the field that its pieces are in.
    """

    first: str
    phases: Mapping[str, Mark]
    ids: Mapping[str, Any] = field(default_factory=dict)
    talk: tuple[Mapping[str, Any], str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the stage dit
    sampling: Mapping[str, Any] = field(default_factory=dict)  # of the first stage
    body: Mapping[str, Any] = field(default_factory=lambda: {"size": "64x64", "seed": 1})
    url: str = "/v1/images/generations"

    @property
    def turns(self) -> list[str]:
        """Returns what clients do one after another."""
        return ["sent", *(["talking"] if self.talk else []), *self.phases, "whole"]


WORDS = {**TALK, "ignore_eos": True, "max_tokens": 1000}
NO_PICTURE = {"logit_bias": {str(make_tokenizer().id(PICTURE)): -100}}
MANY_IDS = {"prompt": ["a cat"] * 2, "size": "512x512"}
THINKING = {**TALK, "modalities": ["text", "image"], "size": "64x64"}
THINKING["extra"] = {"think": True, "max_think_tokens": 1000}
FAMILIES_SOAKED = {
    "bagel": Soaked(
        "llm",
        {"keys": ("dit", "received"), **FLOW},  # it is reported while a request waits for memory
        talk=(THINKING, "reasoning_content"),
        options={"kv_gib": ROOM_TOKENS * TOKEN_BYTES / (1 << 30)},
    ),
    "glm-image": Soaked(
        "prior", {"ids": ("prior", "received"), **FLOW}, MANY_IDS, sampling={"temperature": 0}
    ),
    "mammothmoda2": Soaked(
        "image_ids", {"ids": ("image_ids", "received"), **FLOW}, MANY_IDS, talk=(WORDS, "content")
    ),
    "omnigen2": Soaked(
        "mllm", {"texts": ("mllm", "received"), **FLOW}, talk=({**WORDS, **NO_PICTURE}, "content")
    ),
    "dreamid-omni": Soaked("dit", FLOW, body=SPOKEN, url="/v1/videos/sync"),
}


@contextmanager
def soaked_server(name: str, log: Path) -> Iterator[TinyServer]:
    """Serve a tiny family as its soak needs it."""
    soaked = FAMILIES_SOAKED[name]
    writer = FAMILIES.part(name, lambda family: family.tiny).write
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        resolve_name(writer)(folder / "tiny")
        graph = yaml.safe_load((GRAPHS / f"{name.replace('-', '_')}_tiny.yaml").read_text())
        graph["deadlines"] = DEADLINES
        graph["stages"]["dit"]["options"] = dict(soaked.options)
        graph["stages"]["dit"]["engine"]["max_megapixels"] = 16  # none of them is ever made
        if soaked.sampling:
            sampling = graph["stages"][soaked.first]["engine"]
            sampling["override_generation_config"] = dict(soaked.sampling)
        (folder / "graph.yaml").write_text(yaml.safe_dump(graph))
        options = "--model", str(folder / "tiny")
        with running_server(str(folder / "graph.yaml"), log, *options) as server:
            yield server


@dataclass
class Soak:
    """The events so far."""

    server: TinyServer
    client: httpx.AsyncClient
    soaked: Soaked
    num_cancels: int
    numbers: Iterator[int] = field(default_factory=itertools.count)
    done: Counter[str] = field(default_factory=Counter)
    num_answered: int = 0  # before their clients left
    num_finished: int = 0
    expected: list[Pictures] = field(default_factory=list)

    async def draw(self, prompt: str | list[str], name: str, **more: Any) -> httpx.Response:
        """Ask for images or a video by a request of this name."""
        body = {"prompt": prompt, "num_inference_steps": 3, **self.soaked.body, **more}
        url = f"{self.server.url}{self.soaked.url}"
        return await self.client.post(url, json=body, headers={"x-request-id": name})

    async def pictures(self, index: int) -> Pictures:
        """All of a request that is not given up."""
        answer = await self.draw(self.prompts[index], f"whole-{uuid4().hex}")
        assert answer.status_code == 200, answer.text
        if self.is_video:
            with av.open(io.BytesIO(answer.content)) as container:
                return [one.to_ndarray(format="rgb24") for one in container.decode(video=0)]
        return [pixels_of(one["b64_json"]) for one in answer.json()["data"]]

    @property
    def is_video(self) -> bool:
        """Returns whether the family makes videos, each of one prompt."""
        return "videos" in self.soaked.url

    @property
    def prompts(self) -> list[str | list[str]]:
        """Returns what is drawn."""
        return [one for one in PROMPTS if isinstance(one, str) or not self.is_video]

    async def check(self, index: int) -> None:
        """Compare a request's images with the solo run's."""
        made = await self.pictures(index)
        for one, wanted in zip(made, self.expected[index], strict=True):
            apart = np.abs(one.astype(int) - wanted.astype(int))
            is_same = apart.mean() < LOSS if self.is_video else apart.max() <= 1
            assert is_same, self.prompts[index]
        self.num_finished += 1

    async def run_client(self) -> None:
        """One request after another from the same seat."""
        turns = self.soaked.turns
        while self.done.total() < self.num_cancels:
            rounds, turn = divmod(next(self.numbers), len(turns))
            async with asyncio.timeout(PATIENCE_S):
                if turns[turn] == "whole":
                    await self.check(rounds % len(self.prompts))
                else:
                    await self.hang_up(turns[turn], rounds)

    async def hang_up(self, phase: str, rounds: int) -> None:
        """Leave a request as soon as it is in its phase, and count where it was seen last."""
        name = f"{phase}-{rounds}"
        if phase == "talking":
            is_left = await self._leave_a_talk(name, rounds % 10)
        else:
            is_left = await self._leave_an_image(phase, name, rounds)
        if is_left:
            self.done[await self._seen(phase, name)] += 1
        else:
            self.num_answered += 1

    async def _leave_an_image(self, phase: str, name: str, rounds: int) -> bool:
        """Return whether the client left before the answer."""
        more: dict[str, Any] = {"num_inference_steps": 1 if phase == "decoding" else ENDLESS}
        more |= {"prompt": self.prompts[rounds % len(self.prompts)]}
        more |= self.soaked.ids if phase == "ids" else {}
        asking = asyncio.ensure_future(self.draw(more.pop("prompt"), name, **more))
        if phase == "sent":
            await asyncio.wait([asking], timeout=rounds % 10 / 100)
        else:
            mark = self.soaked.phases[phase]
            while not asking.done() and mark not in await self._marks(name):
                await asyncio.wait([asking], timeout=INTERVAL_S)
        asking.cancel()
        await asyncio.wait([asking])
        if not asking.cancelled():
            assert asking.result().status_code == 200, asking.result().text
        return asking.cancelled()

    async def _leave_a_talk(self, name: str, num_pieces: int) -> bool:
        """Return whether the client left before the answer."""
        assert self.soaked.talk is not None
        body, piece = self.soaked.talk
        url, headers = f"{self.server.url}/v1/chat/completions", {"x-request-id": name}
        async with self.client.stream("POST", url, json=body, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if f'"{piece}"' in line and (num_pieces := num_pieces - 1) < 0:
                    return True
        return False

    async def _marks(self, name: str) -> set[Mark]:
        answer = await self.client.get(f"{self.server.url}/admin/traces/{name}")
        way = answer.json()["timeline"] if answer.status_code == 200 else []
        return {(one["stage"], one["event"]) for one in way}

    async def _seen(self, phase: str, name: str) -> str:
        """Return where a request was when its client left, as far as its stages have told."""
        if phase == "talking":
            return phase
        marks = await self._marks(name)
        passed = [one for one, mark in self.soaked.phases.items() if mark in marks]
        return passed[-1] if passed else f"sent, on its way to {self.soaked.first}, or in it"


def files_of(server: TinyServer) -> list[str]:
    """Names of the files in the memory that the server's processes share."""
    opened = {Path(one) for targets in open_targets(server).values() for one in targets}
    runs = {one.parent for one in opened if one.parent.name.startswith(PREFIX)}
    assert runs
    return sorted(str(file) for run in runs for file in run.rglob("*"))


async def run(server: TinyServer, soaked: Soaked, num_cancels: int, console: Console) -> None:
    """Soak and report."""
    # A connection that is used again may just then be closed by the server.
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits) as client:
        soak = Soak(server, client, soaked, num_cancels)
        soak.expected = [await soak.pictures(index) for index in range(len(soak.prompts))]
        generations, began_at = server.generations(), time.monotonic()
        descriptors, kb, files = open_files(server), memory_kb(server), files_of(server)
        async with asyncio.TaskGroup() as group:
            for _ in range(NUM_CLIENTS):
                group.create_task(soak.run_client())
        took_s = time.monotonic() - began_at
        console.print(json.dumps(dict(soak.done), indent=1), f"{soak.done.total()} hung up,")
        await asyncio.to_thread(check_that_nothing_is_held, server)
        for index in range(len(soak.prompts)):
            await soak.check(index)
    assert server.generations() == generations
    assert files_of(server) == files
    console.print(f"{soak.num_answered} were answered before they could;")
    console.print(f"{soak.num_finished} equal their solo run; {took_s:.0f} s; nothing is held")
    console.print("descriptors before, after", descriptors, open_files(server))
    console.print("KB before, after", kb, memory_kb(server))


def main() -> int:
    """Write a tiny checkpoint, serve it, soak it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cancels", type=int, default=1000)
    parser.add_argument("--tiny", choices=FAMILIES_SOAKED, default="bagel")
    parser.add_argument("--log", type=Path, default=Path(".cache/soak-images.log"))
    given = parser.parse_args()
    given.log.parent.mkdir(parents=True, exist_ok=True)
    with soaked_server(given.tiny, given.log) as server:
        asyncio.run(run(server, FAMILIES_SOAKED[given.tiny], given.cancels, Console(width=120)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
