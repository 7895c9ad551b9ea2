"""Where the stages of a graph run: on the server's own machine, or on the nodes of a Ray cluster.

On a cluster a stage says how many GPUs it wants and not which, and what else it takes of a node.
"""

import math
from collections.abc import Collection, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

RAY = "ray"
GPU, CPU = "GPU", "CPU"  # Ray's names of resources
NUM_GPUS = "num_gpus"  # where a graph keeps the number that was written as `gpus`

Amount = Annotated[float, Field(strict=True, ge=0, le=1 << 20, allow_inf_nan=False)]


class LinkPlace(BaseModel):
    """How the links of a run's nodes find and know each other.

    `port`: where each listens; 0: any free one. `certificate`, `key`: files in PEM that every node
    has at these paths; with them what goes between nodes is encrypted.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    port: Annotated[int, Field(strict=True, ge=0, le=65535)] = 0
    certificate: str = ""
    key: str = ""

    @model_validator(mode="after")
    def _both_files(self) -> "LinkPlace":
        if bool(self.certificate) != bool(self.key):
            raise ValueError("TLS needs both a certificate and its key")
        return self


class Placement(BaseModel):
    """`placement:` of a graph file.

    `address`: of the Ray cluster; `auto`: the one that this machine is a node of. `strategy`: how
    Ray spreads the stages over its nodes, in its own words.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    by: Literal["local", "ray"] = "local"
    address: Annotated[str, Field(min_length=1)] = "auto"
    strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "PACK"
    link: LinkPlace = LinkPlace()

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: object) -> object:
        return {"by": value} if isinstance(value, str) else value

    @property
    def is_on_nodes(self) -> bool:
        """Returns whether stages run on nodes that a cluster chooses."""
        return self.by == RAY


def number_problem(number: float) -> str:
    """Why no such number of GPUs can be had; empty if it can."""
    if not math.isfinite(number) or number <= 0:
        return f"{number!r} GPUs; a stage without one leaves the key out"
    if number > 1 and number != int(number):
        return f"{number!r} GPUs: a part of one, or whole ones"
    return ""


def stage_problem(
    placement: Placement, gpus: Collection[object], num_gpus: float, resources: Mapping[str, float]
) -> tuple[str, str] | None:
    """Why a stage cannot be placed, and its key; None if it can be."""
    if placement.is_on_nodes:
        if gpus:
            return "on Ray's nodes it is how many GPUs, not which: a number", "gpus"
        if GPU in resources:
            return "how many GPUs a stage gets is said by `gpus`", "resources"
        return None
    if num_gpus:
        return "how many GPUs is for `placement: ray`; here it is which: a list", "gpus"
    if resources:
        return "resources are those of a node: only with `placement: ray`", "resources"
    return None


def bundle_of(num_gpus: float, resources: Mapping[str, float]) -> dict[str, float]:
    """Returns what a stage takes of its node, by Ray's names: a CPU, if the graph does not say."""
    wanted = {CPU: 1.0, **resources, **({GPU: num_gpus} if num_gpus else {})}
    return {name: amount for name, amount in wanted.items() if amount}
