"""A traced policy as an ONNX graph. Loops are unrolled, and what depends on weights alone is computed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fidec.errors import ConfigError
from fidec.export import onnx_operations as operations
from fidec.export.jaxpr_walk import Constant, Reference, Value, along_axis, walk
from fidec.export.trace import Program, linear
from fidec.extras import require

OPSET, IR_VERSION = 17, 8  # read by onnxruntime from 1.12 on


class OnnxWriter:
    """Collects nodes and constants."""

    format, others = "ONNX", ("stablehlo", "numpy")
    unrolls = True

    def __init__(self, onnx: Any, weights: Mapping[str, np.ndarray], batched: str = "observations"):
        self.onnx, self.batched = onnx, batched  # an input whose first axis is the batch
        self.nodes: list[Any] = []
        self.constants: dict[str, np.ndarray] = {}
        self._by_content: dict[Any, str] = {}
        self._names = {id(array): name for name, array in weights.items()}
        self._sizes: dict[tuple[int, int], str] = {}

    def node(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node; the name of its result. Two equal nodes are one."""
        content = (kind, tuple(inputs), tuple(sorted((key, str(value)) for key, value in attributes.items())))
        if content not in self._by_content:
            output = f"x{len(self.nodes) + 1}"
            self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [output], **attributes))
            self._by_content[content] = output
        return self._by_content[content]

    def constant(self, array: Any, dtype: Any = None) -> str:
        """The name of a constant tensor. Equal ones are stored once."""
        original, array = array, np.asarray(array, dtype)
        content = (array.dtype.str, array.shape, array.tobytes())
        if content not in self._by_content:
            name = self._names.get(id(original), f"constant/{len(self.constants)}")
            self._by_content[content] = name
            self.constants[name] = array
        return self._by_content[content]

    def integers(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, np.int64))

    def text(self, value: Value) -> str:
        """The tensor of the value; of a constant that is the same number everywhere, a scalar."""
        return self.constant(value.array) if isinstance(value, Constant) else value.name

    def array(self, value: Value) -> str:
        """The whole tensor of the value."""
        if not isinstance(value, Constant) or not value.uniform or not value.shape:
            return self.text(value)
        if value.is_static:
            return self.constant(value.whole())
        fill = self.onnx.numpy_helper.from_array(value.array.reshape(1))
        return self.node("ConstantOfShape", [self.shape(value.shape)], value=fill)

    def shape(self, shape: Sequence[Any]) -> str:
        """A shape as a tensor of integers, computed from the batch size where it has it."""
        sizes = [linear(size) for size in shape]
        if all(not slope for slope, _ in sizes):
            return self.integers([start for _, start in sizes])
        return self.node("Concat", [self._size(*size) for size in sizes], axis=0)

    def _size(self, slope: int, start: int) -> str:
        if not slope:
            return self.integers([start])
        shape = self.node("Shape", [self.batched])
        batch = self.node("Slice", [shape, self.integers([0]), self.integers([1])])
        product = batch if slope == 1 else self.node("Mul", [batch, self.integers([slope])])
        return product if not start else self.node("Add", [product, self.integers([start])])

    def reshape(self, name: str, shape: Sequence[Any]) -> str:
        sizes = [linear(size) for size in shape]
        free = [slope for slope, _ in sizes if slope]
        if len(free) > 1:
            return self.node("Reshape", [name, self.shape(shape)])
        return self.node("Reshape", [name, self.integers([-1 if slope else start for slope, start in sizes])])

    def operation(self, name: str, inputs: Sequence[Value], equation: Any, number: int) -> str:
        return operations.TABLE[name](self, inputs, equation, number)

    def call(self, name: str, inputs: Sequence[Value], equation: Any) -> str | None:
        if (axis := along_axis(name, inputs, equation)) is None:
            return None
        indices = self.node("Expand", [self.array(inputs[1]), self.shape(equation.outvars[0].aval.shape)])
        return self.node("GatherElements", [self.array(inputs[0]), indices], axis=axis)

    def row(self, column: Reference, step: int) -> str:
        return self.node("Gather", [column.name, self.constant(np.int64(step))], axis=0)

    def stack(self, rows: Sequence[Value]) -> str:
        stacked = [self.node("Unsqueeze", [self.array(row), self.integers([0])]) for row in rows]
        return self.node("Concat", stacked, axis=0)

    def loop(self, equation: Any, inputs: Sequence[Value]) -> list[Value]:
        raise AssertionError("loops are unrolled")


def build(program: Program, metadata: Mapping[str, str]) -> bytes:
    """The model as the bytes of an ONNX file."""
    onnx = require("onnx", "export", "export to ONNX")
    require("onnx.helper", "export", "export to ONNX")
    writer = OnnxWriter(onnx, program.weights, next(iter(program.inputs())))
    arguments: list[Value] = [Constant(array, array.shape) for array in program.weights.values()]
    # A weight that is one number has no shape, which is how a constant that is the same everywhere looks, too.
    inputs = []
    for name, kind in program.inputs().items():
        arguments.append(Reference(name, kind.shape, kind.dtype))
        inputs.append(_type(onnx, name, kind.shape, kind.dtype))
    (actions,) = walk(program.jaxpr, arguments, writer)
    result = writer.array(actions)
    writer.nodes.append(onnx.helper.make_node("Identity", [result], ["actions"]))
    aval = program.jaxpr.jaxpr.outvars[0].aval
    used = {name for node in writer.nodes for name in node.input}
    graph = onnx.helper.make_graph(
        writer.nodes,
        "policy",
        inputs,
        [_type(onnx, "actions", aval.shape, aval.dtype)],
        [onnx.numpy_helper.from_array(a, name) for name, a in writer.constants.items() if name in used],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], producer_name="fidec")
    model.ir_version = IR_VERSION
    onnx.helper.set_model_props(model, dict(metadata))
    if model.ByteSize() >= 2**31:
        raise ConfigError(
            "the policy has more than 2 GB, which an ONNX file cannot hold; try --to stablehlo or numpy"
        )
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _type(onnx: Any, name: str, shape: Sequence[Any], dtype: Any) -> Any:
    sizes = [size if isinstance(size, int) else "batch" for size in shape]
    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), sizes)
