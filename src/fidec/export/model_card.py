"""What is written beside an export: metadata.json and README.md, the model card."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fidec.errors import RunError
from fidec.export.trace import Program
from fidec.parts import named
from fidec.store import versions
from fidec.store.rundir import RunDirectory, is_run
from fidec.train.acting import DIALS, ActOptions
from fidec.train.policy import Policy

FORMAT = 1
METADATA = "metadata.json"
FILES = {"onnx": ("policy.onnx",), "stablehlo": ("policy.stablehlo",), "numpy": ("policy.py", "policy.safetensors")}
NEEDS = {"onnx": "onnxruntime", "stablehlo": "jax, flatbuffers", "numpy": "numpy"}
TITLES = {"onnx": "ONNX", "stablehlo": "StableHLO", "numpy": "NumPy"}
# Names that others gave: the files hold no code or markup from them.
_HARMLESS = {ord(character): None for character in "`<>[]|\\*_#"}


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
        "candidates": act.candidates,
        **{name: getattr(act, name) for name in DIALS},
        "inputs": inputs,
        "outputs": [output],
    }


def describe_run(directory: Path | None) -> dict[str, Any]:
    """The data and the last evaluation of the run, as far as they are recorded."""
    facts: dict[str, Any] = {"data": None, "evaluation": None}
    if directory is None or not is_run(directory):
        return facts
    run = RunDirectory.open(directory, read_only=True)
    try:
        data = run.read_environment().get("dataset") or {}
        facts["data"] = {name: data.get(name) for name in ("name", "transitions", "sha256")}
        rows = [row for row in run.read_jsonl("eval") if row.get("evaluation/score") is not None]
    except RunError:
        return facts
    if rows:
        names = ("score", "score_low", "score_high", "success", "return", "n")
        last = {name: rows[-1].get(f"evaluation/{name}") for name in names}
        facts["evaluation"] = {"step": rows[-1].get("step"), **{k: v for k, v in last.items() if v is not None}}
    return facts


def plain(text: Any) -> str:
    """Text from a file or a user on one line, without characters that markdown or HTML would act on."""
    words = " ".join(str(text).translate(_HARMLESS).split())
    return "".join(character for character in words if character.isprintable())[:200]


def readme(metadata: Mapping[str, Any], digest: str) -> str:
    """The model card; `digest` is the SHA-256 of metadata.json."""
    target, verification = metadata["target"], metadata["verification"]
    noise = [entry for entry in metadata["inputs"] if entry["name"] == "noise"]
    (actions,) = metadata["outputs"]
    data, evaluation, step = metadata["data"], metadata["evaluation"], metadata["step"]
    lines = [
        f"# A policy of {plain(metadata['algo'])}, as {TITLES[target]}",
        "",
        f"Exported by fidec {metadata['fidec']}" + (f" after {step} training steps." if step is not None else "."),
        f"Using it needs {NEEDS[target]}, and not fidec. All facts of this page are in `metadata.json`.",
        "",
        f"- Licence: {plain(metadata['license'] or 'none stated')}",
        f"- SHA-256 of the policy's arrays: `{metadata['policy_sha256']}`",
    ]
    if data is not None:
        lines.append(f"- Data: {plain(data['name'])}, {data['transitions']} transitions, SHA-256 `{data['sha256']}`")
    dials = [f"{name} {metadata[name]:g}" for name in ("candidates", *DIALS) if metadata[name] != 1]
    if dials:
        lines.append(f"- Fixed at export: {', '.join(dials)}")
    lines += ["", "## Inputs and output", "", "| name | shape | type | content |", "|---|---|---|---|"]
    for entry in metadata["inputs"][: -1 if noise else None]:
        lines.append(_row(entry, entry["units"] + _stacked(entry)))
    for entry in noise:
        parts = [_distribution(column) for column in entry["columns"]]
        lines.append(_row(entry, "; ".join(parts) + "; zeros give the action without noise"))
    bounds = f"units of the data, from {_numbers(actions['low'])} to {_numbers(actions['high'])}"
    if metadata["chunk"] > 1:
        bounds += f"; {metadata['chunk']} steps, of which the first {metadata['replan']} are played before the next"
    lines += [
        _row(actions, bounds),
        "",
        "## Use",
        "",
        "```python",
        snippet(metadata),
        "```",
        "",
        *_check(metadata, digest),
        "## Verification",
        "",
    ]
    real = f"{verification['real']} from the data" if verification["real"] else "none from the data"
    lines.append(
        f"Compared with fidec's own policy for {verification['random']} random observations and {real}, with the "
        f"same noise, in a process without fidec. Largest difference: {verification['largest_difference']:.1e} of "
        f"half the action range (refused above {verification['tolerance']:.0e})."
    )
    if verification["ties"]:
        lines.append(f"{verification['ties']} observations had two candidates of equal value and were not compared.")
    lines += ["", "## Scores", ""]
    if evaluation is None:
        lines.append("The run was not evaluated.")
    else:
        shown = [f"{name} {value:g}" for name, value in evaluation.items() if name not in ("step", "n")]
        episodes = f" over {evaluation['n']} episodes" if "n" in evaluation else ""
        lines.append(
            f"The run's last evaluation, at step {evaluation['step']}{episodes}, of fidec's own policy as the run "
            f"was configured: {', '.join(shown)}."
        )
    return "\n".join(lines) + "\n"


def _check(metadata: Mapping[str, Any], digest: str) -> list[str]:
    """How to find out whether the files are those that were exported."""
    checked = "`policy.py` compares itself and the arrays with the hashes in `metadata.json` when it is imported. "
    return [
        "## Check of the files",
        "",
        "A damaged file may give other actions without an error. "
        + (checked if metadata["target"] == "numpy" else "The program above does not check it. ")
        + "In this directory (on macOS with `shasum -a 256`):",
        "",
        "```sh",
        "sha256sum --check <<END",
        *(f"{sha}  {name}" for name, sha in {**metadata["files"], METADATA: digest}.items()),
        "END",
        "```",
        "",
    ]


def _stacked(entry: Mapping[str, Any]) -> str:
    """How many successive observations an input has, in words."""
    if entry["frame_stack"] > 1:
        return f"; {entry['frame_stack']} frames, the oldest first"
    return f"; {entry['history']} successive vectors, the oldest first" if "history" in entry else ""


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


def noise_source(columns: Any, generator: str = "rng") -> str:
    """Python that draws the noise of a batch."""
    parts = []
    for column in columns:
        size = f"(batch, {column['stop'] - column['start']})"
        if column["distribution"] == "uniform":
            parts.append(f"{generator}.uniform({column['low']!r}, {column['high']!r}, {size})")
        else:
            function = {"normal": "standard_normal", "gumbel": "gumbel"}[column["distribution"]]
            parts.append(f"{generator}.{function}({'size=' if function == 'gumbel' else ''}{size})")
    noise = parts[0] if len(parts) == 1 else f"np.concatenate([{', '.join(parts)}], axis=1)"
    return f"{noise}.astype(np.float32)"


def snippet(metadata: Mapping[str, Any]) -> str:
    """A program that runs beside the files."""
    target, *parts = metadata["target"], *(entry for entry in metadata["inputs"] if entry["name"] != "noise")
    noise = metadata["inputs"][-1]["columns"] if len(metadata["inputs"]) > len(parts) else None
    first = {
        "onnx": [
            "import numpy as np",
            "import onnxruntime",
            "",
            'policy = onnxruntime.InferenceSession("policy.onnx")',
        ],
        "stablehlo": [
            "import jax",
            "import numpy as np",
            "",
            'policy = jax.export.deserialize(bytearray(open("policy.stablehlo", "rb").read()))',
            "act = jax.jit(policy.call)",
        ],
        "numpy": ["import numpy as np", "", "import policy  # policy.py, with policy.safetensors beside it"],
    }[target]
    lines = [*first, "", "batch = 1"]
    several = parts[0]["name"] != "observations"
    if several:
        lines += ["observations = {", *(f'    "{_part(entry)}": {_zeros(entry)},' for entry in parts), "}"]
    else:
        lines.append(f"observations = {_zeros(parts[0])}")
    if noise is not None:
        lines += ["rng = np.random.default_rng(0)", f"noise = {noise_source(noise)}"]
    names = [f'observations["{_part(entry)}"]' for entry in parts] if several else ["observations"]
    names += [] if noise is None else ["noise"]
    feed = ", ".join(f'"{entry["name"]}": {name}' for entry, name in zip(metadata["inputs"], names, strict=True))
    calls = {
        "onnx": f'(actions,) = policy.run(["actions"], {{{feed}}})',
        "stablehlo": f"actions = act({', '.join(names)})",
        "numpy": f"actions = policy.act(observations{'' if noise is None else ', noise'})",
    }
    return "\n".join([*lines, calls[target], "print(actions)"])


def _part(entry: Mapping[str, Any]) -> str:
    return entry["name"].partition("/")[2]


def _zeros(entry: Mapping[str, Any]) -> str:
    shape = f"(batch, {', '.join(map(str, entry['shape'][1:]))})"
    return f'np.zeros({shape}, "{np.dtype(entry["dtype"]).name}")'


def as_text(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The metadata as the properties of an ONNX file."""
    return {"fidec": json.dumps(metadata), "license": metadata["license"] or "none stated"}
