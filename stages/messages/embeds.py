"""The announcement of a text encoder's prompt embeddings to the denoiser."""

import msgspec


class EmbedsToCome(msgspec.Struct, frozen=True):
    """`about` of an `Open`; the rows follow as `Rows` named by `text` and `row`.

    `first`: the position of a text's first row. `lengths`: for each argument of the pipeline, the
    rows of each of its texts.
    """

    first: int
    lengths: dict[str, list[int]]
