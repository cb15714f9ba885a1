"""Digests of what fidec computes, to prove that a change of the code changed no number.

    python -m benchmarks.identity --against COMMIT    that commit and this working tree, and what differs
    python -m benchmarks.identity --only 'run/*'      digests of some cases

The cases are three updates and an action of each method, preset and constraint; a run for each option that changes
what a row is or how a run goes, and the same run resumed from its first checkpoint; the rows of the batches of such a
run; the answers of each export of a policy; and the first updates of the demo. Each case belongs to the option or the
preset of its name. A case may be added, and its call may change; it goes only with that option or preset.

Arrays are hashed by content and sorted, so a digest does not depend on the names of parameters or metrics. Programs
are compiled quickly, without LLVM's optimisation. What is compiled is the same program, and both sides share it
through JAX's cache where it is equal.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import platformdirs
from safetensors.numpy import load_file

import fidec
from fidec import algos
from fidec.algos import Algorithm, Method, constraints
from fidec.train.config import OnlineConfig

ROOT = Path(__file__).parents[1]
PROCESSES = 2
# As in tests/conftest.py: a sixth of the time of compilation.
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"

Digests = dict[str, list[str]]  # by part of a case: its arrays, sorted


def digest(tree: Any) -> list[str]:
    """The tree's arrays, whatever their names and order."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    return sorted(f"{a.dtype}{a.shape} {hashlib.sha256(a.tobytes()).hexdigest()[:16]}" for a in arrays)


# --- updates and actions --------------------------------------------------------------------------------------------

ROWS, OBSERVATION, ACTION = 16, 5, 3
# One entry for each constraint and multiplier that is no preset of its own: the options that select it.
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "isotropic": {"constraint": "isotropic"},
    "local": {"constraint": "local"},
    "averaged": {"constraint": "averaged"},
    "released": {"constraint": "velocity"},
    "stein": {"constraint": "stein"},
    "path": {"constraint": "path"},
    "denoising": {"constraint": "denoising"},
    "precision": {"constraint": "precision"},
    "information": {"constraint": "information"},
    "auto": {"t_eps": "auto"},
    "controlled": {"multiplier": "controlled"},
    "closed-form": {"refine_steps": 2},
}
CLOSED_FORM = "fidec_closed_form"


def batch() -> fidec.Batch:
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(2, ROWS, OBSERVATION)).astype(np.float32)
    actions = rng.uniform(-1, 1, (2, ROWS, ACTION)).astype(np.float32)
    rewards, returns = rng.normal(size=(2, ROWS)).astype(np.float32)
    masks = (np.arange(ROWS) % 4 != 3).astype(np.float32)
    return fidec.Batch(observations[0], actions[0], rewards, masks, observations[1], actions[1], returns)


def of_method(work: Path, name: str, preset: str, **options: Any) -> Digests:
    """Three updates and one action of a small network."""
    spec = fidec.Spec((OBSERVATION,), ACTION)
    constraints.CALIBRATE_EVERY = 1
    algorithm = algos.make(name, spec, preset=preset, hidden=(16, 16), **options)
    state, update, data = jax.jit(algorithm.init)(jax.random.key(1)), jax.jit(algorithm.update), batch()
    metrics = []
    for step in range(3):
        state, info = update(state, data, jax.random.key(step))
        metrics.append(info)
    action = jax.jit(algorithm.act)(algorithm.policy(state), data.observations, jax.random.key(9))
    return {"state": digest(state), "metrics": digest(metrics), "actions": digest(action)}


# --- runs -----------------------------------------------------------------------------------------------------------

