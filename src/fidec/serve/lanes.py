"""The policy for several requests at once, each with random numbers of its own.

Request i draws from the key at (its seed, its step), as `Policy.reset(seed)` and that many calls would. So its action
does not depend on which requests share its batch. Batches are padded to a few sizes, which are compiled at the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np

from fidec import rng
from fidec.errors import ConfigError
from fidec.parts import arrays_of
from fidec.serve.asking import Ask
from fidec.train.acting import dials, has_dial, select_act
from fidec.train.policy import Policy

SIZES = (1, 2, 4, 8, 16, 32, 64)


class Lanes:
    """`lanes(asks)` gives the actions, (requests, chunk, dimensions), in the units of the data."""

    def __init__(self, policy: Policy, candidates: int = 1, largest: int = SIZES[-1]):
        if largest not in SIZES:
            raise ConfigError(f"the largest batch is one of {', '.join(map(str, SIZES))}, not {largest}")
        self.policy, self.spec = policy, policy.spec
        self.sizes = tuple(size for size in SIZES if size <= largest)
        act = select_act(policy.algorithm, candidates)
        self.check_dials = partial(dials, act)
        self.dials = tuple(name for name in ("noise", "strength") if has_dial(act, name))
        self._leaves, structure = jax.tree.flatten(policy.state)

        @jax.jit
        def run(leaves, observations, places, factors):
            state = jax.tree.unflatten(structure, leaves)

            def one(observation, place, factor):
                key = rng.at(rng.stream(place[0], "act"), place[1])
                return act(state, observation, key, **dict(zip(self.dials, factor, strict=True)))

            return jax.vmap(one)(observations, places, factors)

        self._run = run

    def warm_up(self, size: int) -> None:
        """Compile for batches of this size."""
        ask = Ask(self.spec.zeros(), 0, 0, 1.0, 1.0)
        for _ in range(3):  # the call after the first one takes milliseconds too
            self([ask] * size)

    def __call__(self, asks: Sequence[Ask]) -> np.ndarray:
        count = len(asks)
        size = next(size for size in self.sizes if size >= count)
        observations = self.spec.zeros(size)
        places = np.zeros((size, 2), np.uint32)
        factors = np.ones((size, len(self.dials)), np.float32)
        for lane, ask in enumerate(asks):
            for every, own in zip(arrays_of(observations), arrays_of(ask.observation), strict=True):
                every[lane] = own
            places[lane] = ask.seed, ask.step
            factors[lane] = [getattr(ask, name) for name in self.dials]
        actions = np.asarray(self._run(self._leaves, observations, places, factors))[:count]
        return self.spec.to_user_units(self.spec.steps_of(actions))
