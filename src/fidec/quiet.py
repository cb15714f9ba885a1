"""Third parties on a leash: warnings that a user can do nothing about, and OGBench's global random numbers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def quiet() -> Iterator[None]:
    """Hide glfw's complaint about a missing display and gymnasium's about the precision of OGBench's spaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def global_numpy_seed(seed: int) -> Iterator[None]:
    """OGBench's mazes draw from NumPy's global generator: seed it, and leave the caller's as it was."""
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(state)
