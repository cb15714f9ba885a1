"""How a method acts: with candidates, with base actions, with factors of noise and displacement, in many lanes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from fidec import algos, rng
from fidec.errors import ConfigError
from fidec.parts import Observations
from fidec.train.chunks import OpenLoop
from fidec.types import Spec


def select_act(algorithm: algos.Algorithm, candidates: int = 1, return_base: bool = False) -> Callable[..., Any]:
    """`act(state, observations, key)` with this many candidates, with or without base actions.

    Raises ConfigError if the method has no candidates or no base actions.
    """
    if candidates > 1 and algorithm.choose is None:
        raise ConfigError("the method has one action for an observation: there are no candidates to choose from")
    if return_base:
        if algorithm.act_with_base is None:
            raise ConfigError("the method has no base policy: its action is not a refined one")
        return partial(algorithm.act_with_base, **({"candidates": candidates} if candidates > 1 else {}))
    if candidates > 1 and algorithm.choose is not None:
        return partial(algorithm.choose, candidates=candidates)
    return algorithm.act


def dials(act: Callable[..., Any], *, noise: float = 1.0, strength: float = 1.0) -> dict[str, np.float32]:
    """The keyword arguments of `act` for these factors. A factor of 1 is left out.

    So every method can act with factors of 1, by the same program and with the same bits. Raises ConfigError if a
    number is negative or not finite, or if the method does not have the factor.
    """
    arguments = {}
    for name, value in (("noise", noise), ("strength", strength)):
        if value == 1:
            continue
        if not (np.isfinite(value) and value >= 0):
            raise ConfigError(f"{name} must be a finite number that is not negative, not {value}")
        if not has_dial(act, name):
            raise ConfigError(
                f"the method {_LACKS[name]}, so {name} must be 1, not {value}: its acting functions have no keyword "
                f"`{name}`"
            )
        arguments[name] = np.float32(value)
    return arguments


_LACKS = {"noise": "cannot scale its noise", "strength": "does not move a base action by a displacement"}


@lru_cache(maxsize=32)
def has_dial(act: Callable[..., Any], name: str) -> bool:
    """Whether `act` takes the factor of that name."""
    return name in inspect.signature(act).parameters


@lru_cache(maxsize=32)  # one compilation serves all evaluations of a run, and a choice among several runs
def _lanes(algorithm: algos.Algorithm, candidates: int, base: bool):
    select = select_act(algorithm, candidates, base)

    @jax.jit
    def act(state, key, observations, episodes, steps, **factors):
        def one(observation, episode, step):
            return select(state, observation, rng.at(key, episode, step), **factors)

        actions = jax.vmap(one)(observations, episodes, steps)
        return actions[1] if base else actions

    return select, act


def lane_actor(
    algorithm: algos.Algorithm,
    state: Any,
    key: Any,
    spec: Spec,
    *,
    candidates: int = 1,
    base: bool = False,
    noise: float = 1.0,
    strength: float = 1.0,
):
    """A policy for one `EnvPool.run`: lane i draws from the key at (its episode, its step).

    So an episode gets the same random numbers whatever runs beside it, and the base policy (`base`) is evaluated with
    the same random numbers as the refined one. Chunks are played (`fidec.train.chunks`).
    """
    select, act = _lanes(algorithm, candidates, base)
    factors = dials(select, noise=noise, strength=strength)

    def actions(observations: Observations, episodes: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return np.asarray(act(state, key, observations, episodes, steps, **factors))

    if spec.chunk == 1:
        return actions
    playing: OpenLoop | None = None

    def play(observations: Observations, episodes: np.ndarray, steps: np.ndarray) -> np.ndarray:
        nonlocal playing
        playing = playing or OpenLoop(spec, len(steps))
        return playing(lambda: actions(observations, episodes, steps), observations, episodes, steps)

    return play
