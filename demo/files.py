"""Files of answers, kept while the page runs."""

from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class FileStore:
    """A folder that goes with the page."""

    folder: Path

    def save(self, content: bytes, ending: str) -> str:
        """Keep bytes as a file; its path."""
        path = self.folder / f"{uuid4().hex[:12]}{ending}"
        path.write_bytes(content)
        return str(path)
