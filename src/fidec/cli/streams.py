"""Standard output and standard error that never raise: the reader of a pipe may go away, a disk may be full."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO


class _Lossy(io.FileIO):
    """A file descriptor. After the first error, which it keeps, everything that is written to it is dropped."""

    error: OSError | None = None

    def write(self, data) -> int:
        if self.error is None:
            try:
                return super().write(data)
            except OSError as error:
                self.error = error
        return len(data)


@contextmanager
def lossy_streams() -> Iterator[list[OSError]]:
    """Inside, stdout and stderr cannot raise. Afterwards the list holds the error of stdout, if there was one.

    Characters that the encoding lacks are written as \\uXXXX. A stream that was closed is the null device, so that no
    other file gets its number. Streams that somebody has replaced, as pytest does, are left alone.
    """
    _open_closed()
    kept, errors = (sys.stdout, sys.stderr), []
    sys.stdout, sys.stderr = _lossy(sys.stdout, sys.__stdout__, 1), _lossy(sys.stderr, sys.__stderr__, 2)
    try:
        yield errors
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
        if isinstance(raw, _Lossy) and raw.error is not None:
            errors.append(raw.error)
        sys.stdout, sys.stderr = kept


def _lossy(stream: TextIO, original: TextIO | None, number: int) -> TextIO:
    if stream is not original or stream.fileno() != number:
        return stream
    stream.flush()
    buffer = io.BufferedWriter(_Lossy(number, "w", closefd=False))
    line_by_line = number == 2 or stream.isatty()
    return io.TextIOWrapper(buffer, stream.encoding, errors="backslashreplace", line_buffering=line_by_line)


def _open_closed() -> None:
    """Open the standard streams that the caller closed (`>&-`); Python has None in their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            stream = os.fdopen(number, "r" if number == 0 else "w", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
