"""Errors a user can cause, each saying what was found, what was expected and what to do.

The command line prints the message of a `FidecError` without a traceback and leaves with its `exit_code`.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class FidecError(Exception):
    """Base of every error that fidec raises on purpose."""

    exit_code = 1


class ConfigError(FidecError):
    """A setting, a task id, a method name or a combination of them that makes no sense."""

    exit_code = 2


class DataError(FidecError):
    """A data set that is missing, broken, hostile or not what it claims to be."""


class EnvError(FidecError):
    """An environment that cannot be made, or that failed in a way that leaves no result."""


class RunError(FidecError):
    """A run directory that cannot be used as asked."""


class CheckpointError(RunError):
    """A checkpoint or a portable policy that is missing, damaged or of another shape."""


class NonFiniteError(RunError):
    """A loss, gradient or parameter became NaN or infinite."""


class OutOfMemoryError(RunError):
    """The machine or its device has not enough memory for the run."""


class BusyError(RunError):
    """Another process holds the run directory. 75 is EX_TEMPFAIL: trying again later may work."""

    exit_code = 75


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Put `where`, a file for example, in front of an error."""
    try:
        yield
    except FidecError as error:
        raise type(error)(f"{where}: {error}") from error
