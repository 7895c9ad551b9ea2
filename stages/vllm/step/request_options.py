"""The bridge's options of one request: our part of `extra_args` of its sampling parameters."""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from omnistage.stages.messages.edge import KeysAndValues, Rows
from omnistage.stages.vllm.compat import SamplingParams

Ints = npt.NDArray[np.int32]

KEY = "omnistage"
NONE: Ints = np.zeros(0, np.int32)


class LatePrompt(msgspec.Struct, frozen=True):
    """A request's prompt whose inputs come while it runs; `late_input_options` describes them.

    `inputs` int32 [num_prompt, words], `hidden_positions` and `hidden_sources` int32 [n] by bytes.
    """

    num_prompt: int
    inputs: bytes
    hidden_positions: bytes
    hidden_sources: bytes
    following: tuple[int, int] | None
    first_token_position: int
    position_delta: int
    ends: dict[str, tuple[float, float]]
    fed: dict[str, list[float | list[float]]]
    complete: bool


class ExportedRows(msgspec.Struct, frozen=True):
    """The rows of a request that leave.

    Those of its prompt's tokens with one of `ids`, or of its prompt's positions from `first` on;
    with neither, those of all positions.
    """

    ids: list[int] | None = None
    first: int | None = None

    @property
    def are_all(self) -> bool:
        """Returns whether those of all positions leave."""
        return self.ids is None and self.first is None


class CodeSampling(msgspec.Struct, frozen=True):
    """Sampling of a frame's codes behind its first; a temperature of 0 is greedy."""

    temperature: float = 0.0
    top_k: int = 50
    top_p: float = 0.8
    seed: int = 0


class RequestOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request as the bridge knows it.

    `id` names it along edges. `to`: the stages that get what leaves (None: all that there are).
    `exported`: the rows that leave (None: none); `rows` goes with each chunk of them. `late`: its
    prompt, in an engine with late inputs. `kv`: goes with the keys and values of its prompt, which
    leave an engine that sends such (None: they do not). `sampling` and `model`, of a family's own
    keys, are for the engine's model.
    """

    id: str
    to: list[str] | None = None
    exported: ExportedRows | None = None
    rows: Rows = Rows()
    late: LatePrompt | None = None
    kv: KeysAndValues | None = None
    sampling: CodeSampling = CodeSampling()
    model: dict[str, bytes] = {}

    def extra_args(self) -> dict[str, object]:
        """The entry of a request's `extra_args`, which vLLM hands to the engine as it is."""
        return {KEY: msgspec.msgpack.encode(self)}

    @classmethod
    def of(cls, params: SamplingParams | None) -> "RequestOptions | None":
        """Read them back in the engine; None for a request that is not ours."""
        told = ((params.extra_args if params is not None else None) or {}).get(KEY)
        return msgspec.msgpack.decode(told, type=cls) if isinstance(told, bytes) else None


def late_input_options(
    request_id: str,
    inputs: Ints,
    *,
    hidden_positions: Ints = NONE,
    hidden_sources: Ints = NONE,
    following: tuple[int, int] | None = None,
    first_token_position: int = 0,
    position_delta: int = 0,
    ends: Mapping[str, tuple[float, float]],
    fed: Mapping[str, Sequence[float | list[float]]] | None = None,
    complete: bool = False,
) -> RequestOptions:
    """Describe a request with late inputs.

    `inputs`: the prompt's columns, as `Layout.pack` makes them; hidden row `hidden_sources[k]` of
    the feed goes to position `hidden_positions[k]`, both ascending. `following`, a row's number
    beyond those and a position: it and all rows behind it go there and behind, as many as will
    come. By the tensors that columns are fed by: `fed`, the first values, if they are known, of a
    wide column lists; by those, or by the names of columns `after_rows`: `ends`, the value after
    the last one, then for ever. `first_token_position`: where the first value goes that is fed.
    """
    late = LatePrompt(
        num_prompt=len(inputs),
        inputs=inputs.tobytes(),
        hidden_positions=hidden_positions.astype(np.int32).tobytes(),
        hidden_sources=hidden_sources.astype(np.int32).tobytes(),
        following=following,
        first_token_position=first_token_position,
        position_delta=position_delta,
        ends=dict(ends),
        fed={name: list(values) for name, values in (fed or {}).items()},
        complete=complete,
    )
    return RequestOptions(request_id, late=late)
