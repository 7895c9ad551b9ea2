"""The announcement of a pipeline's arguments, which a stage upstream makes."""

import msgspec

Value = bool | int | float | str | list[str]


class RowsToCome(msgspec.Struct, frozen=True):
    """An argument of rows, float [texts, longest, size]: they follow as `Rows` of its name.

    `first`: the position of a text's first row. `lengths`: the rows of each text. `mask`: the name
    of the argument that says where there are rows, int64 [texts, longest]; empty: none does.
    `left_out`: of each text the spans of positions, from a first up to another, whose rows are sent
    and no part of the argument; they count in no length.
    """

    first: int
    lengths: list[int]
    mask: str = ""
    left_out: list[list[tuple[int, int]]] = []


class KvToCome(msgspec.Struct, frozen=True):
    """An argument of cached keys and values, a list of tensors: they follow as `KeysAndValues`.

    `lengths`: the tokens of each text.
    """

    lengths: list[int]


class ArgumentsToCome(msgspec.Struct, frozen=True):
    """`about` of an `Open`: arguments of a pipeline's call, by their names.

    `rows`: those of hidden states. `ids`: the shapes of those of int64, which follow whole as
    `Ids`. `kv`: those of keys and values. `values`: those that are known. `replaces`: fields of the
    request which are arguments otherwise, and are not with these. `is_nothing`: no call is to be
    made. `listed`: those of `ids` that the call takes as lists of rows.
    """

    rows: dict[str, RowsToCome] = {}
    ids: dict[str, list[int]] = {}
    values: dict[str, Value] = {}
    replaces: list[str] = []
    is_nothing: bool = False
    listed: list[str] = []
    kv: dict[str, KvToCome] = {}

    @property
    def names(self) -> set[str]:
        """Returns the fields of a request that are not arguments themselves."""
        return {*self.replaces, *self.rows, *self.ids, *self.values, *self.kv}
