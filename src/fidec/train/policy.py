"""A portable policy: safetensors and JSON, usable without the data, the environment or the run.

policy/  policy.json          method, options, specification, how it acts by default, origin
         model.safetensors    the arrays that are needed to act
         manifest.json        SHA-256 of both, checked before use
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fidec import algos, compilation, rng
from fidec.data.transforms import Pending
from fidec.errors import CheckpointError, ConfigError
from fidec.parts import Frames, Observations, arrays_of, is_part_name, not_finite, only_parts
from fidec.register import unknown
from fidec.store import files, trees
from fidec.store.directories import read_directory, replacing_directory
from fidec.store.rundir import FORMAT, format_problem, is_run, runs_below
from fidec.store.staging import local_run
from fidec.train.acting import PUBLISHED, ActArguments, ActOptions, CallArguments
from fidec.train.action_chunks import Player
from fidec.train.stored import config_from_json, spec_from_json
from fidec.types import Part, Spec

MODEL = "model.safetensors"
CARD = "policy.json"
_NAMED = 10  # runs in an error message


class Card(TypedDict):
    format: int
    algo: str
    options: dict[str, Any]
    spec: dict[str, Any]
    act: CallArguments
    info: NotRequired[dict[str, Any] | None]


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
    several parts takes a dictionary. `spec` describes observations and actions, `state` holds the arrays. `act` is
    how the policy acts unless a call says otherwise.
    """

    def __init__(
        self,
        algo: str,
        options: Any,
        spec: Spec,
        state: Any,
        info: dict[str, Any] | None = None,
        act: ActOptions = PUBLISHED,
    ):
        self.algo, self.options, self.spec = algo, options, spec
        self.info = info or {}
        self.act = act.resolved(replace(PUBLISHED, replan=spec.replan, ensemble=spec.ensemble))
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

    def warm_up(
        self,
        batch: int | tuple[int, ...] | None = None,
        *,
        return_base: bool = False,
        **act: Unpack[CallArguments],
    ) -> None:
        """Compile the policy for one observation, or for a batch of this size, without drawing a random number.

        The other arguments are those of the calls that will follow. Each batch size and each choice of `candidates`
        and `return_base` is compiled once; of `noise` and `strength` only whether they are 1 matters.
        """
        leading = () if batch is None else np.atleast_1d(batch).tolist()
        self._prepare(self.spec.zeros(*leading), self._options(act), return_base, warn=False)

    def _options(self, act: CallArguments) -> ActOptions:
        """How the policy acts in a call with these arguments."""
        for name in act.keys() - CallArguments.__annotations__.keys():
            raise unknown("argument of a policy's call", name, {"return_base", *CallArguments.__annotations__})
        return ActOptions(**act).resolved(self.act) if act else self.act

    def _prepare(self, observations: Observations, options: ActOptions, return_base: bool, warn: bool) -> _Compiled:
        """Check the arguments, and compile for them and for observations of this shape, unless that was done."""
        self._check_shapes(observations)
        act = options.function(self.algorithm, "too" if return_base else "no")
        dials = options.dials(act)
        program = (_shapes(observations), return_base, options.program)
        if program not in self._ready:
            if warn:
                warnings.warn(self._advice(observations, options, return_base), CompilationWarning, stacklevel=3)
            self._ready[program] = _compile(act, self._state, observations, self._place(), dials)
        return self._ready[program]

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

    def _advice(self, observations: Observations, options: ActOptions, return_base: bool) -> str:
        """What to say about a call that compiles."""
        batch, shape = self.spec.leading(observations), _shapes(observations)
        defaults = self.act.given()
        chosen = ["return_base=True"] * return_base
        chosen += [f"{name}={value!r}" for name, value in options.given().items() if value != defaults.get(name)]
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

    def player(self, **act: Unpack[ActArguments]) -> Player:
        """Play the policy step by step: one action for each observation, a new chunk every `replan` steps.

        `ensemble` is the rate of a mean over all chunks that have the step (`fidec.train.action_chunks`). By default
        both are those of the training run. The other arguments are those of the policy's calls. The actions are those
        of single observations or of batches of a fixed size.
        """
        played = self.spec.played(act.pop("replan", None), act.pop("ensemble", None))
        return Player(lambda observation: self(observation, **act), played)

    def __call__(self, observations: Observations, *, return_base: bool = False, **act: Unpack[CallArguments]) -> Any:
        """Actions for one observation or a batch: an array, or a dictionary of the parts, which may have more.

        With `candidates` > 1 the method draws that many actions for each observation and chooses one by value. With
        `return_base` the result is (actions, base actions): the latter are what the behaviour model proposed.

        `noise` multiplies every random draw: 1 acts as the method was published, 0 gives one action for an
        observation. `strength` multiplies the displacement of methods that refine a base action: 1 acts as published,
        0 as the base policy. Candidates are chosen among the moved actions.

        What is not given is as in `policy.act`: the run's number of candidates, and factors of 1.
        """
        observations, options = self._observed(observations), self._options(act)
        ready = self._ready.get((_shapes(observations), return_base, options.program))
        if ready is None:
            ready = self._prepare(observations, options, return_base, warn=bool(self._ready))
        result = ready.run(ready.leaves, observations, self._place(), **options.dials(ready.act))
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
                "act": replace(self.act, replan=None, ensemble=None).given(),  # these two are in `spec`
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
    act: Callable[..., Any], state: Any, observations: Observations, place: np.ndarray, dials: dict[str, Any]
) -> _Compiled:
    """Compile `act` for such arguments, so that a call takes little more time than its computation.

    Every argument of a compiled function takes time in a call, and so does a tree with names. So the function gets a
    list of those arrays of the state that are used (a critic is not), and the key with the number of the call as one
    array. The key of the call is derived inside: outside it would take longer than a small network.
    """
    leaves, structure = jax.tree.flatten(state)

    def act_of_call(leaves, observations, place, **dials):
        key = rng.at(jax.random.wrap_key_data(place[:-1]), place[-1])
        return act(jax.tree.unflatten(structure, leaves), observations, key, **dials)

    jaxpr = jax.make_jaxpr(act_of_call)(leaves, observations, place, **dials).jaxpr
    used = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    places = [index for index in range(len(leaves)) if id(jaxpr.invars[index]) in used]

    def act_with_used(some, *arguments, **dials):
        merged = list(leaves)
        for index, leaf in zip(places, some, strict=True):
            merged[index] = leaf
        return act_of_call(merged, *arguments, **dials)

    compiled = _Compiled(act, jax.jit(act_with_used), [leaves[index] for index in places])
    jax.block_until_ready(compiled.run(compiled.leaves, observations, place, **dials))
    return compiled


