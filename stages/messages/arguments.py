"""The announcement of a pipeline's arguments, which a stage upstream makes."""

import msgspec

Value = bool | int | float | str


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


class ArgumentsToCome(msgspec.Struct, frozen=True):
    """`about` of an `Open`: arguments of a pipeline's call, by their names.

    `rows`: those of hidden states. `ids`: the shapes of those of int64, which follow whole as
    `Ids`. `values`: those that are known. `replaces`: fields of the request which are arguments
    otherwise, and are not with these. `is_nothing`: no call is to be made. `listed`: those of `ids`
    that the call takes as lists of rows.
    """

    rows: dict[str, RowsToCome] = {}
    ids: dict[str, list[int]] = {}
    values: dict[str, Value] = {}
    replaces: list[str] = []
    is_nothing: bool = False
    listed: list[str] = []

    @property
    def names(self) -> set[str]:
        """Returns the fields of a request that are not arguments themselves."""
        return {*self.replaces, *self.rows, *self.ids, *self.values}
