"""One request: its arguments, and what its call returns."""