def _shapes(observations: Observations) -> Any:
    """The shape of an array, or the shapes of all parts."""
    if isinstance(observations, dict):
        return tuple((name, array.shape) for name, array in observations.items())
    return observations.shape


def _array(part: Part, values: Any) -> np.ndarray:
    array = np.asarray(values, part.dtype)
    # The sum of squares is finite only if all numbers are, and takes less time than `np.isfinite`.
    if array.dtype.kind == "f" and not math.isfinite(np.vdot(array, array)) and (problem := not_finite(array, array)):
        raise ConfigError(f"the observation{f' of the part {part.name!r}' if part.name else ''} {problem}")
    return array


# --- reading: hashes are checked first, then every value that the use of a policy depends on


def policy_directory(directory: str | Path) -> Path:
    """The directory of a policy: this one, or the `policy/` of a run. CheckpointError if there is none.

    Of a URL it is a local copy.
    """
    directory = local_run(directory)
    of_run = is_run(directory)
    if of_run or (not (directory / CARD).exists() and (directory / "policy").is_dir()):
        directory = directory / "policy"
    if not directory.is_dir() and not files.hidden(directory, "old").is_dir():  # which takes its place in a moment
        if of_run:
            raise CheckpointError(
                f"the run {directory.parent} has no policy yet: it is saved with the first checkpoint"
            )
        raise CheckpointError(f"there is no policy at {directory}: no such directory")
    return directory


def load_policy(directory: str | Path) -> Policy:
    """Read a policy directory, or the `policy/` of a run, also at a URL such as s3://bucket/runs/mine.

    Its hashes are checked, and no code is loaded from it.
    """
    directory = policy_directory(directory)
    return read_directory(directory, lambda: _read_policy(directory))  # training may save it meanwhile


