"""Runs on virtual CPU devices: `python -m helpers.device_runs WHAT DIRECTORY`, in a process of its own.

JAX reads the number of devices once, when it starts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from fidec.launch import launch
from helpers.runs import random_columns

# XLA needs a thread for each device to meet the others in a sum over devices. It counts its threads by NPROC.
VIRTUAL = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "NPROC": "16"}
SETTINGS = {"log_interval": 10, "checkpoint_interval": 10, "eval_interval": 0, "batch_size": 16, "quiet": True}


def run(what: str, directory: Path, *paths: Path, flags: str = "", timeout: float = 240) -> Any:
    """Call a function of this file in a process with eight devices. Its answer is the last line that it prints."""
    environ = {
        **VIRTUAL,
        "XLA_FLAGS": f"{VIRTUAL['XLA_FLAGS']} {flags}",
        "FIDEC_COMPILE_CACHE": str(directory / "programs"),
    }
    paths = (Path(__file__).parents[1], *paths)
    environ["PYTHONPATH"] = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    process = launch(
        "-m", "helpers.device_runs", what, str(directory), environ=environ, stdout=-1, stderr=-1, text=True
    )
    try:
        out, said = process.communicate(timeout=timeout)
    finally:
        process.kill()
    assert process.returncode == 0, said[-3000:]
    return json.loads(out.splitlines()[-1])


def state_of(directory: Path, step: int) -> dict[str, np.ndarray]:
    from fidec.store.trees import load_flat

    return load_flat(directory / "checkpoints" / f"{step:08d}" / "state.safetensors")


def distance(directory: Path, other: Path, step: int) -> float:
    """The largest difference between two states, relative to the largest number of its array and at least 1."""
    ours, theirs = state_of(directory, step), state_of(other, step)
    assert ours.keys() == theirs.keys()
    return max(
        float(np.abs(ours[name] - theirs[name].astype(np.float64)).max() / max(1.0, np.abs(theirs[name]).max()))
        for name in ours
    )


def tiny(out: Path) -> dict:
    """One run on one and on eight devices, one that changes its number, and two seeds, together and alone."""
    from fidec import dataset_from_arrays, fit, resume
    from fidec.errors import ConfigError

    dataset, settings = dataset_from_arrays(**random_columns()), {**SETTINGS, "algo": "tiny"}
    for count in (1, 8):
        fit(dataset, out / f"{count}", steps=20, devices=count, **settings)
    fit(dataset, out / "changed", steps=10, devices=8, **settings)
    resume(out / "changed", dataset, steps=20, devices=2, quiet=True)
    fit(dataset, out / "seeds", steps=20, seeds=(0, 1), **settings)
    fit(dataset, out / "seed1", steps=20, seed=1, **settings)
    refused = []
    cases: list[dict[str, Any]] = [{"devices": 3}, {"devices": 16}, {"devices": 2, "seeds": (0, 1)}]
    for changes in cases:
        try:
            fit(dataset, out / "refused", steps=20, **settings, **changes)
        except ConfigError as error:
            refused.append(str(error))
    return {
        "distances": [distance(out / name, out / "1", 20) for name in ("8", "changed")],
        "refused": refused,
        "made": (out / "refused").exists(),
    }


def method(out: Path, algo: str, updates: int) -> list[float]:
    """One method on two, four and eight devices, and with another number in the middle, against one device."""
    from fidec import dataset_from_arrays, fit, resume

    dataset, options = dataset_from_arrays(**random_columns(rows=440)), {"hidden": (16, 16), "flow_steps": 3}
    settings = {**SETTINGS, "algo": algo, "flow_updates": updates, "options": options}
    for count in (1, 2, 4, 8):
        fit(dataset, out / f"{count}", steps=40, devices=count, **settings)
    fit(dataset, out / "changed", steps=20, devices=8, **settings)
    resume(out / "changed", dataset, steps=40, devices=2, quiet=True)
    return [distance(out / name, out / "1", 40) for name in ("2", "4", "8", "changed")]


def fidec(out: Path) -> list[float]:
    return method(out, "fidec", 0)


def fql(out: Path) -> list[float]:
    return method(out, "fql", 0)


def deflow_frozen(out: Path) -> list[float]:
    return method(out, "deflow", 20)


def critics(out: Path) -> dict:
    """ReBRAC with eight critics, split over two and eight devices and resumed on four, against one device."""
    import jax

    from fidec import dataset_from_arrays, fit, resume
    from fidec.errors import ConfigError
    from fidec.train.devices import places_of

    dataset = dataset_from_arrays(**random_columns(rows=440))
    settings: dict[str, Any] = {**SETTINGS, "algo": "rebrac", "options": {"hidden": (16, 16), "critics": 8}}
    fit(dataset, out / "1", steps=40, devices=1, **settings)
    for count in (2, 8):
        fit(dataset, out / f"{count}", steps=40, devices=count, split_critics=True, **settings)
    fit(dataset, out / "changed", steps=20, devices=8, split_critics=True, **settings)
    resume(out / "changed", dataset, steps=40, devices=4, quiet=True)
    refused = []
    for algo, count, options in (("rebrac", 8, {"critics": 4}), ("rebrac", 1, {"critics": 8}), ("bc", 8, {})):
        try:
            given = {**settings, "algo": algo, "options": options}
            fit(dataset, out / "refused", steps=20, devices=count, split_critics=True, **given)
        except ConfigError as error:
            refused.append(str(error))

    algorithm, feed = _rebrac(dataset, critics=8)
    (place,) = places_of(8, 1, split_critics=True)
    steps, arguments = _lowered(algorithm, feed, place)
    compiled = steps.compile()
    carry = compiled(*arguments)
    sums = [line for line in compiled.as_text().splitlines() if " all-reduce(" in line]
    paths = jax.tree.leaves_with_path(carry.state)
    parts = {jax.tree_util.keystr(path): leaf.sharding.shard_shape(leaf.shape)[:1] for path, leaf in paths}
    return {
        "distances": [distance(out / name, out / "1", 40) for name in ("2", "8", "changed")],
        "refused": refused,
        "sums": len(sums),
        "sums of heads": sum("f32[8,24" in line or "f32[1,24" in line for line in sums),
        "heads": sorted({size for name, size in parts.items() if "VmapMLP" in name}),
        "others": sum(not leaf.sharding.is_fully_replicated for path, leaf in paths if "VmapMLP" not in str(path)),
        "count": sum("VmapMLP" in name for name in parts),
    }


def split(out: Path) -> dict:
    """What the compiled program of ReBRAC does on eight devices: sums over devices, and rows in parts."""
    from fidec.data import dataset_from_arrays
    from fidec.train.devices import places_of

    algorithm, feed = _rebrac(dataset_from_arrays(**random_columns()))
    (place,) = places_of(8, 1)
    text = _lowered(algorithm, feed, place)[0].compile().as_text()
    return {"sums": text.count("all-reduce("), "parts": text.count("f32[8,24]"), "whole": text.count("f32[64,24]")}


def _rebrac(dataset: Any, **options: Any) -> tuple[Any, Any]:
    from fidec import algos
    from fidec.data.batches import PLAIN, Data

    return algos.make("rebrac", dataset.spec, hidden=(24,), **options), Data.of([dataset], PLAIN).feed(0, 64, PLAIN)


def _lowered(algorithm: Any, feed: Any, place: Any) -> tuple[Any, tuple]:
    """The lowered steps, and arguments for one step."""
    from fidec.data.batches import PLAIN
    from fidec.train import loop

    keys, carry = place.put((loop.keys_of(0), loop.start(algorithm, 0, loop.example_batch(feed.example))))
    steps = loop.make_steps(algorithm, PLAIN, place=place)
    numbers = np.int32(0), np.int32(1)
    return steps.lower(keys, carry, place.example(feed.example), *numbers), (
        keys,
        carry,
        place.put_chunk(feed.at(0)[0]),
        *numbers,
    )


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
