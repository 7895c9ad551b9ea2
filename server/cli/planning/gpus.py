"""Kinds of GPUs, and numbers of them such as `8xH200` or `24x80GB`."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, PositiveFloat, TypeAdapter

KINDS_FILE = Path(__file__).with_name("gpus.yaml")
ASKED = re.compile(r"(?:([1-9]\d{0,4})x)?(\w+)", re.IGNORECASE)


class GpuKind(BaseModel):
    """A GPU's names and its memory in GB."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    memory_gb: PositiveFloat
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gpus:
    """GPUs of one kind, in machines of `machine` GPUs; the last machine may have fewer."""

    count: int
    kind: GpuKind
    machine: int = 8


@cache
def known_kinds() -> dict[str, GpuKind]:
    """Returns every kind by each of its names, in capitals."""
    read = yaml.safe_load(KINDS_FILE.read_text("utf-8"))
    kinds = TypeAdapter(list[GpuKind]).validate_python(read)
    return {name.upper(): kind for kind in kinds for name in (kind.name, *kind.also)}


def read_gpus(text: str, machine: int = 8) -> Gpus:
    """Reads `8xH200`; raises ValueError with what is allowed."""
    found = ASKED.fullmatch(text.strip())
    kind = known_kinds().get(found[2].upper()) if found else None
    if found is None or kind is None:
        names = ", ".join(known_kinds())
        raise ValueError(f"--gpus {text}: must be such as 8xH200 or 24x80GB; kinds: {names}")
    return Gpus(int(found[1] or 1), kind, machine)
