"""A traced policy as Python source that needs NumPy alone: `policy.py`, and `policy.safetensors` beside it.

`policy.py` compares both with the hashes in `metadata.json` when it is imported: it has numbers of the policy too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fidec.export import numpy_operations as operations
from fidec.export.jaxpr_walk import Constant, Reference, Value, along_axis, walk
from fidec.export.numpy_operations import HELPERS, shape_text
from fidec.export.random_inputs import called
from fidec.export.trace import Program
from fidec.store import files, trees

WIDTH = 100  # an expression that is used once is written where it is used if the line stays shorter than this
_TOKEN = re.compile("\x00(\\d+)\x01")
INDENT = "    "


class Source(NamedTuple):
    body: str  # the lines of a function (W, observations, noise) that ends with a return
    weights: dict[str, np.ndarray]  # by the names that the lines use
    helpers: list[str]  # names of `numpy_operations.HELPERS` that the lines call


class _Line(NamedTuple):
    target: int  # the number of the variable; -1 for a line that is no assignment
    text: str
    depth: int
    block: int


class NumpyWriter:
    """Collects lines. A variable is a number in a token, so that no name of an array can be taken for one."""

    format, others = "NumPy", ("onnx", "stablehlo")
    unrolls = False

    def __init__(self):
        self.lines: list[_Line] = []
        self.weights: dict[str, np.ndarray] = {}
        self.helpers: list[str] = []
        self._count, self._blocks, self._place = 0, [0], [0]

    # --- values as text

    def text(self, value: Value) -> str:
        """An expression for the value; of a constant that is the same number everywhere, only the number."""
        if isinstance(value, Reference):
            return value.name
        if value.uniform:
            return literal(value.array)
        if value.array.size <= 8:
            return f"np.array({value.array.tolist()!r}, np.{value.array.dtype.name})"
        for name, array in self.weights.items():
            if name.startswith("constant") and np.array_equal(array, value.array):
                return weight(name)
        name = f"constant/{sum(key.startswith('constant') for key in self.weights)}"
        self.weights[name] = np.ascontiguousarray(value.array)
        return weight(name)

    def array(self, value: Value) -> str:
        """An expression for the whole array."""
        if isinstance(value, Constant) and value.uniform and value.shape:
            return f"np.full({shape_text(value.shape)}, {literal(value.array)}, np.{value.dtype.name})"
        return self.text(value)

    def helper(self, name: str) -> str:
        if name not in self.helpers:
            self.helpers.append(name)
        return name

    # --- lines

    def fresh(self) -> tuple[int, str]:
        self._count += 1
        return self._count, f"\x00{self._count}\x01"

    def assign(self, text: str) -> str:
        number, token = self.fresh()
        self.add(number, text)
        return token

    def add(self, target: int, text: str) -> None:
        self.lines.append(_Line(target, text, len(self._place) - 1, self._place[-1]))

    def operation(self, name: str, inputs: Sequence[Value], equation: Any, number: int) -> str:
        return self.assign(operations.TABLE[name](self, inputs, equation, number))

    def call(self, name: str, inputs: Sequence[Value], equation: Any) -> str | None:
        if (axis := along_axis(name, inputs, equation)) is not None:
            return self.assign(f"np.take_along_axis({self.array(inputs[0])}, {self.array(inputs[1])}, {axis})")
        inner = {each.primitive.name for each in called(equation).jaxpr.eqns} if name == "solve" else ()
        if "lu" in inner and len(inputs) == 2:
            return self.assign(f"np.linalg.solve({self.array(inputs[0])}, {self.array(inputs[1])})")
        return None

    def loop(self, equation: Any, inputs: Sequence[Value]) -> list[Value]:
        parameters, body = equation.params, equation.params["jaxpr"]
        constants, carries, length = (parameters[name] for name in ("num_consts", "num_carry", "length"))
        fixed, start, columns = (
            inputs[:constants],
            inputs[constants : constants + carries],
            inputs[constants + carries :],
        )
        carry = [Reference(self.assign(self.array(value)), value.shape, value.dtype) for value in start]
        outputs = equation.outvars[carries:]
        lists = [self.assign("[]") for _ in outputs]
        rows: list[Value] = []
        iterated: list[tuple[str, str]] = []
        for column in columns:
            if isinstance(column, Constant) and column.uniform:
                rows.append(Constant(column.array, column.shape[1:]))
                continue
            name = self.fresh()[1]
            rows.append(Reference(name, column.shape[1:], column.dtype))
            iterated.append((name, self._column(column, parameters["reverse"])))
        names, texts = [name for name, _ in iterated], [text for _, text in iterated]
        if not names:
            names, texts = ["_"], [f"range({length})"]
        over = texts[0] if len(texts) == 1 else f"zip({', '.join(texts)})"
        self.add(-1, f"for {', '.join(names)} in {over}:")
        self._blocks.append(len(self._blocks))
        self._place.append(self._blocks[-1])
        results = walk(body, [*fixed, *carry, *rows], self)
        for name, value in zip(lists, results[carries:], strict=True):  # first: it may be the value before this step
            self.add(-1, f"{name}.append({self.array(value)})")
        if carry:
            left, right = [each.name for each in carry], [self.array(value) for value in results[:carries]]
            self.add(-1, f"{', '.join(left)} = {', '.join(right)}")
        self._place.pop()
        order = "[::-1]" if parameters["reverse"] else ""
        stacked = [
            Reference(self.assign(f"np.stack({name}{order})"), v.aval.shape, v.aval.dtype)
            for name, v in zip(lists, outputs, strict=True)
        ]
        return [*carry, *stacked]

    def _column(self, column: Value, reverse: bool) -> str:
        if isinstance(column, Constant) and column.array.ndim == 1:
            counting = np.arange(len(column.array), dtype=column.dtype)
            if np.array_equal(column.array, counting):
                text = f"np.arange({len(counting)}, dtype=np.{column.dtype.name})"
                return text + ("[::-1]" if reverse else "")
            if np.array_equal(column.array, counting[::-1]):
                text = f"np.arange({len(counting)}, dtype=np.{column.dtype.name})"
                return text + ("" if reverse else "[::-1]")
        return self.array(column) + ("[::-1]" if reverse else "")


def literal(array: Any) -> str:
    """A scalar as Python writes it: the shortest number that is the same in its precision."""
    value = np.asarray(array)[()]
    if isinstance(value, np.floating):
        return repr(float(str(value))) if np.isfinite(value) else f"np.float32({str(float(value))!r})"
    return repr(value.item())


def weight(name: str) -> str:
    return f"W[{name!r}]"


def argument(name: str) -> str:
    """An input in the source: `observations`, `noise`, or an entry of the dictionary of parts."""
    column, _, part = name.partition("/")
    return f"{column}[{part!r}]" if part else column


def write(program: Program) -> Source:
    """The lines of the policy, and the arrays that they use."""
    writer = NumpyWriter()
    writer.weights.update(program.weights)
    arguments: list[Value] = [Reference(weight(name), a.shape, a.dtype) for name, a in program.weights.items()]
    for name, kind in program.inputs().items():
        arguments.append(Reference(argument(name), kind.shape, kind.dtype))
    (actions,) = walk(program.jaxpr, arguments, writer)
    writer.add(-1, f"return {writer.array(actions)}")
    return Source(_render(writer.lines), writer.weights, writer.helpers)


def _render(lines: list[_Line]) -> str:
    """The text of the lines. What is used once, in the same block, is written where it is used."""
    uses: dict[int, list[int]] = {}
    for place, line in enumerate(lines):
        for match in _TOKEN.finditer(line.text):
            uses.setdefault(int(match[1]), []).append(place)
    texts = [line.text for line in lines]
    gone = set()
    for place, line in enumerate(lines):
        users = uses.get(line.target, [])
        if line.target < 0 or line.text == "[]" or len(users) != 1 or lines[users[0]].block != line.block:
            continue
        user = users[0]
        if lines[user].target < 0 and lines[user].text.startswith("for "):
            continue
        inlined = _inline(texts[user], f"\x00{line.target}\x01", texts[place])
        if len(_TOKEN.sub("xx", inlined)) <= WIDTH:
            texts[user] = inlined
            gone.add(place)
    numbers: dict[str, str] = {}
    name = lambda match: numbers.setdefault(match[1], f"x{len(numbers) + 1}")  # noqa: E731
    out = []
    for place, line in enumerate(lines):
        if place in gone or (line.target >= 0 and line.target not in uses):
            continue
        text = texts[place] if line.target < 0 else f"\x00{line.target}\x01 = {texts[place]}"
        out.append(INDENT * (line.depth + 1) + _TOKEN.sub(name, text))
    return "\n".join(out)


def _inline(text: str, token: str, part: str) -> str:
    """`text` with `part` in place of the token, in parentheses unless it is an argument of its own or closed."""
    before, _, after = text.partition(token)
    alone = not after or after.startswith((")", "]", ","))
    argument = alone and (not before or before.endswith(("(", "[", ", ", "return ")))
    return before + (part if argument or _closed(part) else f"({part})") + after


def _closed(text: str) -> bool:
    """Whether an expression can be an operand without parentheses: a name, a call, an index."""
    depth = 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if depth == 0 and character in " -~":
            return False
    return True


# --- the files ------------------------------------------------------------------------------------------------

_HEAD = '''"""A policy as a NumPy program. README.md describes it. Written by fidec; it needs NumPy alone.

    import policy
    actions = policy.act(observations{noise})
