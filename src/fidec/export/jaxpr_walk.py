"""Walk through a traced program and hand each operation to a writer of source code or of a graph.

Calls are inlined. What depends on constants only is computed here. A constant that is the same number everywhere
(`Constant.array` is then a scalar) keeps its shape, which may have the symbolic batch size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from jax.extend import core

from fidec.errors import ConfigError
from fidec.export.random_inputs import bind, called, is_call
from fidec.export.trace import linear

ELEMENTWISE = {
    *("add", "add_any", "sub", "mul", "div", "max", "min", "pow", "rem", "atan2", "neg", "abs", "sign", "square"),
    *("sqrt", "rsqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "sin", "cos", "tan"),
    *("integer_pow", "floor", "ceil", "round", "is_finite", "erf", "eq", "ne", "lt", "le", "gt", "ge"),
    *("and", "or", "xor", "not", "select_n", "clamp", "convert_element_type", "stop_gradient", "copy"),
}
# These keep a constant that is the same number everywhere as it is, but for its shape.
_MOVES = {"broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "rev", "slice", "gather", "split"}
_SAME = {"stop_gradient", "copy"}


class Constant(NamedTuple):
    array: np.ndarray
    shape: tuple[Any, ...]

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def uniform(self) -> bool:
        return self.array.ndim == 0

    def whole(self) -> np.ndarray:
        """The array in its shape, which must not have the batch size."""
        return np.broadcast_to(self.array, self.shape) if self.uniform else self.array

    @property
    def is_static(self) -> bool:
        return all(not linear(size)[0] for size in self.shape)


class Reference(NamedTuple):
    """A value that the written program computes."""

    name: Any
    shape: tuple[Any, ...]
    dtype: np.dtype


Value = Constant | Reference


class Writer(Protocol):
    format: str  # what it writes
    others: tuple[str, str]  # the other targets
    unrolls: bool  # whether loops are written step by step

    def operation(self, name: str, inputs: Sequence[Value], equation: Any, number: int) -> Any:
        """Write an operation; the name of its result `number`. KeyError if it has no translation."""
        ...

    def call(self, name: str, inputs: Sequence[Value], equation: Any) -> Any:
        """Write a call as one operation, or return None if its equations have to be written."""
        ...

    def loop(self, equation: Any, inputs: Sequence[Value]) -> list[Value]: ...


def constant(array: Any) -> Constant:
    array = np.asarray(array)
    return Constant(array, array.shape)


def walk(closed: Any, arguments: Sequence[Value], writer: Writer) -> list[Value]:
    """Write a closed program for these arguments; its results."""
    known: dict[Any, Value] = dict(zip(closed.jaxpr.constvars, map(constant, closed.consts), strict=True))
    known.update(zip(closed.jaxpr.invars, arguments, strict=True))

    def read(variable: Any) -> Value:
        if isinstance(variable, core.Literal):
            return constant(np.asarray(variable.val, np.dtype(getattr(variable.aval, "dtype", None))))
        return known[variable]

    for equation in closed.jaxpr.eqns:
        results = _equation(equation, [read(variable) for variable in equation.invars], writer)
        known.update(zip(equation.outvars, results, strict=True))
    return [read(variable) for variable in closed.jaxpr.outvars]


def _equation(equation: Any, inputs: list[Value], writer: Writer) -> list[Value]:
    name = equation.primitive.name
    if (known := _known(name, equation, inputs)) is not None:
        return known
    if is_call(equation):
        result = writer.call(equation.params.get("name", ""), inputs, equation)
        if result is not None:
            aval = equation.outvars[0].aval
            return [Reference(result, aval.shape, aval.dtype)]
        return walk(called(equation), inputs, writer)
    if name == "scan":
        return _unrolled(equation, inputs, writer) if writer.unrolls else writer.loop(equation, inputs)
    try:
        names = [writer.operation(name, inputs, equation, number) for number in range(len(equation.outvars))]
    except KeyError:
        raise ConfigError(
            f"the policy uses the operation `{name}`, which is not translated to {writer.format}; "
            f"another format may have it: --to {' or --to '.join(writer.others)}"
        ) from None
    return [Reference(n, v.aval.shape, v.aval.dtype) for n, v in zip(names, equation.outvars, strict=True)]


def _known(name: str, equation: Any, inputs: list[Value]) -> list[Value] | None:
    """The results if nothing has to be written for them."""
    avals = [variable.aval for variable in equation.outvars]
    if all(isinstance(value, Constant) for value in inputs):
        constants: Any = inputs
        shapeless = name in ELEMENTWISE and all(value.uniform for value in constants)
        if shapeless or (name in _MOVES and constants[0].uniform):
            results = [constants[0].array]
            if shapeless:
                scalars = [value.array for value in constants]
                results = [np.asarray(_scalar(equation, scalars), avals[0].dtype)]
            return [Constant(results[0], aval.shape) for aval in avals]
        static = all(value.is_static for value in constants)
        if static and all(not linear(size)[0] for aval in avals for size in aval.shape) and not is_call(equation):
            return [constant(result) for result in bind(equation, [value.whole() for value in constants])]
        return None
    first = inputs[0]
    unchanged = name in ("reshape", "broadcast_in_dim", "squeeze", "expand_dims") and first.shape == avals[0].shape
    if name in _SAME or unchanged or (name == "convert_element_type" and first.dtype == avals[0].dtype):
        return [first]
    for value, other in (inputs, inputs[::-1]) if name in ("mul", "add") else ():
        neutral = isinstance(other, Constant) and other.uniform and other.array == (1 if name == "mul" else 0)
        if neutral and value.shape == avals[0].shape:
            return [value]
    return None


def _scalar(equation: Any, scalars: list[np.ndarray]) -> Any:
    """An elementwise equation for scalars, whatever the shapes of its variables."""
    import jax

    name, parameters = equation.primitive.name, dict(equation.params)
    with jax.ensure_compile_time_eval():
        return equation.primitive.bind(*scalars, **parameters) if name not in _SAME else scalars[0]


def _unrolled(equation: Any, inputs: list[Value], writer: Any) -> list[Value]:
    """A loop, step after step. Its counters are then constants."""
    parameters, body = equation.params, equation.params["jaxpr"]
    constants, carries, length = (parameters[name] for name in ("num_consts", "num_carry", "length"))
    fixed, carry, columns = inputs[:constants], inputs[constants : constants + carries], inputs[constants + carries :]
    rows: list[list[Value]] = []
    for step in range(length)[:: -1 if parameters["reverse"] else 1]:
        results = walk(body, [*fixed, *carry, *(row_of(column, step, writer) for column in columns)], writer)
        carry = results[:carries]
        rows.append(results[carries:])
    ordered = rows[::-1] if parameters["reverse"] else rows
    stacked = [
        Reference(writer.stack(column), variable.aval.shape, variable.aval.dtype)
        for column, variable in zip(zip(*ordered, strict=True), equation.outvars[carries:], strict=True)
    ]
    return [*carry, *stacked]


def row_of(column: Value, step: int, writer: Any) -> Value:
    """Row `step` of a value."""
    shape = column.shape[1:]
    if isinstance(column, Constant):
        return Constant(column.array if column.uniform else column.array[step], shape)
    return Reference(writer.row(column, step), shape, column.dtype)


# --- what an equation of `gather` means, in terms that both translations share ---------------------------------


def fixed_slice(indices: Value, parameters: Any) -> tuple[list[tuple[int, Any]], tuple[int, ...]]:
    """A gather of one part at a known place: (start, size) for each axis, and the axes that are dropped.

    KeyError if it is another kind of gather.
    """
    numbers = parameters["dimension_numbers"]
    if not isinstance(indices, Constant) or len(indices.shape) != 1 or numbers.operand_batching_dims:
        raise KeyError("gather")
    starts = dict(zip(numbers.start_index_map, indices.whole().tolist(), strict=True))
    ranges = [(int(starts.get(axis, 0)), size) for axis, size in enumerate(parameters["slice_sizes"])]
    kept = len(ranges) - len(numbers.collapsed_slice_dims)
    if numbers.offset_dims != tuple(range(kept)) or any(start < 0 for start, _ in ranges):
        raise KeyError("gather")
    return ranges, tuple(numbers.collapsed_slice_dims)


def taken(operand: Value, indices: Value, parameters: Any) -> tuple[int, list[int]]:
    """A gather that is `np.take` with known indices: the axis and the indices. KeyError if it is another kind."""
    numbers = parameters["dimension_numbers"]
    if not isinstance(indices, Constant) or len(indices.shape) != 2 or len(numbers.start_index_map) != 1:
        raise KeyError("gather")
    (axis,) = numbers.start_index_map
    others = tuple(a for a in range(len(operand.shape)) if a != axis)
    complete = all(parameters["slice_sizes"][a] == operand.shape[a] for a in others)
    plain = numbers.collapsed_slice_dims == (axis,) and numbers.offset_dims == others
    places = indices.whole()[:, 0].tolist()
    if not (complete and plain) or numbers.operand_batching_dims or min(places, default=0) < 0:
        raise KeyError("gather")
    return axis, places


def along_axis(name: str, inputs: Sequence[Value], equation: Any) -> int | None:
    """The axis of a call that is `np.take_along_axis` with indices of size 1 along the last axis; None for others."""
    gathers = [inner for inner in called(equation).jaxpr.eqns if inner.primitive.name == "gather"]
    if name != "take_along_axis" or not gathers:
        return None
    operand, indices = inputs
    numbers, last = gathers[-1].params["dimension_numbers"], len(operand.shape) - 1
    if len(numbers.start_index_map) != 1 or numbers.collapsed_slice_dims != numbers.start_index_map:
        return None
    (axis,) = numbers.start_index_map
    batched = tuple(a for a in range(last) if a != axis)
    aligned = numbers.operand_batching_dims == numbers.start_indices_batching_dims == batched
    single = len(indices.shape) == last + 1 and indices.shape[-1] == 1
    return axis if aligned and numbers.offset_dims == (last,) and single else None
