"""Versions of the packages, the machine, and the revision of the code."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

PACKAGES = (
    *("fidec", "jax", "jaxlib", "flax", "optax"),
    *("numpy", "mujoco", "ogbench", "gymnasium", "gymnasium-robotics"),
)


def environment(dataset: dict[str, Any] | None = None) -> dict[str, Any]:
    """Everything besides the configuration that may change a result. `dataset` is recorded as given."""
    import jax

    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "backend": jax.default_backend(),
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in jax.devices()],
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "git": git_revision(),
        "dataset": dataset,
    }


def version(package: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_revision(source: Path | None = None) -> dict[str, Any] | None:
    """Commit of the checkout that holds fidec, and whether its tracked files differ; None if installed.

    `source` has to be tracked there: a virtual environment inside some other repository does not count.
    """
    source = source or Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(source.parent), *arguments]
        run = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return run.stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "--", source.name)
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None
