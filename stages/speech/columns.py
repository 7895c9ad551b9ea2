"""The columns of the step table that every talker has."""

POSITION = "position"  # of M-RoPE, one value an axis
