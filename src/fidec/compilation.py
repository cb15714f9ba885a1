"""JAX's persistent compilation cache: a program that was compiled before is read from a file instead.

The cache is in the user's cache directory. FIDEC_COMPILE_CACHE names another directory, or is `off`. A directory that
the user has given to JAX itself (JAX_COMPILATION_CACHE_DIR) is left as it is. The files hold machine code that JAX
runs, so a directory that other users can write to is not used. Nothing here stops a run: without a usable directory,
programs are compiled again.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import platformdirs
from filelock import FileLock, Timeout

from fidec.launch import usable_cores

VARIABLE = "FIDEC_COMPILE_CACHE"
LONG_ENOUGH = 0.5  # seconds of compilation from which on a program is kept
LARGEST = 2**30  # bytes; JAX removes the programs that were not used for the longest time
# Names of JAX's files: a program, the time of its last use, and the lock of both.
_PROGRAM, _USED, _LOCK = "-cache", "-atime", ".lockfile"


class Place(NamedTuple):
    """The directory of the cache, or None and the reason why there is none."""

    directory: Path | None
    reason: str = ""


def enable() -> None:
    """Use the cache in this process, if there is a usable directory."""
    import jax

    place = choose()
    if place.directory is None or str(place.directory) == jax.config.values["jax_compilation_cache_dir"]:
        return
    _remove_unfinished(place.directory)
    jax.config.update("jax_compilation_cache_dir", str(place.directory))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LONG_ENOUGH)
    jax.config.update("jax_compilation_cache_max_size", LARGEST)


def choose() -> Place:
    """The cache of this process. Its directory is created, for this user alone."""
    import jax

    if not jax.config.values["jax_enable_compilation_cache"]:
        return Place(None, "off (jax_enable_compilation_cache)")
    chosen, given = os.environ.get(VARIABLE, ""), jax.config.values["jax_compilation_cache_dir"]
    directory = None if chosen.lower() == "off" else _default(chosen)
    if given is not None and given != str(directory):
        return Place(None, f"set in JAX: {given}")
    if directory is None:
        return Place(None, f"off ({VARIABLE})")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        return Place(None, f"off: {directory} cannot be used ({error.strerror})")
    if not os.access(directory, os.W_OK):
        return Place(None, f"off: {directory} cannot be written to")
    if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        return Place(None, f"off: other users can write to {directory}. Run `chmod 700` on it, or remove it")
    return Place(directory)


def describe() -> str:
    """One line for `fidec doctor`."""
    directory, reason = choose()
    if directory is None:
        return reason
    sizes = []
    for path in directory.glob(f"*{_PROGRAM}"):
        with suppress(FileNotFoundError):  # another process has just removed it
            sizes.append(path.stat().st_size)
    return f"{directory} ({len(sizes)} programs, {sum(sizes) / 1e6:.1f} MB)"


def _default(chosen: str) -> Path:
    """The directory for programs of this machine.

    The code that XLA compiles for a CPU depends on its instructions and may depend on the number of cores. The names
    that JAX gives to the files do not contain the latter, and several machines may share a home directory.
    """
    root = Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("fidec")) / "compiled"
    facts = f"{_processor()} {len(usable_cores())}"
    return root / f"{platform.machine()}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"


def _processor() -> str:
    """The instructions that the CPU has, or its name where that is not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):  # no such file outside Linux
        return platform.processor()


def _remove_unfinished(directory: Path) -> None:
    """Remove programs whose writing was interrupted. JAX would read them in vain, and would add no program again.

    A process that is writing holds the lock; then the next process removes them.
    """
    try:
        with FileLock(directory / _LOCK, timeout=0):
            for path in directory.glob(f"*{_PROGRAM}"):
                if not path.with_name(path.name.removesuffix(_PROGRAM) + _USED).exists():
                    path.unlink(missing_ok=True)
    except (OSError, Timeout):
        pass
