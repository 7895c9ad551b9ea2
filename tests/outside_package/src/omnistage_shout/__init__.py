"""A family of two stages and a connector, in a package of its own."""