STEPS = 20
SMALL = {
    "steps": STEPS,
    "batch_size": 16,
    "log_interval": 5,
    "checkpoint_interval": STEPS // 2,
    "eval_interval": 0,
    "normalize_observations": False,
    "quiet": True,
}
ONLINE = {"env": "Pendulum-v1", "online_steps": STEPS, "eval_interval": STEPS, "eval_episodes": 1, "eval_envs": 1}
FROZEN = ("fidec", "deflow", CLOSED_FORM, "fql", "ifql", "fan", "qam")
# Options of `fidec.fit` by the name of the case. `flow` stands for a flow that was trained before.
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "n-step-5": {"n_step": 5},
    "chunk-5-replan-2": {"chunk": 5, "replan": 2},
    "delay-1": {"delay": 1},
    "history-3": {"history": 3},
    "action-quantile-0.01": {"action_quantile": 0.01},
    "validation": {"algo": "flow_bc", "validation": 0.2, "patience": 0},
    "values-of-the-data": {"value_start": "data", "reward_scale": "data"},
    "normalised": {"normalize_observations": True},
    "second-source": {"buffer": True},
    "returns": {"algo": "calql"},
    "parts": {"parts": True},
    "memory-limit": {"memory_limit": 0.0},
    "seeds": {"seeds": (0, 1)},
    "pixels": {"algo": "fql", "pixels": True, "batch_size": 4},
    "online": ONLINE,
    "online-after-frozen": {**ONLINE, "flow": True},
    "online-windows": {**ONLINE, "chunk": 3, "history": 2},
    "online-balanced": {**ONLINE, "algo": "rlpd", "online": OnlineConfig(updates=2)},
    "nats": {"preset": "nats", "flow_updates": STEPS, "normalize_observations": None},
    "information-frozen": {"flow": True, "options": {"constraint": "information", "t_eps": 0.95, "samples": 2}},
    **{f"frozen-{name}": {"algo": name, "flow": True} for name in FROZEN},
    **{name: {"algo": name} for name in ("bc", "cac", "idql", "rebrac")},
}
# Runs whose batches are also recorded; what they have besides concerns the method.
BATCHES = ("plain", "n-step-5", "chunk-5-replan-2", "delay-1", "history-3", "action-quantile-0.01", "normalised")
BATCHES += ("validation", "values-of-the-data", "second-source", "pixels", "parts", "memory-limit")
BATCHES += ("online", "online-windows", "online-balanced")
# One policy of each kind, and the candidates that it is exported with.
EXPORTED = {"plain": 1, "chunk-5-replan-2": 1, "normalised": 1, "validation": 1, "frozen-fql": 1, "frozen-ifql": 4}
EXPORTED |= {f"frozen-{CLOSED_FORM}": 1, "bc": 1, "cac": 1, "idql": 1, "rebrac": 1}
TARGETS = ("numpy", "onnx", "stablehlo")


@cache
def dataset(rows: int = 400, seed: int = 1, kind: str = "vectors") -> fidec.OfflineDataset:
    """Episodes of 20 random rows, cut off and ended in turn."""
    pendulum = kind == "pendulum"
    rng = np.random.default_rng(seed)
    width, dimensions = (3, 1) if pendulum else (OBSERVATION, ACTION)
    vectors = rng.normal(size=(rows, width)).astype(np.float32)
    images = rng.integers(0, 256, (rows, 16, 16, 3), dtype=np.uint8)
    observations = {"vectors": vectors, "pendulum": vectors, "pixels": images}
    parts = {"arm": vectors[:, :2], "hand": vectors[:, 2:]}
    last = np.arange(rows) % 20 == 19
    ends = last & (np.arange(rows) % 40 < 20)
    bounds: dict[str, Any] = {"action_low": [-2.0], "action_high": [2.0]} if pendulum else {}
    return fidec.dataset_from_arrays(
        parts if kind == "parts" else observations[kind],
        rng.uniform(-1, 1, (rows, dimensions)).astype(np.float32),
        rng.normal(size=rows).astype(np.float32),
        terminals=ends,
        truncations=last & ~ends,
        **bounds,
    )


def arguments(case: str, work: Path, recorded: bool = False) -> dict[str, Any]:
    """What `fidec.fit` is called with."""
    given = {**SMALL, **RUNS[case]}
    kinds = [kind for kind in ("pixels", "parts") if given.pop(kind, False)]
    data = partial(dataset, kind="pendulum" if "env" in given else kinds[0] if kinds else "vectors")
    given["dataset"] = data()
    if given.pop("buffer", False):
        given["buffer"] = data(rows=100, seed=2)
    if recorded:
        given.pop("value_start", None)  # of a critic
        return {**given, "algo": RECORDER.name, "log_interval": 1}
    if given.pop("flow", False):
        given["flow"] = pretrained_flow(work, "pendulum" if "env" in given else "vectors")
    method = algos.get(given.get("algo", "fidec"))
    small = {"hidden": (16, 16), "flow_steps": 2, "proposals": 4}
    options = {name: small[name] for name in small.keys() & method.config_for({}).__dataclass_fields__.keys()}
    return {**given, "options": options | given.get("options", {})}


