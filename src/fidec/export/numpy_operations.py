"""How each operation of a traced program is written with NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fidec.export.jaxpr_walk import Constant, Value, fixed_slice, taken
from fidec.export.trace import BATCH, linear

Translation = Callable[[Any, Sequence[Value], Any, int], str]


# --- functions that are copied into the written file ---------------------------------------------------------


def sigmoid(x):
    return 0.5 * np.tanh(0.5 * x) + 0.5


def cube(x):
    return x * x * x


def conv(x, kernel, strides, pads):
    """Convolution of images (batch, height, width, channels)."""
    x = np.pad(x, ((0, 0), *pads, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel.shape[:2], axis=(1, 2))
    return np.tensordot(windows[:, :: strides[0], :: strides[1]], kernel, ((3, 4, 5), (2, 0, 1)))


def max_pool(x, window, strides, pads):
    x = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(x, window, axis=(1, 2))
    return windows[:, :: strides[0], :: strides[1]].max(axis=(-2, -1))


HELPERS = {function.__name__: inspect.getsource(function) for function in (sigmoid, cube, conv, max_pool)}


# --- elementwise ---------------------------------------------------------------------------------------------


def _operands(writer: Any, inputs: Sequence[Value], equation: Any) -> list[str]:
    """Operands as text. A number stands for a whole constant if another operand has the result's shape."""
    shape = equation.outvars[0].aval.shape
    carries = any(value.shape == shape and not (isinstance(value, Constant) and value.uniform) for value in inputs)
    return [_operand(writer.text(value) if carries else writer.array(value)) for value in inputs]


