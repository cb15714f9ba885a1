"""How each operation of a traced program is written as ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fidec.export.jaxpr_walk import Constant, Reference, Value, fixed_slice, taken
from fidec.export.numpy_operations import check_conv, pool_of
from fidec.export.trace import linear

Translation = Callable[[Any, Sequence[Value], Any, int], str]


def _operands(writer: Any, inputs: Sequence[Value], equation: Any) -> list[str]:
    """Operands by name. A scalar stands for a whole constant if another operand has the result's shape."""
    shape = equation.outvars[0].aval.shape
    carries = any(value.shape == shape and not (isinstance(value, Constant) and value.uniform) for value in inputs)
    return [writer.text(value) if carries else writer.array(value) for value in inputs]


def _node(kind: str) -> Translation:
    return lambda writer, inputs, equation, _: writer.node(kind, _operands(writer, inputs, equation))


def _one(writer: Any, like: Value) -> str:
    return writer.constant(np.ones((), like.dtype))


def _log1p(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return writer.node("Log", [writer.node("Add", [_one(writer, inputs[0]), writer.text(inputs[0])])])


def _expm1(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return writer.node("Sub", [writer.node("Exp", [writer.text(inputs[0])]), _one(writer, inputs[0])])


def _rsqrt(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return writer.node("Reciprocal", [writer.node("Sqrt", [writer.text(inputs[0])])])


def _square(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return writer.node("Mul", [writer.text(inputs[0])] * 2)


def _integer_pow(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    power, x = equation.params["y"], writer.text(inputs[0])
    if power in (2, 3):
        square = writer.node("Mul", [x, x])
        return square if power == 2 else writer.node("Mul", [square, x])
    return writer.node("Pow", [x, writer.constant(np.asarray(power, inputs[0].dtype))])


def _not_equal(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return writer.node("Not", [writer.node("Equal", _operands(writer, inputs, equation))])


def _select(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    if len(inputs) != 3 or inputs[0].dtype != np.bool_:
        raise KeyError("select_n")
    choice, first, second = _operands(writer, inputs, equation)
    return writer.node("Where", [choice, second, first])


def _clamp(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    low, x, high = _operands(writer, inputs, equation)
    return writer.node("Min", [writer.node("Max", [x, low]), high])


def _convert(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    kind = writer.onnx.helper.np_dtype_to_tensor_dtype(np.dtype(equation.outvars[0].aval.dtype))
    return writer.node("Cast", [writer.text(inputs[0])], to=kind)


# --- shapes --------------------------------------------------------------------------------------------------


def _reshape(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return writer.reshape(writer.array(inputs[0]), equation.outvars[0].aval.shape)


def _broadcast(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    value, shape = inputs[0], equation.outvars[0].aval.shape
    aligned = [1] * len(shape)
    for place, size in zip(equation.params["broadcast_dimensions"], value.shape, strict=True):
        aligned[place] = size
    name = writer.text(value)
    if aligned[len(shape) - len(value.shape) :] != list(value.shape) or aligned == list(shape):
        name = writer.reshape(name, aligned)
    return name if aligned == list(shape) else writer.node("Expand", [name, writer.shape(shape)])


def _transpose(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return writer.node("Transpose", [writer.array(inputs[0])], perm=list(equation.params["permutation"]))


def _flip(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    axes = list(equation.params["dimensions"])
    end = np.iinfo(np.int64)
    ranges = [[-1] * len(axes), [end.min] * len(axes), axes, [-1] * len(axes)]
    return writer.node("Slice", [writer.array(inputs[0]), *map(writer.integers, ranges)])


def _concatenate(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return writer.node("Concat", list(map(writer.array, inputs)), axis=equation.params["dimension"])


def _stack(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    axis = equation.params.get("axis", 0)
    rows = [writer.node("Unsqueeze", [writer.array(value), writer.integers([axis])]) for value in inputs]
    return writer.node("Concat", rows, axis=axis)


def _cut(writer: Any, operand: Value, ranges: Sequence[tuple[Any, Any, Any]]) -> str:
    """The part of (start, stop, step) along each axis."""
    parts = []
    for axis, ((start, stop, step), size) in enumerate(zip(ranges, operand.shape, strict=True)):
        (slope, first), last, whole = linear(start), linear(stop), linear(size)
        if slope or (last[0] and last != whole):
            raise KeyError("slice")  # a place that depends on the batch size
        if first or last != whole or step != 1:
            parts.append((first, np.iinfo(np.int64).max if last == whole else last[1], axis, step))
    name = writer.array(operand)
    if not parts:
        return name
    return writer.node("Slice", [name, *(writer.integers(each) for each in zip(*parts, strict=True))])


def _slice(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    starts, stops, steps = (equation.params[name] for name in ("start_indices", "limit_indices", "strides"))
    return _cut(writer, inputs[0], list(zip(starts, stops, steps or [1] * len(starts), strict=True)))


def _split(writer: Any, inputs: Sequence[Value], equation: Any, number: int) -> str:
    sizes, axis = equation.params["sizes"], equation.params["axis"]
    ranges: list[Any] = [(0, size, 1) for size in inputs[0].shape]
    ranges[axis] = (sum(sizes[:number]), sum(sizes[: number + 1]), 1)
    return _cut(writer, inputs[0], ranges)


def _gather(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    if len(inputs[1].shape) == 2:
        axis, places = taken(inputs[0], inputs[1], equation.params)
        return writer.node("Gather", [writer.array(inputs[0]), writer.integers(places)], axis=axis)
    ranges, dropped = fixed_slice(inputs[1], equation.params)
    name = _cut(writer, inputs[0], [(start, start + size, 1) for start, size in ranges])
    return writer.reshape(name, equation.outvars[0].aval.shape) if dropped else name


def _dynamic_slice(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    operand, *starts = inputs
    if not all(isinstance(start, Constant) for start in starts):
        raise KeyError("dynamic_slice")
    firsts = [int(start.array) for start in starts if isinstance(start, Constant)]
    sizes = equation.params["slice_sizes"]
    return _cut(writer, operand, [(first, first + size, 1) for first, size in zip(firsts, sizes, strict=True)])


# --- sums and products ---------------------------------------------------------------------------------------


def _reduce(kind: str) -> Translation:
    def write(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
        axes, name = list(equation.params["axes"]), writer.array(inputs[0])
        if kind == "ReduceSum":  # the only one whose axes are an input in this version of ONNX
            return writer.node(kind, [name, writer.integers(axes)], keepdims=0)
        return writer.node(kind, [name], axes=axes, keepdims=0)

    return write


def _argmax(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    (axis,) = equation.params["axes"]
    return writer.node("ArgMax", [writer.array(inputs[0])], axis=axis, keepdims=0)


def _dot(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    """A matrix product, with the axes in the order (batch, free, summed) x (batch, summed, free)."""
    (left_axes, right_axes), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left, right = inputs
    free = [
        [axis for axis in range(len(value.shape)) if axis not in (*axes, *batch)]
        for value, axes, batch in ((left, left_axes, left_batch), (right, right_axes, right_batch))
    ]
    first = _ordered(writer, left, [*left_batch, *free[0], *left_axes])
    second = _ordered(writer, right, [*right_batch, *right_axes, *free[1]])
    simple = len(left_axes) == 1 and (len(free[1]) == 1) and (not left_batch or len(free[0]) == 1)
    if simple:
        return writer.node("MatMul", [writer.array(first), writer.array(second)])
    batch = [left.shape[axis] for axis in left_batch]
    summed = math.prod(int(left.shape[axis]) for axis in left_axes)
    columns = math.prod(int(right.shape[axis]) for axis in free[1])
    rows = _product([left.shape[axis] for axis in free[0]])
    first_name = _as_matrix(writer, first, [*batch, rows, summed])
    second_name = _as_matrix(writer, second, [*batch, summed, columns])
    return writer.reshape(writer.node("MatMul", [first_name, second_name]), equation.outvars[0].aval.shape)


def _ordered(writer: Any, value: Value, order: Sequence[int]) -> Value:
    if list(order) == list(range(len(order))):
        return value
    shape = tuple(value.shape[axis] for axis in order)
    if isinstance(value, Constant) and not value.uniform:
        return Constant(np.ascontiguousarray(value.array.transpose(order)), shape)
    return Reference(writer.node("Transpose", [writer.array(value)], perm=list(order)), shape, value.dtype)


def _as_matrix(writer: Any, value: Value, shape: Sequence[Any]) -> str:
    if isinstance(value, Constant) and not value.uniform:
        return writer.constant(value.array.reshape([int(size) for size in shape]))
    return writer.reshape(writer.array(value), shape)


def _product(sizes: Sequence[Any]) -> Any:
    total: Any = 1
    for size in sizes:
        total = total * size
    return total


def _conv(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    parameters = equation.params
    check_conv(parameters)
    kernel = _ordered(writer, inputs[1], (3, 2, 0, 1))
    (top, bottom), (left, right) = parameters["padding"]
    options = {"strides": list(parameters["window_strides"]), "pads": [top, left, bottom, right]}
    x = writer.node("Transpose", [writer.array(inputs[0])], perm=[0, 3, 1, 2])
    return writer.node("Transpose", [writer.node("Conv", [x, writer.array(kernel)], **options)], perm=[0, 2, 3, 1])


def _max_pool(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    window, strides, ((top, bottom), (left, right)) = pool_of(equation.params)
    options = {"kernel_shape": list(window), "strides": list(strides), "pads": [top, left, bottom, right]}
    x = writer.node("Transpose", [writer.array(inputs[0])], perm=[0, 3, 1, 2])
    return writer.node("Transpose", [writer.node("MaxPool", [x], **options)], perm=[0, 2, 3, 1])


_NODES = {"add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "max": "Max", "min": "Min"}
_NODES |= {"pow": "Pow", "neg": "Neg", "abs": "Abs", "sign": "Sign", "sqrt": "Sqrt", "exp": "Exp", "log": "Log"}
_NODES |= {"tanh": "Tanh", "logistic": "Sigmoid", "sin": "Sin", "cos": "Cos", "tan": "Tan", "erf": "Erf"}
_NODES |= {"floor": "Floor", "ceil": "Ceil", "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater"}
_NODES |= {"ge": "GreaterOrEqual", "and": "And", "or": "Or", "xor": "Xor", "not": "Not"}
TABLE: dict[str, Translation] = {
    **{name: _node(kind) for name, kind in _NODES.items()},
    **{f"reduce_{name.lower()}": _reduce(f"Reduce{name}") for name in ("Sum", "Max", "Min", "Prod")},
    "argmax": _argmax,
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "concatenate": _concatenate,
    "conv_general_dilated": _conv,
    "convert_element_type": _convert,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "expand_dims": _reshape,
    "expm1": _expm1,
    "gather": _gather,
    "integer_pow": _integer_pow,
    "log1p": _log1p,
    "ne": _not_equal,
    "reduce_window_max": _max_pool,
    "reshape": _reshape,
    "rev": _flip,
    "rsqrt": _rsqrt,
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "square": _square,
    "squeeze": _reshape,
    "stack": _stack,
    "transpose": _transpose,
}