@cache
def pretrained_flow(work: Path, kind: str) -> Path:
    """A behaviour flow for the runs that freeze it."""
    options = {"hidden": (16, 16), "flow_steps": 2}
    return fidec.fit(dataset(kind=kind), work / f"flow-{kind}", algo="flow_bc", options=options, **SMALL).directory


def of_run(work: Path, case: str, recorded: bool = False) -> Digests:
    """A run, and the same run cut back to its first checkpoint and resumed."""
    given = arguments(case, work, recorded)
    out, copy = work / case.replace("/", "-"), work / "resumed"
    ended = fidec.fit(out=out, **given)
    again = {name: given[name] for name in ("dataset", "buffer") if name in given}
    found: Digests = {}
    for result in ended if isinstance(ended, list) else [ended]:
        shutil.copytree(result.directory, copy)
        newest = max((copy / "checkpoints").iterdir())
        assert len(list((copy / "checkpoints").iterdir())) > 1, "nothing to resume from"
        shutil.rmtree(newest)
        fidec.resume(copy, quiet=True, **again)
        whole, resumed = of_directory(result.directory, recorded), of_directory(copy, recorded)
        label = f"{result.directory.name} " if isinstance(ended, list) else ""
        found |= {label + part: entries for part, entries in whole.items()}
        found.setdefault("resumed", []).extend(part for part in whole if whole[part] != resumed[part])
        shutil.rmtree(copy)
    if not recorded and case in EXPORTED:
        found |= exports(out, EXPORTED[case])
    shutil.rmtree(out)
    return found


def of_directory(run: Path, recorded: bool) -> Digests:
    """The arrays and the logs of a finished run, and actions of its policy."""
    newest = max((run / "checkpoints").iterdir())
    logs = ("train", "eval", "episodes", "exploration")
    found = {name: log_of(run / f"{name}.jsonl") for name in logs if (run / f"{name}.jsonl").exists()}
    if recorded:
        return found
    policy = fidec.load_policy(run)
    return {
        **found,
        "state": digest(load_file(newest / "state.safetensors")),
        "actions": digest(policy(observations_of(policy.spec))),
    }


def observations_of(spec: fidec.Spec) -> Any:
    rng = np.random.default_rng(3)
    return spec.observations(lambda part: (255 * rng.random((8, *part.shape))).astype(part.dtype))


def log_of(path: Path) -> list[str]:
    """The numbers of each row, sorted, but for times and checksums."""
    rows = []
    for row in map(json.loads, path.read_text().splitlines()):
        timed = ("time", "crc", "seconds")
        numbers = [value for name, value in row.items() if not name.startswith(timed) and type(value) in (int, float)]
        rows.append(hashlib.sha256(json.dumps(sorted(numbers)).encode()).hexdigest()[:16])
    return rows


# --- the rows of batches --------------------------------------------------------------------------------------------


def _hash(column: jax.Array) -> jax.Array:
    """24 bits of the content of an array, as a number that float32 has exactly. Sums of integers have no rounding."""
    if jnp.issubdtype(column.dtype, jnp.floating):
        column = jax.lax.bitcast_convert_type(column.astype(jnp.float32), jnp.uint32)
    words = column.astype(jnp.uint32).ravel()
    weights = 2 * jnp.arange(words.size, dtype=jnp.uint32) + 1
    return ((words * weights * jnp.uint32(2654435761)).sum(dtype=jnp.uint32) >> 8).astype(jnp.float32)


def _record(config: Any, spec: fidec.Spec) -> Algorithm:
    def validate(state: Any, batch: fidec.Batch, key: Any) -> dict[str, jax.Array]:
        columns = {name: column for name, column in batch._asdict().items() if column is not None}
        return {"loss": jnp.zeros(()), **{name: _hash(column) for name, column in columns.items()}}

    def update(state: Any, batch: fidec.Batch, key: Any) -> tuple[Any, dict[str, jax.Array]]:
        return {"step": state["step"] + 1}, validate(state, batch, key)

    def act(state: Any, observations: Any, key: Any) -> jax.Array:
        return jnp.zeros((*spec.leading(observations), spec.action_dim)) + 0 * state["step"]

    def init(key: Any) -> dict[str, jax.Array]:
        return {"step": jnp.zeros((), jnp.int32)}

    return Algorithm(init, update, act, lambda state: state, validate=validate)


