"""The columns of the step table that every talker of codec frames has."""

TEXT = "text"  # a token id of the text
CODEC = "codec"  # an id of the talker's own vocabulary
POSITION = "position"  # of M-RoPE, one value an axis
