"""Media that come in: checked, fetched, read."""