@dataclass(frozen=True)
class RecorderConfig:
    """Options of the recorder."""

    discount: float = 0.9
    """Of returns over several steps."""


RECORDER = Method("recorder", "learns nothing, logs hashes of its batches", RecorderConfig, _record)


def install_recorder(site: Path) -> None:
    """Add the method to this process as a package would."""
    info = site / "recorder-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: recorder\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fidec.algos]\nrecorder = benchmarks.identity:RECORDER\n")
    sys.path.insert(0, str(site))


# --- exports and the demo -------------------------------------------------------------------------------------------


def exports(run: Path, candidates: int) -> Digests:
    """The answers of each export that the policy has."""
    found: Digests = {}
    for target in TARGETS:
        place = run / "export" / target
        try:
            metadata = fidec.export_policy(run, target, candidates=candidates, tolerance=1e-3)
        except fidec.FidecError as error:
            if "not translated" not in str(error):  # the closed form to ONNX
                raise
            found[f"export-{target}"] = ["refused"]
            continue
        spec = fidec.load_policy(run).spec
        inputs = {"observations": observations_of(spec)}
        noise = next((each for each in metadata["inputs"] if each["name"] == "noise"), None)
        if noise is not None:
            width = noise["shape"][1]
            inputs["noise"] = np.random.default_rng(4).normal(size=(8, width)).astype(np.float32)
        found[f"export-{target}"] = digest(answer(target, place, inputs))
    return found


