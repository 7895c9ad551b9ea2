"""Media that come in: checked, fetched, read; `audio` encodes what goes out."""
