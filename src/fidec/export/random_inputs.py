"""Random draws of a traced program: found, recorded, or replaced by inputs.

Methods draw inside `act(state, observations, key)`. In the trace of `act`, each call of `jax.random.normal` and the
like is one equation with a name. So the draws can be replaced without a change of the methods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from fidec.errors import ConfigError

# Functions of jax.random, by the names that their equations have, and the distribution of their results.
KINDS = {"_normal": "normal", "_gumbel": "gumbel", "_uniform": "uniform"}


class Draw(NamedTuple):
    """One draw: its distribution and its shape, in which the batch size is symbolic."""

    kind: str
    shape: tuple[Any, ...]
    low: float | None = None  # of a uniform distribution
    high: float | None = None


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """The programs inside an equation."""
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if hasattr(part, "jaxpr") and hasattr(part, "consts"):
                yield part.jaxpr
            elif hasattr(part, "eqns"):
                yield part


def is_call(equation: Any) -> bool:
    """Whether the equation only calls another program with its own inputs."""
    return equation.primitive.name in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat2")


def called(equation: Any) -> Any:
    """The closed program that an equation calls (`is_call`)."""
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return inner if hasattr(inner, "consts") else core.ClosedJaxpr(inner, ())


def _is_key(variable: Any) -> bool:
    return jnp.issubdtype(variable.aval.dtype, jax.dtypes.prng_key)


def _draw_of(equation: Any) -> Draw | None:
    kind = KINDS.get(equation.params.get("name", "")) if equation.primitive.name in ("jit", "pjit") else None
    if kind is None or not _is_key(equation.invars[0]):
        return None
    bounds = [float(value.val) for value in equation.invars[1:3] if isinstance(value, core.Literal)]
    if kind == "uniform" and len(bounds) != 2:
        raise ConfigError("the method draws from a uniform distribution whose bounds it computes: it is not exported")
    return Draw(kind, equation.outvars[0].aval.shape, *(bounds if kind == "uniform" else ()))


def draws_of(jaxpr: Any) -> list[Draw]:
    """The draws of a program in their order. A draw in a loop has the length of the loop as its first axis."""
    draws: list[Draw] = []
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if draw := _draw_of(equation):
            draws.append(draw)
        elif is_call(equation):
            draws += draws_of(called(equation).jaxpr)
        elif name == "scan":
            length = equation.params["length"]
            inner = draws_of(equation.params["jaxpr"].jaxpr)
            draws += [draw._replace(shape=(length, *draw.shape)) for draw in inner]
        elif name == "random_bits" or any(_has_bits(part) for part in inner_jaxprs(equation)):
            raise ConfigError(
                f"the method draws random numbers in `{name}`, which cannot become an input; draws by "
                "jax.random.normal, uniform and gumbel can, also in lax.scan"
            )
    return draws


def _has_bits(jaxpr: Any) -> bool:
    return any(e.primitive.name == "random_bits" or any(map(_has_bits, inner_jaxprs(e))) for e in jaxpr.eqns)


class Recorder:
    """Draws as the method does, and keeps what was drawn and how clearly each choice was made."""

    replays = False

    def __init__(self):
        self.drawn: list[Any] = []
        self.margins: list[Any] = []  # of argmax: (the operand, its axis)


class Replayer:
    """Takes given arrays in place of the draws. Random keys are not computed."""

    replays = True

    def __init__(self, drawn: Sequence[Any]):
        self.left = list(drawn)


def evaluate(closed: Any, arguments: Sequence[Any], source: Recorder | Replayer) -> list[Any]:
    """The results of a program, with its draws recorded or replaced. Keys may be None if they are replaced."""
    known: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    known.update(zip(closed.jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else known[variable]

    for equation in closed.jaxpr.eqns:
        if source.replays and all(map(_is_key, equation.outvars)):
            results = [None] * len(equation.outvars)
        else:
            results = _apply(equation, [read(variable) for variable in equation.invars], source)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in closed.jaxpr.outvars]


def _apply(equation: Any, values: list[Any], source: Recorder | Replayer) -> list[Any]:
    name = equation.primitive.name
    if _draw_of(equation):
        if isinstance(source, Replayer):
            return [source.left.pop(0)]
        results = bind(equation, values)
        source.drawn += results
        return results
    if isinstance(source, Recorder) and name == "argmax":
        source.margins.append((values[0], equation.params["axes"][0]))
    if is_call(equation) and _is_special(equation):
        return evaluate(called(equation), values, source)
    if name == "scan" and _is_special(equation):
        return _scan(equation, values, source)
    return bind(equation, values)


def _is_special(equation: Any) -> bool:
    """Whether an equation holds keys, draws or a choice. Others are applied as they are."""
    if any(map(_is_key, (*equation.invars, *equation.outvars))):
        return True
    return any(
        inner.primitive.name == "argmax" or _is_special(inner)
        for jaxpr in inner_jaxprs(equation)
        for inner in jaxpr.eqns
    )


def bind(equation: Any, values: Sequence[Any]) -> list[Any]:
    """The results of one equation for given inputs."""
    if equation.primitive.name.startswith("custom_") and is_call(equation):  # bound with functions, not with jaxprs
        return core.jaxpr_as_fun(called(equation))(*values)
    result = equation.primitive.bind(*values, **equation.params)
    return list(result) if equation.primitive.multiple_results else [result]


def _scan(equation: Any, values: list[Any], source: Recorder | Replayer) -> list[Any]:
    """A loop whose draws are one more input (replaced) or one more output (recorded) of each of its steps."""
    parameters, body = equation.params, equation.params["jaxpr"]
    constants, carries = parameters["num_consts"], parameters["num_carry"]
    fixed, carry, columns = values[:constants], values[constants : constants + carries], values[constants + carries :]
    count = len(draws_of(body.jaxpr))
    given: list[Any] = []
    if isinstance(source, Replayer):
        given, source.left = source.left[:count], source.left[count:]

    def step(carry, row):
        row, drawn = row
        inner = Replayer(drawn) if source.replays else Recorder()
        results = evaluate(body, [*fixed, *carry, *row], inner)
        return results[:carries], (results[carries:], inner.drawn if isinstance(inner, Recorder) else [])

    loop = {name: parameters[name] for name in ("length", "reverse", "unroll")}
    carry, (rows, drawn) = jax.lax.scan(step, carry, (columns, given), **loop)
    if isinstance(source, Recorder):
        source.drawn += drawn
    return [*carry, *rows]


def margin(values: Any, axis: int) -> Any:
    """How clearly an argmax is decided: the best value minus the second best, relative to the largest magnitude.

    If it is tiny, rounding may decide otherwise.
    """
    best = jnp.sort(values, axis=axis)
    first, second = (jnp.take(best, index, axis=axis) for index in (-1, -2))
    return (first - second) / jnp.maximum(jnp.abs(values).max(axis=axis), 1.0)
