"""Run an export in a process without fidec: `python standalone_runner.py TARGET DIRECTORY INPUTS OUTPUTS`.

INPUTS is an npz file with observations (a part as `observations/NAME`) and, if the policy takes it, noise; all
in pieces of one size. OUTPUTS gets the actions. fidec and, but for StableHLO, JAX cannot be imported here.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np


def function_of(target, directory):
    """The policy as a function of one piece of the inputs."""
    if target == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(directory / "policy.onnx", providers=["CPUExecutionProvider"])
        return lambda inputs: session.run(["actions"], inputs)[0]
    if target == "stablehlo":
        import jax

        exported = jax.export.deserialize(bytearray((directory / "policy.stablehlo").read_bytes()))
        call = jax.jit(exported.call)
        return lambda inputs: np.asarray(call(*inputs.values()))
    spec = importlib.util.spec_from_file_location("policy", directory / "policy.py")
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return lambda inputs: module.act(**_arguments(inputs))


def _arguments(inputs):
    """The inputs with a dictionary of the parts of observations."""
    parts = {name.partition("/")[2]: array for name, array in inputs.items() if "/" in name}
    others = {name: array for name, array in inputs.items() if "/" not in name}
    return {**others, "observations": parts} if parts else others


def main(target, directory, source, result):
    for name in ("fidec", *(() if target == "stablehlo" else ("jax", "flax", "jaxlib"))):
        sys.modules[name] = None  # type: ignore[assignment]  # an import of it fails
    run = function_of(target, Path(directory))
    with np.load(source) as inputs:
        columns = {name: inputs[name] for name in inputs.files}
    pieces = range(len(next(iter(columns.values()))))
    actions = [np.asarray(run({name: array[piece] for name, array in columns.items()})) for piece in pieces]
    np.save(result, np.stack(actions))


if __name__ == "__main__":
    main(*sys.argv[1:])
