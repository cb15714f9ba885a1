"""A portable policy: safetensors and JSON, usable without the data, the environment or the run.

policy/  policy.json          method, options, specification, origin
         model.safetensors    the arrays that are needed to act
         manifest.json        SHA-256 of both, checked before use
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fidec import algos, rng
from fidec.data.delay import Pending
from fidec.errors import ConfigError
from fidec.parts import Frames, Observations, arrays_of, only_parts
from fidec.store import files, trees
from fidec.store.directories import replacing_directory
from fidec.train.acting import dials, select_act
from fidec.train.chunks import Player
from fidec.types import Part, Spec

MODEL = "model.safetensors"
CARD = "policy.json"
FORMAT = 1
_USUAL: dict[str, Any] = {"candidates": 1, "return_base": False, "noise": 1.0, "strength": 1.0}  # how it is called


class CompilationWarning(UserWarning):
    """A call of a policy compiles, which takes seconds. `Policy.warm_up` does it before."""


class Policy:
    """A trained policy: `policy(observations)` gives actions in the units of the data.

    A policy that was trained with `chunk` > 1 gives the actions of that many steps, (..., chunk, dimensions);
    `policy.player()` plays them one by one.

    Each call draws new noise; `policy(observations, noise=0)` draws none. `strength` scales how far a refined policy
    moves the actions of its base policy. `policy.reset(seed)` restarts the sequence of random numbers, so that a
    rollout can be repeated. The first call compiles; `policy.warm_up()` does it before a control loop starts. A later
    call that compiles again, for another batch size for example, says so with a `CompilationWarning`. A policy of
    images takes several frames, and one with a history several vectors: `policy.frames()` stacks them. A policy of
    several parts takes a dictionary. `spec` describes observations and actions, `state` holds the arrays.
    """

    def __init__(self, algo: str, options: Any, spec: Spec, state: Any, info: dict[str, Any] | None = None):
        self.algo, self.options, self.spec = algo, options, spec
        self.info = info or {}
        self.algorithm = algos.get(algo).build(options, spec)
        self._state = self.algorithm.policy(state)
        self._inputs, self._names = spec.inputs, tuple(part.name for part in spec.parts)
        self._ready: dict[tuple[Any, ...], _Compiled] = {}  # by shape of the observations and by arguments
        self.reset()

    @property
    def state(self) -> Any:
        """The arrays that the method needs to act. They cannot be replaced: compiled calls hold them."""
        return self._state

    def __repr__(self) -> str:
        spec, step = self.spec, self.info.get("step")
        trained = "" if step is None else f", trained for {step} steps"
        return (
            f"Policy({self.algo}{trained}, observations {', '.join(map(str, spec.inputs))}, "
            f"actions {(spec.step_dim,) if spec.chunk == 1 else (spec.chunk, spec.step_dim)})"
        )

    def reset(self, seed: int = 0) -> None:
        """Restart the sequence of random numbers."""
        self._key, self._calls = jax.random.key_data(rng.stream(seed, "act")).tolist(), 0

    def warm_up(self, batch: int | tuple[int, ...] | None = None, **how: Any) -> None:
        """Compile the policy for one observation, or for a batch of this size, without drawing a random number.

        `how` are the arguments of the calls that will follow (`candidates`, `return_base`, `noise`, `strength`). Each
        batch size and each choice of `candidates` and `return_base` is compiled once; of `noise` and `strength` only
        whether they are 1 matters.
        """
        leading = () if batch is None else np.atleast_1d(batch).tolist()
        self._prepare(self.spec.zeros(*leading), False, **{**_USUAL, **how})

    def _prepare(
        self,
        observations: Observations,
        warn: bool,
        /,
        candidates: int,
        return_base: bool,
        noise: float,
        strength: float,
    ) -> _Compiled:
        """Check the arguments, and compile for them and for observations of this shape, unless that was done."""
        if candidates < 1:
            raise ConfigError(f"candidates must be at least 1, not {candidates}")
        self._check_shapes(observations)
        act = select_act(self.algorithm, candidates, return_base)
        factors = dials(act, noise=noise, strength=strength)
        how = (_shapes(observations), candidates, return_base, noise == 1, strength == 1)
        if how in self._ready:
            return self._ready[how]
        if warn:
            chosen = {"candidates": candidates, "return_base": return_base, "noise": noise, "strength": strength}
            warnings.warn(self._advice(observations, **chosen), CompilationWarning, stacklevel=3)
        self._ready[how] = _compile(act, self._state, observations, self._place(), factors)
        return self._ready[how]

    def _observed(self, observations: Any) -> Observations:
        """The parts of the policy as arrays; ConfigError for one that is missing or not finite."""
        if not self._names and isinstance(observations, Mapping) and len(observations) == 1:
            (observations,) = observations.values()  # as in the data
        given = only_parts(observations, self._names)
        if not self._names:
            return _array(self._inputs[0], given)
        return {part.name: _array(part, given[part.name]) for part in self._inputs}

    def _check_shapes(self, observations: Observations) -> None:
        """Raise unless all parts have their shapes and the same leading axes."""
        leading = self.spec.leading(observations)
        for part, array in zip(self.spec.inputs, arrays_of(observations), strict=True):
            if array.shape == (*leading, *part.shape):
                continue
            which = f" of the part {part.name!r}" if part.name else ""
            count, width = self.spec.stack_of(part), self.spec.newest(part)
            single = count > 1 and array.shape[-len(part.shape) :] == (*part.shape[:-1], width)
            hint = f": {count} successive ones, which `policy.frames()` stacks" if single else ""
            wanted = f"(..., {part.shape})" if not leading or part is self.spec.inputs[0] else (*leading, *part.shape)
            raise ConfigError(f"observations{which} have shape {array.shape}; the policy takes {wanted}{hint}")

    def _advice(self, observations: Observations, **how: Any) -> str:
        """What to say about a call that compiles."""
        batch, shape = self.spec.leading(observations), _shapes(observations)
        chosen = [f"{name}={value!r}" for name, value in how.items() if value != _USUAL[name]]
        words = ", ".join(([str(batch[0] if len(batch) == 1 else batch)] if batch else []) + chosen)
        return (
            f"the policy compiles for observations of shape {shape}{' with ' if chosen else ''}{', '.join(chosen)}: "
            f"this call is slow, it may take seconds. `policy.warm_up({words})` before the loop avoids that"
        )

    def _place(self) -> np.ndarray:
        """Where the random numbers of the next call begin: the key of the stream and the number of the call."""
        return np.array((*self._key, self._calls), np.uint32)

    def frames(self) -> Frames:
        """Stack the single observations of a control loop, images or vectors, to observations of this policy."""
        return Frames(self.spec.observations(self.spec.stack_of))

    def pending(self) -> Pending:
        """For a policy with a delay: add the actions that are on their way to the observations of a control loop.

        `pending.reset()` begins an episode; `action = policy(pending(observation))`; `pending.add(action)`. With a
        history or several frames, `frames(pending(observation))`.
        """
        return Pending(self.spec.delay, *self.spec.bounds)

    def player(self, replan: int | None = None, ensemble: float | None = None, **how: Any) -> Player:
        """Play the policy step by step: one action for each observation, a new chunk every `replan` steps.

        `ensemble` is the rate of a mean over all chunks that have the step (`fidec.train.chunks`). By default both
        are those of the training run. `how` are arguments of the policy's calls. The actions are those of single
        observations or of batches of a fixed size.
        """
        return Player(self, self.spec.played(replan, ensemble), **how)

    def __call__(
        self,
        observations: Observations,
        *,
        candidates: int = 1,
        return_base: bool = False,
        noise: float = 1.0,
        strength: float = 1.0,
    ) -> Any:
        """Actions for one observation or a batch: an array, or a dictionary of the parts, which may have more.

        With `candidates` > 1 the method draws that many actions for each observation and chooses one by value. With
        `return_base` the result is (actions, base actions): the latter are what the behaviour model proposed.

        `noise` multiplies every random draw: 1 acts as the method was published, 0 gives one action for an
        observation. `strength` multiplies the displacement of methods that refine a base action: 1 acts as published,
        0 as the base policy. Candidates are chosen among the moved actions.
        """
        observations = self._observed(observations)
        ready = self._ready.get((_shapes(observations), candidates, return_base, noise == 1, strength == 1))
        if ready is None:
            ready = self._prepare(observations, bool(self._ready), candidates, return_base, noise, strength)
        factors = dials(ready.act, noise=noise, strength=strength)
        result = ready.run(ready.leaves, observations, self._place(), **factors)
        self._calls += 1
        if return_base:
            actions, base = result
            return self._in_user_units(actions), self._in_user_units(base)
        return self._in_user_units(result)

    def _in_user_units(self, actions: Any) -> np.ndarray:
        actions = np.asarray(actions)
        return self.spec.to_user_units(actions if self.spec.chunk == 1 else self.spec.steps_of(actions))

    def save(self, directory: str | Path, verify: Callable[[], None] = files.nothing) -> None:
        """Write the policy to a directory. An earlier one is replaced as a whole, unless `verify` raises an error."""
        directory = Path(directory)
        with files.writing(directory, "the policy"), replacing_directory(directory, verify) as new:
            card = {
                "format": FORMAT,
                "algo": self.algo,
                "options": dataclasses.asdict(self.options),
                "spec": dataclasses.asdict(self.spec),
                "info": self.info,
            }
            files.write_json(new / CARD, card)
            trees.save_tree(new / MODEL, self.state)
            files.write_manifest(new)


class _Compiled(NamedTuple):
    """A compiled `act`, and the arrays that it takes."""

    act: Callable[..., Any]
    run: Callable[..., Any]
    leaves: list[Any]


def _compile(
    act: Callable[..., Any], state: Any, observations: Observations, place: np.ndarray, factors: dict[str, Any]
) -> _Compiled:
    """Compile `act` for such arguments, so that a call takes little more time than its computation.

    Every argument of a compiled function takes time in a call, and so does a tree with names. So the function gets a
    list of those arrays of the state that are used (a critic is not), and the key with the number of the call as one
    array. The key of the call is derived inside: outside it would take longer than a small network.
    """
    leaves, structure = jax.tree.flatten(state)

    def whole(leaves, observations, place, **factors):
        key = rng.at(jax.random.wrap_key_data(place[:-1]), place[-1])
        return act(jax.tree.unflatten(structure, leaves), observations, key, **factors)

    jaxpr = jax.make_jaxpr(whole)(leaves, observations, place, **factors).jaxpr
    used = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    places = [index for index in range(len(leaves)) if id(jaxpr.invars[index]) in used]

    def part(some, *arguments, **factors):
        merged = list(leaves)
        for index, leaf in zip(places, some, strict=True):
            merged[index] = leaf
        return whole(merged, *arguments, **factors)

    compiled = _Compiled(act, jax.jit(part), [leaves[index] for index in places])
    jax.block_until_ready(compiled.run(compiled.leaves, observations, place, **factors))
    return compiled


def _shapes(observations: Observations) -> Any:
    """The shape of an array, or the shapes of all parts."""
    if isinstance(observations, dict):
        return tuple((name, array.shape) for name, array in observations.items())
    return observations.shape


def _array(part: Part, values: Any) -> np.ndarray:
    array = np.asarray(values, part.dtype)
    # The sum of squares is finite only if all numbers are, and takes less time than `np.isfinite`.
    if array.dtype.kind == "f" and not math.isfinite(np.vdot(array, array)):
        _check_finite(part.name, array)
    return array


def _check_finite(part: str, observations: np.ndarray) -> None:
    finite = np.isfinite(observations)
    if not finite.all():
        first = tuple(int(i) for i in np.argwhere(~finite)[0])
        which = f" of the part {part!r}" if part else ""
        raise ConfigError(
            f"the observation{which} at index {first[0] if len(first) == 1 else first} is {observations[first]}: "
            "a policy needs finite numbers. Check the sensor, or hold its last value"
        )
