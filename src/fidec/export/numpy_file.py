"""The two files of an export to NumPy: `policy.py`, which needs NumPy alone, and `policy.safetensors`.

`policy.py` compares both with the hashes in `metadata.json` when it is imported: it has numbers of the policy too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fidec.export.card import noise_source
from fidec.export.numpy_operations import HELPERS
from fidec.export.numpy_source import INDENT, argument, write
from fidec.export.trace import Program
from fidec.store import files, trees

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
        parts.append(_NOISE.format(draw=noise_source(columns)))
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


def _sizes(kind: Any) -> list[Any]:
    return ["batch", *kind.shape[1:]]