def _operand(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def _infix(symbol: str) -> Translation:
    return lambda writer, inputs, equation, _: f" {symbol} ".join(_operands(writer, inputs, equation))


def _call(function: str) -> Translation:
    return lambda writer, inputs, equation, _: f"{function}({', '.join(_operands(writer, inputs, equation))})"


def _helper(function: str) -> Translation:
    return lambda writer, inputs, equation, _: f"{writer.helper(function)}({writer.text(inputs[0])})"


def _integer_pow(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    power = equation.params["y"]
    if power == 2:
        return f"np.square({writer.text(inputs[0])})"
    if power == 3:  # `x ** 3` takes many times as long
        return f"{writer.helper('cube')}({writer.text(inputs[0])})"
    return f"np.power({writer.text(inputs[0])}, {float(power)})"


def _select(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    if len(inputs) != 3 or inputs[0].dtype != np.bool_:
        raise KeyError("select_n")
    choice, first, second = _operands(writer, inputs, equation)
    if all(isinstance(value, Constant) for value in inputs[1:]):  # two plain numbers would become float64
        first = f"np.{inputs[1].dtype.name}({first})"
    return f"np.where({choice}, {second}, {first})"


def _clamp(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    low, x, high = _operands(writer, inputs, equation)
    return f"np.minimum(np.maximum({x}, {low}), {high})"


def _convert(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return f"{writer.text(inputs[0])}.astype(np.{equation.outvars[0].aval.dtype.name})"


# --- shapes --------------------------------------------------------------------------------------------------


def _reshape(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return f"{writer.array(inputs[0])}.reshape{shape_text(equation.outvars[0].aval.shape)}"


def shape_text(shape: Sequence[Any]) -> str:
    """A shape as a tuple, or as the arguments of `reshape`."""
    sizes = [size_text(size) for size in shape]
    if not sizes:
        return "(())"
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def size_text(size: Any) -> str:
    slope, start = linear(size)
    if not slope:
        return str(start)
    product = BATCH if slope == 1 else f"{slope} * {BATCH}"
    return product if not start else f"{product} + {start}"


def _broadcast(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    value, shape = inputs[0], equation.outvars[0].aval.shape
    text, places = writer.text(value), equation.params["broadcast_dimensions"]
    if not value.shape:
        return f"np.full({shape_text(shape)}, {text}, np.{value.dtype.name})"
    aligned = [1] * len(shape)
    for place, size in zip(places, value.shape, strict=True):
        aligned[place] = size
    if tuple(aligned[len(shape) - len(value.shape) :]) != tuple(value.shape) or tuple(aligned) == tuple(shape):
        text = f"{text}.reshape{shape_text(aligned)}"
    return text if tuple(aligned) == tuple(shape) else f"np.broadcast_to({text}, {shape_text(shape)})"


def _transpose(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return f"{writer.array(inputs[0])}.transpose{tuple(equation.params['permutation'])}"


def _flip(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return f"np.flip({writer.array(inputs[0])}, {tuple(equation.params['dimensions'])})"


def _concatenate(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return f"np.concatenate([{', '.join(map(writer.array, inputs))}], axis={equation.params['dimension']})"


def _stack(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    return f"np.stack([{', '.join(map(writer.array, inputs))}], axis={equation.params.get('axis', 0)})"


def _ranges(ranges: Sequence[tuple[Any, Any, Any]], shape: Sequence[Any]) -> str:
    """The index of (start, stop, step) for each axis."""
    parts = []
    for (start, stop, step), size in zip(ranges, shape, strict=True):
        whole = linear(start) == (0, 0) and linear(stop) == linear(size)
        first = "" if linear(start) == (0, 0) else size_text(start)
        last = "" if whole or linear(stop) == linear(size) else size_text(stop)
        parts.append(f"{first}:{last}" + (f":{step}" if step != 1 else ""))
    while parts and parts[-1] == ":":
        parts.pop()
    return ", ".join(parts)


def _slice(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    names = ("start_indices", "limit_indices", "strides")
    starts, stops, steps = (equation.params[name] for name in names)
    ranges = list(zip(starts, stops, steps or [1] * len(starts), strict=True))
    return f"{writer.array(inputs[0])}[{_ranges(ranges, inputs[0].shape) or ':'}]"


def _split(writer: Any, inputs: Sequence[Value], equation: Any, number: int) -> str:
    sizes, axis = equation.params["sizes"], equation.params["axis"]
    start = sum(sizes[:number])
    ranges: list[Any] = [(0, size, 1) for size in inputs[0].shape]
    ranges[axis] = (start, start + sizes[number], 1)
    return f"{writer.array(inputs[0])}[{_ranges(ranges, inputs[0].shape) or ':'}]"


def _gather(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    operand = inputs[0]
    if len(inputs[1].shape) == 2:
        axis, places = taken(operand, inputs[1], equation.params)
        return f"np.take({writer.array(operand)}, {places}, axis={axis})"
    ranges, dropped = fixed_slice(inputs[1], equation.params)
    index = [(start, start + size, 1) for start, size in ranges]
    text = writer.array(operand)
    if dropped == (0,) and all(r[0] == 0 and r[1] == s for r, s in zip(index[1:], operand.shape[1:], strict=True)):
        return f"{text}[{ranges[0][0]}]"
    sliced = _ranges(index, operand.shape)
    text = f"{text}[{sliced}]" if sliced else text
    return f"{text}.reshape{shape_text(equation.outvars[0].aval.shape)}" if dropped else text


def _dynamic_slice(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    operand, *starts = inputs
    parts = []
    for start, size, whole in zip(starts, equation.params["slice_sizes"], operand.shape, strict=True):
        first = writer.text(start)
        parts.append(":" if linear(size) == linear(whole) else f"{first}:{first} + {size}")
    return f"{writer.array(operand)}[{', '.join(parts)}]"


# --- sums and products ---------------------------------------------------------------------------------------


def _reduce(method: str) -> Translation:
    def write(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
        axes = tuple(equation.params["axes"])
        return f"{writer.array(inputs[0])}.{method}(axis={axes[0] if len(axes) == 1 else axes})"

    return write


def _argmax(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    (axis,) = equation.params["axes"]
    return f"np.argmax({writer.array(inputs[0])}, axis={axis})"


def _dot(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    (left_axes, right_axes), (left_batch, right_batch) = equation.params["dimension_numbers"]
    left, right = map(writer.array, inputs)
    rank = len(inputs[0].shape)
    if not left_batch and left_axes == (rank - 1,) and right_axes == (0,) and len(inputs[1].shape) == 2:
        return f"{left} @ {right}"
    if not left_batch:
        return f"np.tensordot({left}, {right}, ({tuple(left_axes)}, {tuple(right_axes)}))"
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    names = [[""] * rank, [""] * len(inputs[1].shape)]
    for pairs in ((left_batch, right_batch), (left_axes, right_axes)):
        for i, j in zip(*pairs, strict=True):
            names[0][i] = names[1][j] = next(letters)
    free = [[axis for axis, name in enumerate(each) if not name] for each in names]
    for each, axes in zip(names, free, strict=True):
        for axis in axes:
            each[axis] = next(letters)
    out = [names[0][i] for i in left_batch] + [each[a] for each, axes in zip(names, free, strict=True) for a in axes]
    return f"np.einsum('{''.join(names[0])},{''.join(names[1])}->{''.join(out)}', {left}, {right})"


def _conv(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    parameters = equation.params
    check_conv(parameters)
    strides, pads = tuple(parameters["window_strides"]), tuple(map(tuple, parameters["padding"]))
    return f"{writer.helper('conv')}({writer.array(inputs[0])}, {writer.array(inputs[1])}, {strides}, {pads})"


def check_conv(parameters: Any) -> None:
    """KeyError unless it is a plain convolution of images (batch, height, width, channels)."""
    numbers = parameters["dimension_numbers"]
    plain = numbers.lhs_spec == numbers.out_spec == (0, 3, 1, 2) and numbers.rhs_spec == (3, 2, 0, 1)
    dilated = {*parameters["lhs_dilation"], *parameters["rhs_dilation"]} != {1}
    grouped = parameters["feature_group_count"] != 1 or parameters["batch_group_count"] != 1
    if not plain or dilated or grouped or any(pad < 0 for pads in parameters["padding"] for pad in pads):
        raise KeyError("conv_general_dilated")


def pool_of(parameters: Any) -> tuple[tuple[int, ...], tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Window, strides and padding of the two middle axes. KeyError unless only these are pooled."""
    window, strides = parameters["window_dimensions"], parameters["window_strides"]
    pads = tuple(map(tuple, parameters["padding"]))
    outer = (window[0], window[-1], strides[0], strides[-1], *pads[0], *pads[-1])
    dilated = {*parameters["base_dilation"], *parameters["window_dilation"]} != {1}
    if len(window) != 4 or outer != (1, 1, 1, 1, 0, 0, 0, 0) or dilated:
        raise KeyError("reduce_window_max")
    return tuple(window[1:3]), tuple(strides[1:3]), pads[1:3]


def _max_pool(writer: Any, inputs: Sequence[Value], equation: Any, _: int) -> str:
    window, strides, pads = pool_of(equation.params)
    return f"{writer.helper('max_pool')}({writer.array(inputs[0])}, {window}, {strides}, {pads})"


_INFIX = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<"}
_INFIX |= {"le": "<=", "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "^"}
_CALLS = {"max": "np.maximum", "min": "np.minimum", "pow": "np.power", "abs": "np.abs", "neg": "np.negative"}
_CALLS |= {name: f"np.{name}" for name in ("exp", "log", "log1p", "expm1", "tanh", "sin", "cos", "tan", "sqrt")}
_CALLS |= {name: f"np.{name}" for name in ("square", "sign", "floor", "ceil", "cbrt")}
_CALLS |= {"not": "np.logical_not", "is_finite": "np.isfinite", "rsqrt": "1.0 / np.sqrt"}
TABLE: dict[str, Translation] = {
    **{name: _infix(symbol) for name, symbol in _INFIX.items()},
    **{name: _call(function) for name, function in _CALLS.items()},
    **{f"reduce_{name}": _reduce(name) for name in ("sum", "max", "min", "prod")},
    "argmax": _argmax,
    "broadcast_in_dim": _broadcast,
    "clamp": _clamp,
    "concatenate": _concatenate,
    "conv_general_dilated": _conv,
    "convert_element_type": _convert,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "expand_dims": _reshape,
    "gather": _gather,
    "integer_pow": _integer_pow,
    "logistic": _helper("sigmoid"),
    "reduce_and": _reduce("all"),
    "reduce_or": _reduce("any"),
    "reduce_window_max": _max_pool,
    "reshape": _reshape,
    "rev": _flip,
    "select_n": _select,
    "slice": _slice,
    "split": _split,
    "squeeze": _reshape,
    "stack": _stack,
    "transpose": _transpose,
}
