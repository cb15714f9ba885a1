"""The only place where random keys are derived.

Every random number is a function of (seed, stream, step). There is no generator state to save, so a resumed
run draws exactly what an uninterrupted one would have drawn, and adding a new stream changes no other.
"""

from __future__ import annotations

import zlib

import jax

from fidec.types import PRNGKey

STREAMS = ("init", "batch", "update", "evaluate", "explore", "act", "propose", "validate")


def stream(seed: int, name: str) -> PRNGKey:
    """The root key of a named stream. Names hash by CRC-32, which is the same in every process."""
    if name not in STREAMS:
        raise ValueError(f"unknown random stream {name!r}; fidec.rng.STREAMS has {', '.join(STREAMS)}")
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))


def at(key: PRNGKey, *position) -> PRNGKey:
    """The key at a position (a step, or an episode and a step) of a stream."""
    for index in position:
        key = jax.random.fold_in(key, index)
    return key
