"""The announcement of a pipeline's arguments, which a stage upstream makes."""

import msgspec

Value = bool | int | float | str


class RowsToCome(msgspec.Struct, frozen=True):
    """An argument of rows, float [texts, longest, size]: they follow as `Rows` of its name.

    `first`: the position of a text's first row. `lengths`: the rows of each text. `mask`: the name
    of the argument that says where there are rows, int64 [texts, longest]; empty: none does.
    """

    first: int
    lengths: list[int]
    mask: str = ""


class ArgumentsToCome(msgspec.Struct, frozen=True):
    """`about` of an `Open`: arguments of a pipeline's call, by their names.

    `rows`: those of hidden states. `ids`: the shapes of those of int64, which follow whole as
    `Ids`. `values`: those that are known. `replaces`: fields of the request which are arguments
    otherwise, and are not with these.
    """

    rows: dict[str, RowsToCome] = {}
    ids: dict[str, list[int]] = {}
    values: dict[str, Value] = {}
    replaces: list[str] = []

    @property
    def names(self) -> set[str]:
        """Returns the fields of a request that are not arguments themselves."""
        return {*self.replaces, *self.rows, *self.ids, *self.values}
