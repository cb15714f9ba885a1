"""The part of a file that has come so far, and what is needed to ask for the rest of the same file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from fidec.data.cache import sidecar_path
from fidec.errors import DataError
from fidec.store.files import find_json, write_json


@dataclass(frozen=True)
class Facts:
    """What the server said: `validator` (ETag or Last-Modified) names this very version of the file."""

    validator: str | None = None
    total: int | None = None
    sha256: str | None = None


class Part:
    """`.NAME.HASH.part` beside the target. Each address has its own: two hosts' bytes are never mixed."""

    def __init__(self, folder: Path, name: str, url: str):
        self.name = name
        self.path = folder / f".{name}.{hashlib.sha256(url.encode()).hexdigest()[:8]}.part"
        self.facts_path = sidecar_path(self.path)

    def size(self) -> int:
        return self.path.stat().st_size if self.path.is_file() else 0

    def facts(self) -> Facts:
        """What was noted; nothing if the note is missing or unreadable, which only means to start anew."""
        try:
            return Facts(**(find_json(self.facts_path) or {}))
        except TypeError:
            return Facts()

    def note(self, facts: Facts) -> None:
        write_json(self.facts_path, asdict(facts))

    def write(self, offset: int, chunks: Iterable[bytes], count: Callable[[int], None]) -> int:
        """Put `chunks` at `offset`, cut off what was behind it, and return the new size."""
        source = iter(chunks)
        with open(self.path, "r+b" if self.path.exists() else "wb", buffering=0) as file:
            file.seek(offset)
            file.truncate()
            while (chunk := next(source, None)) is not None:
                try:
                    left = memoryview(chunk)
                    while left:
                        left = left[file.write(left) :]
                except OSError as error:  # a full disk: no other server would help
                    raise DataError(f"cannot write {self.path}: {error.strerror}. Make room on the disk.") from error
                count(len(chunk))
            os.fsync(file.fileno())
            return file.tell()

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
        self.facts_path.unlink(missing_ok=True)
