"""What is written beside an export: metadata.json and README.md, the model card."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fidec.errors import RunError
from fidec.export.trace import Program
from fidec.parts import named
from fidec.store import versions
from fidec.store.rundir import RunDirectory, is_run
from fidec.train.acting import OF_A_CALL, ActOptions
from fidec.train.policy import Policy

FORMAT = 1
METADATA = "metadata.json"
FILES = {"onnx": ("policy.onnx",), "stablehlo": ("policy.stablehlo",), "numpy": ("policy.py", "policy.safetensors")}
NEEDS = {"onnx": "onnxruntime", "stablehlo": "jax, flatbuffers", "numpy": "numpy"}
TITLES = {"onnx": "ONNX", "stablehlo": "StableHLO", "numpy": "NumPy"}
CALLS = {
    "onnx": 'Call `onnxruntime.InferenceSession("policy.onnx").run(["actions"], inputs)`, a dictionary by name.',
    "stablehlo": 'Call `jax.export.deserialize(bytearray(open("policy.stablehlo", "rb").read())).call(*inputs)`.',
    "numpy": "Call `policy.act` after `import policy`, which checks the hashes. Several parts are a dictionary.",
}
# Names that others gave: the files hold no code or markup from them.
_HARMLESS = {ord(character): None for character in "`<>[]|\\*#"}


def describe(policy: Policy, program: Program, act: ActOptions, target: str, license: str | None) -> dict[str, Any]:
    """The metadata that do not depend on the run or the verification."""
    spec, low_high = policy.spec, policy.spec.bounds
    parts = named("observations", spec.observations(lambda part: part))
    statistics = policy.info.get("data_statistics", {})
    names = statistics.get("observations", {}).get("names", {})  # of the only part, or by part
    names = names if isinstance(names, dict) else {"": names}
    inputs: list[dict[str, Any]] = [
        {
            "name": name,
            "shape": ["batch", *part.shape],
            "dtype": part.dtype,
            "units": "of the data that was trained on; normalisation is inside"
            if part.mean is not None
            else "of the data that was trained on",
            "frame_stack": spec.frame_stack if part.image else 1,
            **({"history": spec.history} if spec.history > 1 and not part.image else {}),
            **({"names": names[part.name]} if part.name in names else {}),
        }
        for name, part in parts.items()
    ]
    if program.width:
        columns = []
        for column in program.columns:
            bounds = {} if column.draw.low is None else {"low": column.draw.low, "high": column.draw.high}
            columns.append({"start": column.start, "stop": column.stop, "distribution": column.draw.kind, **bounds})
        inputs.append({"name": "noise", "shape": ["batch", program.width], "dtype": "float32", "columns": columns})
    steps = [spec.chunk] if spec.chunk > 1 else []
    output = {"name": "actions", "shape": ["batch", *steps, spec.step_dim], "dtype": "float32"}
    output |= {"units": "of the data that was trained on", "low": low_high[0], "high": low_high[1]}
    described = statistics.get("actions", {})
    output |= {name: described[name] for name in ("names", "kind") if name in described}
    return {
        "format": FORMAT,
        "target": target,
        "fidec": versions.version("fidec"),
        "algo": policy.algo,
        "step": policy.info.get("step"),
        "license": license,
        "chunk": spec.chunk,
        "replan": act.replan,
        "ensemble": act.ensemble,
        "delay": spec.delay,
        **{name: getattr(act, name) for name in OF_A_CALL},
        "inputs": inputs,
        "outputs": [output],
    }


def describe_data(directory: Path | None) -> dict[str, Any] | None:
    """The data of the run, as far as it is recorded."""
    if directory is None or not is_run(directory):
        return None
    try:
        data = RunDirectory.open(directory, read_only=True).read_environment().get("dataset") or {}
    except RunError:
        return None
    return {name: data.get(name) for name in ("name", "transitions", "sha256")}


def plain(text: Any) -> str:
    """Text from a file or a user on one line, without characters that markdown or HTML would act on."""
    words = " ".join(str(text).translate(_HARMLESS).split())
    return "".join(character for character in words if character.isprintable())[:200]


def readme(metadata: Mapping[str, Any], digest: str) -> str:
    """The model card; `digest` is the SHA-256 of metadata.json."""
    target, verification, data = (metadata[name] for name in ("target", "verification", "data"))
    (actions,) = metadata["outputs"]
    trained = "" if metadata["step"] is None else f", after {metadata['step']} training steps"
    facts = [
        f"Licence: {plain(metadata['license'] or 'none stated')}",
        f"Method: {plain(metadata['algo'])}{trained}",
        f"SHA-256 of the policy's arrays: `{metadata['policy_sha256']}`",
    ]
    if data is not None:
        facts.append(f"Data: {plain(data['name'])}, {data['transitions']} transitions, SHA-256 `{data['sha256']}`")
    if dials := [f"{name} {metadata[name]:g}" for name in OF_A_CALL if metadata[name] != 1]:
        facts.append(f"Fixed at export: {', '.join(dials)}")
    bounds = f"units of the data, from {_numbers(actions['low'])} to {_numbers(actions['high'])}"
    if metadata["chunk"] > 1:
        bounds += f"; {metadata['chunk']} steps, of which the first {metadata['replan']} are played before the next"
    rows = [(entry, _content(entry)) for entry in metadata["inputs"]] + [(actions, bounds)]
    real = f"{verification['real']} from the data" if verification["real"] else "none from the data"
    ties = f" {verification['ties']} ties between candidates were not compared." if verification["ties"] else ""
    hashes = {**metadata["files"], METADATA: digest}
    return f"""# A policy as {TITLES[target]}