"""

import hashlib
import json
from pathlib import Path

import numpy as np


def read(name):
    """The bytes of a file beside this one; ValueError unless they have the SHA-256 of metadata.json."""
    data = Path(__file__).with_name(name).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    try:
        expected = json.loads(Path(__file__).with_name("metadata.json").read_bytes())["files"][name]
    except (KeyError, TypeError, ValueError):
        expected = "none"
    if found != expected:
        words = f"{{name}} has SHA-256 {{found}}, metadata.json has {{expected}}"
        raise ValueError(words + ": copy the whole export again")
    return data


def load(data):
    """The arrays of a safetensors file: the length of the header, the header as JSON, then the bytes."""
    length = int.from_bytes(data[:8], "little")
    types = {{"F32": "<f4", "I32": "<i4", "U32": "<u4", "U8": "|u1", "BOOL": "|b1"}}
    arrays = {{}}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            start, stop = (8 + length + offset for offset in entry["data_offsets"])
            array = np.frombuffer(data[start:stop], types[entry["dtype"]])
            arrays[name] = array.reshape(entry["shape"])
    return arrays


read("policy.py")
W = load(read("policy.safetensors"))
'''
_NOISE = '''

def draw_noise(batch, rng):
    """The noise of a batch; `rng` is a `numpy.random.Generator`."""
    return {draw}
'''


def write_files(directory: Path, program: Program, metadata: Mapping[str, Any]) -> None:
    source = write(program)
    trees.save_flat(directory / "policy.safetensors", source.weights)
    columns: Sequence[Any] = metadata["inputs"][-1]["columns"] if program.width else ()
    parts = [_HEAD.format(noise=", noise" if program.width else "")]
    parts += [f"\n\n{HELPERS[name]}" for name in source.helpers]
    if columns:
        parts.append(_NOISE.format(draw=_noise_source(columns)))
    noise = f", noise (batch, {program.width})" if program.width else ""
    inputs = {name: kind for name, kind in program.inputs().items() if name != "noise"}
    shapes = ", ".join(f"{argument(name)} ({', '.join(map(str, _sizes(kind)))})" for name, kind in inputs.items())
    lines = [f"{argument(name)} = np.asarray({argument(name)}, np.{kind.dtype})" for name, kind in inputs.items()]
    lines = ["observations = dict(observations)", *lines] if program.spec.parts else lines
    lines.append(f"B = len({argument(next(iter(inputs)))})")
    parts.append(
        f"\n\ndef act(observations{', noise' if program.width else ''}):\n"
        f'{INDENT}"""Actions for {shapes}{noise}. README.md has their units."""\n'
        + "".join(f"{INDENT}{line}\n" for line in lines)
        + f"{source.body}\n"
    )
    files.atomic_write(directory / "policy.py", "".join(parts))


def _noise_source(columns: Any) -> str:
    """Python that draws the noise of a batch."""
    parts = []
    for column in columns:
        size = f"(batch, {column['stop'] - column['start']})"
        if column["distribution"] == "uniform":
            parts.append(f"rng.uniform({column['low']!r}, {column['high']!r}, {size})")
        else:
            function = {"normal": "standard_normal", "gumbel": "gumbel"}[column["distribution"]]
            parts.append(f"rng.{function}({'size=' if function == 'gumbel' else ''}{size})")
    noise = parts[0] if len(parts) == 1 else f"np.concatenate([{', '.join(parts)}], axis=1)"
    return f"{noise}.astype(np.float32)"


def _sizes(kind: Any) -> list[Any]:
    return ["batch", *kind.shape[1:]]
