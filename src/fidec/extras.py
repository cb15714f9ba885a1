"""Optional packages: import them where they are used, and name the extra that installs them if they are missing.

Simulators among them print warnings that a user cannot act on, and draw from NumPy's global generator.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np

from fidec.errors import ConfigError


def require(module: str, extra: str, purpose: str = "this") -> Any:
    """Import `module` without its warnings, or raise a ConfigError with the command that installs it.

    `purpose` is the subject of the error's sentence, such as "task cube-single-play-singletask-v0".
    """
    try:
        with quiet():
            return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        raise ConfigError(f"{purpose} needs the package {package}: pip install 'fidec[{extra}]'") from error


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
