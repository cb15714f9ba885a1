"""Digests of what training computes, to prove that a change of the code changed no number.

    python -m benchmarks.identity --out before.json       on the code before the change
    python -m benchmarks.identity --compare before.json   on the code after it, on the same machine

The digests cover one update and one action of each method and preset, of each FiDec constraint, a run that was
interrupted and resumed beside the same run without interruption, and the first 1,000 updates of the demo. Arrays are
hashed by content and sorted, so a digest does not depend on the names of parameters or metrics.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import load_file

import fidec
from fidec import algos

ROWS, OBSERVATION, ACTION = 16, 5, 3
# One entry for each FiDec constraint: the options that select it.
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "isotropic": {"constraint": "isotropic"},
    "local": {"constraint": "local"},
    "averaged": {"constraint": "averaged"},
    "released": {"constraint": "velocity"},
    "stein": {"constraint": "stein"},
    "path": {"constraint": "path"},
    "denoising": {"constraint": "denoising"},
    "auto": {"t_eps": "auto", "calibrate_every": 1},
    "closed-form": {"refine_steps": 2},
}
CLOSED_FORM = "fidec_closed_form"


def digest(tree: Any) -> str:
    """A hash of the tree's arrays, whatever their names and order."""
    return digest_arrays([np.asarray(leaf) for leaf in jax.tree.leaves(tree)])


def digest_arrays(arrays: list[np.ndarray]) -> str:
    each = sorted(hashlib.sha256(str((a.dtype, a.shape)).encode() + a.tobytes()).hexdigest() for a in arrays)
    return hashlib.sha256("".join(each).encode()).hexdigest()[:24]


def batch() -> fidec.Batch:
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(2, ROWS, OBSERVATION)).astype(np.float32)
    actions = rng.uniform(-1, 1, (2, ROWS, ACTION)).astype(np.float32)
    rewards, returns = rng.normal(size=(2, ROWS)).astype(np.float32)
    masks = (np.arange(ROWS) % 4 != 3).astype(np.float32)
    return fidec.Batch(observations[0], actions[0], rewards, masks, observations[1], actions[1], returns)


def of_method(name: str, preset: str, **options: Any) -> str:
    """Three updates and one action of a small network."""
    spec = fidec.Spec((OBSERVATION,), ACTION)
    algorithm = algos.make(name, spec, preset=preset, hidden=(16, 16), **options)
    state, update, data = algorithm.init(jax.random.key(1)), jax.jit(algorithm.update), batch()
    metrics = []
    for step in range(3):
        state, info = update(state, data, jax.random.key(step))
        metrics.append(info)
    action = jax.jit(algorithm.act)(algorithm.policy(state), data.observations, jax.random.key(9))
    return digest((state, metrics, action))


def methods() -> Iterator[tuple[str, str]]:
    for name in algos.names():
        for preset in ("recommended", *algos.get(name).presets):
            yield f"method/{name}-{preset}", of_method(name, preset)
    for label, options in CONSTRAINTS.items():
        name = CLOSED_FORM if label == "closed-form" else "fidec"
        yield f"constraint/{label}", of_method(name, "recommended", **options)


def state_of(run: Path, step: int) -> str:
    return digest_arrays(list(load_file(run / "checkpoints" / f"{step:08d}" / "state.safetensors").values()))


def resumed(work: Path) -> Iterator[tuple[str, str]]:
    """A run of 200 steps, and the same run cut back to step 100 and resumed."""
    rng = np.random.default_rng(1)
    dataset = fidec.dataset_from_arrays(
        rng.normal(size=(500, OBSERVATION)).astype(np.float32),
        rng.uniform(-1, 1, (500, ACTION)).astype(np.float32),
        rng.normal(size=500).astype(np.float32),
        terminals=np.arange(500) % 50 == 49,
    )
    run, copy = work / "run", work / "copy"
    options = {"options": {"hidden": (32, 32)}, "normalize_observations": False}
    fidec.fit(dataset, run, steps=200, checkpoint_interval=100, quiet=True, **options)
    yield "run/uninterrupted", state_of(run, 200)
    shutil.copytree(run, copy)
    shutil.rmtree(copy / "checkpoints" / "00000200")
    fidec.resume(copy, dataset, quiet=True)
    yield "run/resumed", state_of(copy, 200)


def demo(work: Path) -> Iterator[tuple[str, str]]:
    """The demo's data and its first 1,000 updates."""
    task = "cube-single-play-singletask-task2-v0"
    command = [sys.executable, "-m", "fidec"]
    data = work / "data"
    subprocess.run(
        [*command, "data", "make", task, "--rows", "100000", "--workers", "2", "--data-dir", data], check=True
    )
    for path in sorted(data.glob("*.npz")):
        yield f"demo/{path.name}", hashlib.sha256(path.read_bytes()).hexdigest()[:24]
    run = work / "demo"
    options = ["--algo.hidden", "128", "128", "128", "--algo.discount", "0.97", "--algo.learning-rate", "0.001"]
    lengths = ["--steps", "1000", "--eval-interval", "0", "--log-interval", "500", "--checkpoint-interval", "1000"]
    subprocess.run(
        [*command, "train", "--task", task, "--data-dir", data, "--out", run, *lengths, *options], check=True
    )
    yield "demo/1000-updates", state_of(run, 1000)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the digests to this file")
    parser.add_argument("--compare", type=Path, help="compare with the digests of this file")
    parser.add_argument("--no-demo", action="store_true", help="leave out the demo, which takes minutes")
    args = parser.parse_args()
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as work:
        parts = [methods(), resumed(Path(work))] + ([] if args.no_demo else [demo(Path(work))])
        for part in parts:
            for name, value in part:
                found[name] = value
                print(f"{name:40} {value}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1))
    if found["run/resumed"] != found["run/uninterrupted"]:
        print("the resumed run differs from the uninterrupted one", file=sys.stderr)
        return 1
    if args.compare:
        before = json.loads(args.compare.read_text())
        common = sorted(before.keys() & found.keys())
        different = [name for name in common if before[name] != found[name]]
        missing = sorted(before.keys() - found.keys())
        for name in different:
            print(f"DIFFERENT  {name}", file=sys.stderr)
        for name in missing:
            print(f"not computed  {name}", file=sys.stderr)
        print(f"{len(common) - len(different)} of {len(before)} digests are equal")
        return 1 if different else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
