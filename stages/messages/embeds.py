"""What a text encoder tells the denoiser of the prompt embeddings that will come."""

import msgspec


class EmbedsToCome(msgspec.Struct, frozen=True):
    """`about` of an `Open`; the rows follow as `Rows` named by `text` and `row`.

    `first`: the position of a text's first row. `lengths`: for each argument of the pipeline, the
    rows of each of its texts.
    """

    first: int
    lengths: dict[str, list[int]]