Exported by fidec {metadata["fidec"]}. It needs {NEEDS[target]}, and not fidec. `metadata.json` has all facts.

{chr(10).join(f"- {fact}" for fact in facts)}

## Inputs and output

| name | shape | type | content |
|---|---|---|---|
{chr(10).join(_row(*row) for row in rows)}

The batch size is free. {CALLS[target]}

## Check of the files

A damaged file may give other actions without an error. In this directory (on macOS with `shasum -a 256`):

```sh
sha256sum --check <<END
{chr(10).join(f"{hashed}  {name}" for name, hashed in hashes.items())}
END
```

## Verification

Compared with fidec's own policy for {verification["random"]} random observations and {real}, with the same noise.
Largest difference: {verification["largest_difference"]:.1e} of half the action range (refused above
{verification["tolerance"]:.0e}).{ties}
"""


def _content(entry: Mapping[str, Any]) -> str:
    """What an input holds, in words."""
    if "columns" in entry:
        return "; ".join([*map(_distribution, entry["columns"]), "zeros give the action without noise"])
    words = [f"units {entry['units']}"]
    if entry["frame_stack"] > 1:
        words.append(f"{entry['frame_stack']} frames, the oldest first")
    if "history" in entry:
        words.append(f"{entry['history']} successive vectors, the oldest first")
    return "; ".join(words)


def _row(entry: Mapping[str, Any], content: str) -> str:
    shape = f"({', '.join(map(str, entry['shape']))})"
    return f"| `{entry['name']}` | {shape} | {entry['dtype']} | {content} |"


def _distribution(column: Mapping[str, Any]) -> str:
    names = {"normal": "standard normal", "gumbel": "standard Gumbel", "uniform": "uniform"}
    limits = f" from {column['low']:g} to {column['high']:g}" if "low" in column else ""
    return f"columns {column['start']} to {column['stop'] - 1} {names[column['distribution']]}{limits}"


def _numbers(values: Any) -> str:
    values = [f"{value:g}" for value in values]
    return values[0] if len(set(values)) == 1 else f"[{', '.join(values)}]"
