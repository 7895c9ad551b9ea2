"""A checkpoint of the family: how its answers end. `omnistage tiny shout FOLDER` calls it."""

import json
from pathlib import Path


def write(folder: Path, seed: int) -> None:
    """Another seed has another ending, as random weights would have."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "shout", "ending": "!" * (1 + seed % 3)}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