def answer(target: str, place: Path, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The actions of an export."""
    if target == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(place / "policy.onnx", providers=["CPUExecutionProvider"])
        return np.asarray(session.run(["actions"], inputs)[0])
    if target == "stablehlo":
        exported = jax.export.deserialize(bytearray((place / "policy.stablehlo").read_bytes()))
        return np.asarray(jax.jit(exported.call)(*inputs.values()))
    code = "import sys, numpy, policy; numpy.save(sys.argv[2], policy.act(**numpy.load(sys.argv[1])))"
    np.savez(place / "inputs.npz", allow_pickle=False, **inputs)
    subprocess.run([sys.executable, "-c", code, "inputs.npz", "actions.npy"], cwd=place, check=True)
    return np.load(place / "actions.npy")


def of_demo(work: Path) -> Digests:
    """A tenth of the demo's data and its first 1,000 updates."""
    task = "cube-single-play-singletask-task2-v0"
    command, data, run = [sys.executable, "-m", "fidec"], work / "data", work / "demo"
    made = ["--rows", "6000", "--workers", "1", "--data-dir", data]
    subprocess.run([*command, "data", "make", task, *made], check=True, stderr=subprocess.DEVNULL)
    options = ["--algo.hidden", "128", "128", "128", "--algo.discount", "0.97", "--algo.learning-rate", "0.001"]
    lengths = ["--steps", "1000", "--eval-interval", "0", "--log-interval", "500", "--checkpoint-interval", "500"]
    trained = ["train", "--task", task, "--data-dir", data, "--out", run, *lengths, *options]
    subprocess.run([*command, *trained], check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    files = sorted(data.glob("*.npz"))
    return {"data": [f"{f.name} {hashlib.sha256(f.read_bytes()).hexdigest()[:16]}" for f in files]} | of_directory(
        run, recorded=False
    )


# --- the command ----------------------------------------------------------------------------------------------------


def cases() -> dict[str, Callable[[Path], Digests]]:
    """All cases by name; each gets a directory of its own process."""
    found: dict[str, Callable[[Path], Digests]] = {"demo": of_demo}
    found |= {f"run/{name}": partial(of_run, case=name) for name in RUNS}
    found |= {f"batches/{name}": partial(of_run, case=name, recorded=True) for name in BATCHES}
    for name in algos.names():
        for preset in ("recommended", *algos.get(name).presets):
            found[f"method/{name}-{preset}"] = partial(of_method, name=name, preset=preset)
    for label, options in CONSTRAINTS.items():
        name = CLOSED_FORM if label == "closed-form" else "fidec"
        found[f"constraint/{label}"] = partial(of_method, name=name, preset="recommended", **options)
    return found


def compute(pattern: str, share: str, out: Path | None) -> int:
    """Compute some cases in this process and write their digests."""
    number, count = map(int, share.split("/"))
    chosen = [(n, case) for n, case in cases().items() if fnmatch.fnmatch(n, pattern)][number::count]
    found: dict[str, Digests] = {}
    with tempfile.TemporaryDirectory() as directory:
        site, work = Path(directory) / "site", Path(directory) / "work"
        site.mkdir()
        work.mkdir()
        install_recorder(site)
        for name, case in chosen:
            since = time.perf_counter()
            found[name] = case(work)
            print(f"{name:36} {summary(found[name])}  {time.perf_counter() - since:5.1f} s", flush=True)
            jax.clear_caches()
    if out is not None:
        out.write_text(json.dumps(found, indent=1))
    broken = [name for name, parts in found.items() if parts.get("resumed")]
    for name in broken:
        print(f"{name}: the resumed run differs in {', '.join(found[name]['resumed'])}", file=sys.stderr)
    return 1 if broken else 0


def summary(parts: Digests) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def against(commit: str, pattern: str) -> int:
    """Compute the cases of a commit and of this working tree, and say what differs."""
    commit = _git("rev-parse", "--short", f"{commit}^{{commit}}")
    with tempfile.TemporaryDirectory() as directory:
        tree = Path(directory) / commit
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            before = _side(tree, pattern, Path(directory), commit)
        finally:
            _git("worktree", "remove", "--force", str(tree))
        after = _side(ROOT, pattern, Path(directory), "this tree")
    return compare(before, after, commit)


def _side(tree: Path, pattern: str, directory: Path, label: str) -> dict[str, Digests]:
    """The digests of one tree, by as many processes as this machine is asked for."""
    since, kept = time.perf_counter(), Path(platformdirs.user_cache_dir("fidec")) / "identity"
    environ = {**os.environ, "PYTHONPATH": str(tree / "src"), "XLA_FLAGS": QUICK, "NPROC": "1"}
    environ |= {"JAX_COMPILATION_CACHE_DIR": str(kept), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    environ |= {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1", "JAX_COMPILATION_CACHE_MAX_SIZE": str(2**30)}
    outs = [directory / f"{tree.name}-{number}.json" for number in range(PROCESSES)]
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.identity", "--only", pattern]
    started = [
        subprocess.Popen([*command, "--share", f"{number}/{PROCESSES}", "--out", out], cwd=tree, env=environ)
        for number, out in enumerate(outs)
    ]
    codes = [process.wait() for process in started]
    if any(codes):
        raise SystemExit(f"{label}: a process failed; its message is above")
    print(f"{label}: {time.perf_counter() - since:.0f} s", flush=True)
    return {name: parts for out in outs for name, parts in json.loads(out.read_text()).items()}


def compare(before: Mapping[str, Digests], after: Mapping[str, Digests], commit: str) -> int:
    """Print what differs; 1 if anything that both have does, or if a case is gone."""
    common = sorted(before.keys() & after.keys())
    different = list(_differences(before, after, common))
    gone, new = sorted(before.keys() - after.keys()), sorted(after.keys() - before.keys())
    for line in [*different, *(f"gone       {name}" for name in gone), *(f"new        {name}" for name in new)]:
        print(line)
    equal = len(common) - len({line.split()[1] for line in different})
    print(f"{equal} of {len(common)} cases are equal to those of {commit}; {len(gone)} gone, {len(new)} new")
    return 1 if different or gone else 0


def _differences(before: Any, after: Any, names: list[str]) -> Iterator[str]:
    for name in names:
        for part in sorted(before[name].keys() | after[name].keys()):
            old, new = (Counter(side[name].get(part, ())) for side in (before, after))
            if old != new:
                lost, found = sum((old - new).values()), sum((new - old).values())
                yield f"DIFFERENT  {name}  {part}: {lost} of {old.total()} entries are not there, {found} others are"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="compare this working tree with a commit")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases whose names match")
    parser.add_argument("--share", default="0/1", metavar="I/N", help="every Nth case, from the Ith on")
    parser.add_argument("--out", type=Path, help="write the digests to this file")
    args = parser.parse_args()
    if args.against:
        return against(args.against, args.only)
    return compute(args.only, args.share, args.out)


if __name__ == "__main__":
    sys.exit(main())
