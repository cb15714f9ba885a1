"""A traced policy as StableHLO, serialised by `jax.export`: for CPU, CUDA and TPU, with a free batch size."""

from __future__ import annotations

import jax

from fidec.errors import ConfigError
from fidec.export.trace import Program

PLATFORMS = ("cpu", "cuda", "tpu")


def serialise(program: Program) -> bytes:
    """The bytes that `jax.export.deserialize` reads. The weights are constants in them."""
    exporting = jax.export.export(jax.jit(program.function()), platforms=PLATFORMS)
    try:
        return bytes(exporting(*program.inputs().values()).serialize())
    except (NotImplementedError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"this policy cannot become StableHLO for {', '.join(PLATFORMS)}: {reason}") from error
