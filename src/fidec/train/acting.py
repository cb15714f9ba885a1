"""How a policy acts: one object with the options of acting, and the batched policy under evaluation and serving.

A new option is a field of `ActOptions` and, if it is a dial, a keyword of the acting functions of the methods that
have it (`fidec.algos.common.base.Act`). Calls, commands, requests to a server and exports take it from there.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, lru_cache, partial, wraps
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from fidec.errors import ConfigError
from fidec.parts import Observations
from fidec.train.action_chunks import ChunkExecutor
from fidec.types import Spec

if TYPE_CHECKING:
    from fidec.algos import Algorithm

_LACKS = "lacks"  # what a method without the dial lacks, for the error message


def _dial(lacks: str) -> Any:
    """A factor that acting functions take as a keyword. 1 acts as published."""
    return field(default=None, metadata={_LACKS: lacks})


@dataclass(frozen=True)
class ActOptions:
    """How a policy acts. None is the policy's own default (`resolved`)."""

    candidates: int | None = None
    """Actions drawn for each observation, of which the critic picks the best. By default as the policy was trained
    with."""
    noise: float | None = _dial("cannot scale its noise")
    """Factor of the policy's random draws: 1 acts as published, 0 without noise. By default 1."""
    strength: float | None = _dial("does not move a base action by a displacement")
    """Factor of the displacement of a refined policy: 1 acts as published, 0 as the base policy. Only for methods
    that move a base action (fidec, deflow, fidec_closed_form). By default 1."""
    replan: int | None = None
    """For policies that choose chunks of actions: steps that are played before the next chunk is chosen. By default
    as in training."""
    ensemble: float | None = None
    """With --replan below the length of a chunk: the mean of all chunks that have the step, with the weights
    exp(-m i) for this m, i = 0 for the oldest chunk. By default as in training."""

    def __post_init__(self):
        for name in ("candidates", "replan"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ConfigError(f"{name} must be at least 1, not {count}")
        for name in DIALS:
            factor = getattr(self, name)
            if factor is not None and not (math.isfinite(factor) and factor >= 0):
                raise ConfigError(f"{name} must be a finite number that is not negative, not {factor}")

    @classmethod
    def of(cls, options: Any) -> ActOptions:
        """The fields of a larger set of options, such as those of a command."""
        return cls(*(getattr(options, name) for name in NAMES))

    def given(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}

    def resolved(self, defaults: ActOptions) -> ActOptions:
        """The options with those of `defaults` where none is given. It is the one place where defaults enter."""
        return ActOptions(**{**defaults.given(), **self.given()})

    def of_base(self) -> ActOptions:
        """The same for the base policy: a single draw, because the best of several would not be the behaviour."""
        return replace(self, candidates=1, strength=1.0)

    @cached_property
    def program(self) -> tuple[Any, ...]:
        """What is compiled for these options: the candidates, and which dials differ from 1."""
        return self.candidates, *(getattr(self, name) == 1 for name in DIALS)

    def function(self, algorithm: Algorithm, base: Literal["no", "too", "only"] = "no") -> Callable[..., Any]:
        """`act(state, observations, key, **dials)` of the method, with these candidates.

        Its result is the actions, with `base` "too" (actions, base actions), and with "only" the base actions.
        Raises ConfigError if the method has no candidates or no base actions.
        """
        return _function(algorithm, self.candidates or 1, base)

    def dials(self, act: Callable[..., Any]) -> dict[str, np.float32]:
        """The keyword arguments of `act` for these dials. A dial of 1 is left out.

        So every method can act with dials of 1, by the same program and with the same bits. Raises ConfigError if the
        method does not have a dial.
        """
        arguments = {}
        for name in DIALS:
            factor = getattr(self, name)
            if factor is None or factor == 1:
                continue
            if not supports(act, name):
                raise ConfigError(
                    f"the method {DIALS[name]}, so {name} must be 1, not {factor}: its acting functions have no "
                    f"keyword `{name}`"
                )
            arguments[name] = np.float32(factor)
        return arguments


NAMES = tuple(option.name for option in fields(ActOptions))
DIALS = {option.name: option.metadata[_LACKS] for option in fields(ActOptions) if option.metadata}
OF_A_CALL = ("candidates", *DIALS)  # what a record of actions has to name
PUBLISHED = ActOptions(**{"candidates": 1, **dict.fromkeys(DIALS, 1.0)})
AS_TRAINED = ActOptions()  # all by the policy's own defaults


class CallArguments(TypedDict, total=False):
    """The fields of `ActOptions` as arguments of a policy's call, which gives a whole chunk."""

    candidates: int | None
    noise: float | None
    strength: float | None


class ActArguments(CallArguments, total=False):
    """All fields of `ActOptions` as arguments of a function."""

    replan: int | None
    ensemble: float | None


@lru_cache(maxsize=64)  # the same function for the same arguments, so that what is compiled for it is found again
def _function(algorithm: Algorithm, candidates: int, base: str) -> Callable[..., Any]:
    if candidates > 1 and algorithm.choose is None:
        raise ConfigError("the method has one action for an observation: there are no candidates to choose from")
    if base != "no" and algorithm.act_with_base is None:
        raise ConfigError("the method has no base policy: its action is not a refined one")
    plain = algorithm.choose if candidates > 1 else algorithm.act
    act: Any = plain if base == "no" else algorithm.act_with_base
    act = partial(act, candidates=candidates) if candidates > 1 else act
    if base != "only":
        return act

    @wraps(act)
    def base_actions(*arguments: Any, **dials: Any) -> Any:
        return act(*arguments, **dials)[1]

    return base_actions


@lru_cache(maxsize=32)
def supports(act: Callable[..., Any], dial: str) -> bool:
    """Whether an acting function takes the dial of that name."""
    return dial in inspect.signature(act).parameters


@lru_cache(maxsize=32)  # one compilation serves all evaluations of a run, and a choice among several runs
def batched_policy(act: Callable[..., Any], key_of: Callable[..., Any]) -> Callable[..., Any]:
    """`actions(state, observations, place, dials)`: an acting function for rows with a random key each, compiled.

    `key_of(*place)` is the key of a row. Each array of `place`, and each dial, has an entry for each row or is a
    single one for all of them. So a row has the same action whatever the others are.
    """
    import jax

    @jax.jit
    def actions(state: Any, observations: Observations, place: tuple[Any, ...], dials: dict[str, Any]) -> Any:
        def row(observation: Any, place: tuple[Any, ...], dials: dict[str, Any]) -> Any:
            return act(state, observation, key_of(*place), **dials)

        axes = jax.tree.map(lambda array: 0 if array.ndim else None, (place, dials))
        return jax.vmap(row, in_axes=(0, *axes))(observations, place, dials)

    return actions


def key_of_call(seed: Any, call: Any) -> Any:
    """The key of a call of a policy after `Policy.reset(seed)`."""
    from fidec import rng

    return rng.at(rng.stream(seed, "act"), call)


def episode_policy(
    algorithm: Algorithm, state: Any, key: Any, spec: Spec, options: ActOptions, *, base: bool = False
) -> Callable[..., np.ndarray]:
    """A policy for one `EnvPool.run`: environment i draws from the key at (its episode, its step).

    So an episode gets the same random numbers whatever runs beside it, and the base policy (`base`) is evaluated with
    the same random numbers as the refined one. Chunks are played (`fidec.train.action_chunks`).
    """
    from fidec import rng

    options = options.of_base() if base else options
    spec = spec.played(options.replan, options.ensemble)
    act = options.function(algorithm, "only" if base else "no")
    run, dials = batched_policy(act, rng.at), options.dials(act)

    def actions(observations: Observations, episodes: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return np.asarray(run(state, observations, (key, episodes, steps), dials))

    if spec.chunk == 1:
        return actions
    executor: ChunkExecutor | None = None

    def play(observations: Observations, episodes: np.ndarray, steps: np.ndarray) -> np.ndarray:
        nonlocal executor
        executor = executor or ChunkExecutor(spec, len(steps))
        return executor(lambda: actions(observations, episodes, steps), observations, episodes, steps)

    return play
