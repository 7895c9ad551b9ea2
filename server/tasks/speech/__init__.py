"""Given texts that are spoken: cut to pieces, and with whose voice."""
