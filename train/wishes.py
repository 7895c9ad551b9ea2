"""Judges the captions of `small` for wishes to draw; its caption is the prompt of the drawing."""

import argparse
import random
from collections import Counter

import httpx
from image.sheet import held_out
from language.questions import question
from support.oracles.drawings import asked


def wishes(count: int) -> list[tuple[str, str, str]]:
    """Kind, wish and right caption of wishes as `small` was taught them, held out, no two alike."""
    pick, made = random.Random(13), dict[str, tuple[str, str, str]]()
    while len(made) < count:
        _, wish, caption = question(pick, ("draw",), held_out=True)
        kind = "of a shape" if means(wish, wish) else "of a digit"
        made.setdefault(wish, (kind, wish, caption))
    return list(made.values())


def main() -> None:
    """Print the share of right captions, per kind of wish."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--count", type=int, default=200)
    given = parser.parse_args()
    client = httpx.Client(base_url=given.url, timeout=300)
    known, right = Counter[str](), Counter[str]()
    every = wishes(given.count)
    for one in held_out(given.count):  # as `small-image` was taught: places, several shapes, stars
        has_star = any(thing.kind == "star" for thing in one.things)
        kind = f"{len(one.things)} of small-image's, {'with' if has_star else 'without'} stars"
        every.append((kind, one.prompt, ""))
    for kind, wish, caption in every:
        body = {"messages": [{"role": "user", "content": wish}], "temperature": 0}
        reply = client.post("/v1/chat/completions", json=body)
        reply.raise_for_status()
        said = reply.json()["choices"][0]["message"]["content"]
        is_right = said == caption if caption else means(said, wish)
        known[kind] += 1
        right[kind] += is_right
        if not is_right:
            print(f"{kind}: {wish!r} -> {said!r}", flush=True)
    for kind, count in sorted(known.items()):
        print(f"wishes {kind}: {right[kind]} of {count} captions right", flush=True)


def means(caption: str, wish: str) -> bool:
    """A caption asks for the shapes, ground and relation of a wish; False if one has no shape."""
    try:
        made, wanted = asked(caption), asked(wish)
    except ValueError:
        return False
    return (sorted(map(str, made.shapes)), made.ground, made.relation) == (
        sorted(map(str, wanted.shapes)),
        wanted.ground,
        wanted.relation,
    )


if __name__ == "__main__":
    main()
