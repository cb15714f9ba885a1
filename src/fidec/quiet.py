"""Hide warnings of simulators, and seed the global random numbers that OGBench uses."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings that a user cannot act on: glfw's missing display, the float precision of OGBench's spaces."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def global_numpy_seed(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator, from which OGBench's mazes draw, and restore the caller's state afterwards."""
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(state)
