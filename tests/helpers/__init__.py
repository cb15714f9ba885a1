"""What several test modules share."""

from typing import TypeVar

T = TypeVar("T")


def some(value: T | None) -> T:
    """The value, which is not None."""
    assert value is not None
    return value
