"""Carries finished parts of a training from machine to machine: weights alone, in small files."""

import argparse
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from write import STATES

PIECE = 15 << 20  # bytes of a file
PARTS = ("thinker", "code2wav", "drawings", "talker")
NOTES = ("train.log", "times.log", "heard.json")


def weights_of(state: dict[str, Any], name: str) -> dict[str, Any]:
    """A training's state without its optimizer; what is served in bfloat16, as write.py has it."""
    module, prefix = STATES[name]
    kept = {
        key: one.bfloat16() if key.startswith(prefix) and one.is_floating_point() else one
        for key, one in state[module].items()
    }
    return {module: kept, "at": state["at"]}


def keep(out: Path, kept: Path, names: Sequence[str]) -> list[Path]:
    """Write the pieces; a part that is not finished is left out, and said."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for name in names:
            if not (out / f"{name}.done").exists():
                print(f"{name}: not finished", flush=True)
                continue
            if name == "drawings":
                tar.add(out / "image" / "checkpoint", "image/checkpoint")
            else:
                state = torch.load(out / f"{name}.pt", map_location="cpu", weights_only=True)
                data = io.BytesIO()
                torch.save(weights_of(state, name), data)
                entry = tarfile.TarInfo(f"{name}.pt")
                entry.size = len(data.getvalue())
                tar.addfile(entry, io.BytesIO(data.getvalue()))
            tar.add(out / f"{name}.done", f"{name}.done")
        for note in NOTES:
            if (out / note).exists():
                tar.add(out / note, note)
    kept.mkdir(parents=True, exist_ok=True)
    whole, pieces = packed.getvalue(), []
    for number, start in enumerate(range(0, len(whole), PIECE)):
        pieces.append(kept / f"kept-{number:02d}")
        pieces[-1].write_bytes(whole[start : start + PIECE])
    print(f"{len(pieces)} files, {len(whole) / (1 << 20):.1f} MiB", flush=True)
    return pieces


def bring_back(kept: Path, out: Path) -> None:
    """Unpack the pieces of one call of `keep`."""
    whole = b"".join(piece.read_bytes() for piece in sorted(kept.glob("kept-*")))
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(whole), mode="r:gz") as tar:
        tar.extractall(out, filter="data")


def main() -> None:
    """Pack parts of a training's folder, or unpack them into one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(".cache/small/out"))
    parser.add_argument("--kept", type=Path, required=True, help="the folder of the pieces")
    parser.add_argument("--back", action="store_true", help="from there into --out")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: none of {', '.join(PARTS)}")
    if given.back:
        bring_back(given.kept, given.out)
    else:
        keep(given.out, given.kept, given.parts or PARTS)


if __name__ == "__main__":
    main()
