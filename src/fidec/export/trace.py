"""A policy as one program: (observations, noise) to actions, with a free batch size and without random keys."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
from jax.extend import core
from jax.interpreters.partial_eval import dce_jaxpr

from fidec import rng
from fidec.errors import ConfigError
from fidec.export.random_inputs import Draw, Recorder, Replayer, draws_of, evaluate, margin
from fidec.parts import Observations, arrays_of, named
from fidec.store import trees
from fidec.train.acting import ActOptions
from fidec.train.policy import Policy
from fidec.types import Spec

BATCH = "B"  # the symbol of the batch size


class Column(NamedTuple):
    """A draw as columns `start` to `stop` of the noise (batch, n), one row for each observation."""

    draw: Draw
    axis: int  # of the draw's shape, with `repeats` times the batch size
    repeats: int
    start: int
    stop: int

    def unpack(self, noise: Any) -> Any:
        """The draw in its own shape."""
        part = noise if noise.shape[1] == self.stop - self.start else noise[:, self.start : self.stop]
        before, after = self.draw.shape[: self.axis], self.draw.shape[self.axis + 1 :]
        batch = noise.shape[0]
        if math.prod(before) * self.repeats == 1:
            return part.reshape(*before, batch, *after)
        part = part.reshape(batch, *before, self.repeats, *after)
        return jnp.moveaxis(part, 0, self.axis + 1).reshape(*before, self.repeats * batch, *after)

    def pack(self, drawn: np.ndarray) -> np.ndarray:
        """The reverse: the columns of a draw that was recorded with a known batch size."""
        batch = drawn.shape[self.axis] // self.repeats
        drawn = drawn.reshape(*drawn.shape[: self.axis], self.repeats, batch, *drawn.shape[self.axis + 1 :])
        return np.moveaxis(drawn, self.axis + 1, 0).reshape(batch, -1)


class Program(NamedTuple):
    """A traced policy."""

    jaxpr: Any  # closed: (*weights, *observations[, noise]) to actions in the user's units; one input for each part
    weights: dict[str, np.ndarray]  # those that are used, by their names, in the order of the arguments
    columns: list[Column]
    width: int  # of the noise; 0 if the policy takes none
    spec: Spec

    def function(self) -> Callable[..., Any]:
        """(*observations[, noise]) to actions, as a function that `jax.export` can trace with `inputs()`."""
        weights = [jnp.asarray(array) for array in self.weights.values()]
        run = jax.jit(core.jaxpr_as_fun(self.jaxpr))
        return lambda *inputs: run(*weights, *inputs)[0]

    def inputs(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The types of the observations, one for each part, and of the noise, if there is any, by name."""
        names = [*named("observations", self.spec.observations(lambda part: part)), "noise"]
        variables = self.jaxpr.jaxpr.invars[len(self.weights) :]
        types = [jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype) for variable in variables]
        return dict(zip(names, types, strict=False))


def symbolic_batch() -> Any:
    from jax import export

    return export.symbolic_shape(BATCH)[0]


def linear(dimension: Any) -> tuple[int, int]:
    """(a, b) of a dimension a B + b, B the batch size."""
    if isinstance(dimension, int | np.integer):
        return 0, int(dimension)
    try:
        at = [int(dimension._evaluate({BATCH: size})) for size in (2, 3, 7)]
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"the method has an array with a dimension of {dimension}: it is not exported") from error
    slope, start = at[1] - at[0], 3 * at[0] - 2 * at[1]
    if 7 * slope + start != at[2]:
        raise ConfigError(f"the method has an array with a dimension of {dimension}: it is not exported")
    return slope, start


def trace(policy: Policy, act: ActOptions) -> Program:
    """The policy as a program, which acts by `act`. ConfigError says why a method cannot be one."""
    spec, known, batch = policy.spec, _weights(policy), symbolic_batch()
    observations = _types(spec, batch)
    acting = _acting(policy, act, observations)
    columns = _columns(draws_of(acting.jaxpr)) if act.noise else []
    width = columns[-1].stop if columns else 0

    def in_units(weights, observations, *noise):
        draws = [column.unpack(noise[0]) for column in columns] if columns else _zeros(acting.jaxpr)
        (actions,) = evaluate(acting, [*weights, *arrays_of(observations), None], Replayer(draws))
        return in_user_units(spec, actions)

    arguments = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in known.values()]
    inputs = [observations] + ([jax.ShapeDtypeStruct((batch, width), "float32")] if width else [])
    closed = jax.make_jaxpr(in_units)(arguments, *inputs)
    kept = [False] * len(arguments) + [True] * len(jax.tree.leaves(inputs))
    jaxpr, used = dce_jaxpr(closed.jaxpr, [True], kept)
    weights = {name: known[name] for name, is_used in zip(known, used, strict=False) if is_used}
    return Program(core.ClosedJaxpr(jaxpr, closed.consts), weights, columns, width, spec)