def _read_policy(directory: Path) -> Policy:
    if not any((directory / name).exists() for name in (CARD, MODEL, files.MANIFEST)):
        raise CheckpointError(f"{directory} is neither a run nor a policy. {_runs_in(directory)}")
    files.verify_manifest(directory)
    compilation.enable()
    if problem := format_problem(files.read_json(directory / CARD).get("format")):
        raise CheckpointError(f"the policy {directory} {problem}")
    card = files.read_json(directory / CARD, Card)
    try:
        return _from_card(directory, card)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"{directory / CARD} does not describe a policy: {type(error).__name__}: {error}"
        ) from error


def _runs_in(directory: Path) -> str:
    runs = runs_below(directory)
    if not runs:
        return "There is no run below it."
    more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
    return f"Name one of the runs below it: {', '.join(map(str, runs[:_NAMED]))}{more}."


def _from_card(directory: Path, card: dict[str, Any]) -> Policy:
    spec = spec_from_json(card["spec"])
    _check_spec(directory / CARD, spec)
    method = algos.get(card["algo"])
    options = config_from_json(method.config_for(card["options"]), card["options"])
    algorithm = method.build(options, spec)
    template = jax.eval_shape(lambda key: algorithm.policy(algorithm.init(key)), rng.stream(0, "init"))
    loaded = trees.load_tree(directory / MODEL, template)
    if text := trees.describe_non_finite(trees.flatten_tree(loaded)):
        raise CheckpointError(
            f"{directory / MODEL}: {text}. Such a policy cannot act. Take it from another checkpoint."
        )
    state = jax.tree.map(jnp.asarray, loaded)
    return Policy(card["algo"], options, spec, state, card.get("info"), ActOptions(**card["act"]))


def _check_spec(path: Path, spec: Spec) -> None:
    """Raise unless shapes, action bounds and normalisation of a stored specification can be used."""

    def refuse(text: str) -> CheckpointError:
        return CheckpointError(f"{path}: {text}. The policy was changed or written by another program.")

    sizes = [size for part in spec.inputs for size in (len(part.shape), *part.shape)]
    if min(*sizes, spec.action_dim, spec.frame_stack, spec.history) < 1:
        raise refuse("observation_shape, action_dim, frame_stack and history have to be positive")
    names = [part.name for part in spec.parts]
    if any(not is_part_name(name) for name in names):  # an export has them in its code
        raise refuse("names of parts have to be letters, digits, '_', '.' and '-'")
    if names != sorted(set(names)) or (spec.parts and (spec.observation_shape or len(names) < 2)):
        raise refuse("parts have to be at least two, sorted by name, in the place of observation_shape")
    if any(part.shape[-1] % spec.stack_of(part) for part in spec.inputs):
        raise refuse("frame_stack and history have to divide the last axis of observations")
    if not 1 <= spec.replan <= spec.chunk or spec.action_dim % spec.chunk:
        raise refuse("chunk has to divide action_dim, and replan has to lie between 1 and chunk")
    if spec.delay < 0:
        raise refuse("delay has to be 0 or more")
    if spec.ensemble is not None and not (spec.replan < spec.chunk and math.isfinite(spec.ensemble)):
        raise refuse("ensemble has to be a finite number, and replan less than chunk")
    pairs: list[tuple[str, str, tuple[int, ...], list[Any]]] = [
        ("action_low", "action_high", (spec.step_dim,), [spec.action_low, spec.action_high])
    ]
    for part in spec.inputs:
        pairs.append(("observation_mean", "observation_std", part.shape, [part.mean, part.std]))
    for first, second, shape, values in pairs:
        if values == [None, None]:
            continue
        for name, value in zip((first, second), values, strict=True):
            if value is None or np.shape(value) != shape or np.abs(value).max() > np.finfo(np.float32).max:
                raise refuse(f"{name} is {value}, expected finite numbers of shape {shape}")
        if first == "action_low" and not np.less(*values).all():
            raise refuse(f"action_low {values[0]} is not below action_high {values[1]}")
        if first == "observation_mean" and not np.greater(values[1], 0).all():
            raise refuse(f"observation_std is {values[1]}, expected positive numbers")
