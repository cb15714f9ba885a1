"""Optional packages: import them where they are used, and name the extra that installs them if they are missing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fidec.errors import ConfigError
from fidec.quiet import quiet


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