def draws(policy: Policy, act: ActOptions) -> list[Draw]:
    """What the policy draws in a call for one observation."""
    return draws_of(_acting(policy, act, _types(policy.spec, 1)).jaxpr)


def record(policy: Policy, act: ActOptions, program: Program, batch: int) -> Callable[..., tuple[Any, Any]]:
    """A function (observations, key) to what `act` draws, as noise (batch, n), and to the margin of its choices.

    The margin (batch,) is None if the policy makes no choice by value.
    """
    acting = _acting(policy, act, _types(policy.spec, batch))
    weights = list(_weights(policy).values())

    @jax.jit
    def run(weights, observations, key):
        source = Recorder()
        evaluate(acting, [*weights, *arrays_of(observations), key], source)
        margins = [margin(*choice) for choice in source.margins]
        return source.drawn, [clear for clear in margins if clear.shape == (batch,)]

    def recorded(observations: Observations, key: Any) -> tuple[Any, Any]:
        drawn, margins = run(weights, observations, key)
        noise = [column.pack(np.asarray(draw)) for column, draw in zip(program.columns, drawn, strict=False)]
        return (
            np.concatenate(noise, axis=1).astype(np.float32) if noise else None,
            np.min(np.asarray(margins), axis=0) if margins else None,
        )

    return recorded


def _types(spec: Spec, batch: Any) -> Any:
    """The types of a batch of observations."""
    return spec.observations(lambda part: jax.ShapeDtypeStruct((batch, *part.shape), part.dtype))


def _acting(policy: Policy, act: ActOptions, observations: Any) -> Any:
    """The closed program (*weights, *observations, key) to actions in [-1, 1], without what it does not need."""
    function = act.function(policy.algorithm)
    dials = act.dials(function)
    leaves, structure = jax.tree.flatten(policy.state)

    def act_of_leaves(leaves, observations, key):
        return function(jax.tree.unflatten(structure, leaves), observations, key, **dials)

    types = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    with _unchecked():
        closed = jax.make_jaxpr(act_of_leaves)(types, observations, rng.stream(0, "act"))
    return core.ClosedJaxpr(dce_jaxpr(closed.jaxpr, [True], True)[0], closed.consts)


@contextmanager
def _unchecked() -> Iterator[None]:
    """Without jaxtyping's checks of shapes, where a program turned them on: they do not know symbolic sizes."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def _weights(policy: Policy) -> dict[str, np.ndarray]:
    """The arrays of the state by short names: "flow/MLP_0/Dense_0/kernel", in the order of the tree's leaves."""
    full = trees.flatten_tree(policy.state)
    short = {name: "/".join(part for part in name.split("/") if part != "params") or name for name in full}
    unique = len(set(short.values())) == len(full)
    return {short[name] if unique else name: array for name, array in full.items()}


def _zeros(jaxpr: Any) -> list[Any]:
    return [jnp.zeros(draw.shape, jnp.float32) for draw in draws_of(jaxpr)]


def _columns(draws: list[Draw]) -> list[Column]:
    columns, start = [], 0
    for draw in draws:
        dimensions = [linear(dimension) for dimension in draw.shape]
        axes = [axis for axis, (slope, _) in enumerate(dimensions) if slope]
        if len(axes) != 1 or dimensions[axes[0]][1]:
            raise ConfigError(
                f"the method makes a draw of shape {draw.shape} (B is the batch size), which is not one draw for "
                "each observation, so it is not exported"
            )
        (axis,), repeats = axes, dimensions[axes[0]][0]
        width = repeats * math.prod(size for slope, size in dimensions if not slope)
        columns.append(Column(draw, axis, repeats, start, start + width))
        start += width
    return columns


def in_user_units(spec: Spec, actions: Any) -> Any:
    """`Spec.steps_of` and `Spec.to_user_units` in float32, kept inside the bounds in spite of rounding."""
    if spec.chunk > 1:
        actions = actions.reshape(actions.shape[0], spec.chunk, spec.step_dim)
    if spec.action_low is None or spec.action_high is None:
        return actions
    low, high = np.asarray(spec.action_low), np.asarray(spec.action_high)
    half, centre = np.float32(0.5 * (high - low)), np.float32(0.5 * (high + low))
    return jnp.clip(centre + actions * half, np.float32(low), np.float32(high))
