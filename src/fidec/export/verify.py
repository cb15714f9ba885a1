"""Compare an export with fidec's own policy, for the same observations and the same noise."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fidec import launch, rng
from fidec.data import OfflineDataset
from fidec.errors import RunError
from fidec.export.trace import Choice, Program, record
from fidec.parts import Observations, map_parts, named, rows_of
from fidec.train.origin import observations_at
from fidec.train.policy import Policy
from fidec.types import Part, Spec

TOLERANCE = 1e-5
TIE = 1e-5  # candidates whose values differ by less, relative to the values: rounding may decide between them
MOST_TIES = 0.05  # of the observations
SECONDS = 3600.0


class Sample(NamedTuple):
    """Inputs, what fidec's policy answers, and how clearly it chose; in pieces of one size (pieces, size, ...)."""

    observations: Observations
    noise: np.ndarray | None
    actions: np.ndarray
    margin: np.ndarray | None


def observations_for(spec: Spec, dataset: OfflineDataset | None, count: int, seed: int) -> tuple[Observations, int]:
    """`count` random observations and, with data, as many of its own; and the number of the latter.

    Random vectors have the mean and the width of the data if these are known, else those of a standard normal.
    """
    generator = np.random.default_rng([seed, 1])
    if dataset is None:
        return spec.observations(lambda part: _random(generator, part, count, None)), 0
    rows = np.sort(generator.choice(dataset.size, count, replace=dataset.size < count))

    def both(part: Part, real: np.ndarray) -> np.ndarray:
        return np.concatenate([_random(generator, part, count, real), real.astype(part.dtype)])

    return spec.map(both, observations_at(dataset, rows, spec)), count


def _random(generator: np.random.Generator, part: Part, count: int, real: np.ndarray | None) -> np.ndarray:
    shape = (count, *part.shape)
    if np.dtype(part.dtype).kind != "f":
        limits = np.iinfo(part.dtype)
        return generator.integers(limits.min, limits.max, shape, dtype=part.dtype, endpoint=True)
    mean, width = (0.0, 1.0) if real is None else (real.mean(axis=0), real.std(axis=0))
    if part.mean is not None:
        mean, width = np.asarray(part.mean), np.asarray(part.std)
    return (mean + width * generator.standard_normal(shape)).astype(part.dtype)


def sample(
    policy: Policy, choice: Choice, program: Program, observations: Observations, seed: int, size: int
) -> Sample:
    """What the policy does, in calls of `size` observations. The noise of each call is what the policy draws."""
    policy = Policy(policy.algo, policy.options, policy.spec, policy.state)  # with its own count of calls
    policy.reset(seed)
    pieces = map_parts(lambda array: array.reshape(-1, size, *array.shape[1:]), observations)
    noises, margins, actions = [], [], []
    with jax.default_device(jax.devices("cpu")[0]):  # whose products have the precision of float32
        run = record(policy, choice, program, size)
        for number in range(rows_of(pieces)):
            piece = map_parts(lambda array, number=number: array[number], pieces)
            actions.append(policy(piece, **choice._asdict()))
            noise, margin = run(piece, rng.at(rng.stream(seed, "act"), number))
            noises.append(noise)
            margins.append(margin)
    return Sample(
        pieces,
        np.stack(noises) if program.width else None,
        np.stack(actions),
        None if margins[0] is None else np.stack(margins),
    )


def run_alone(target: str, directory: Path, sample: Sample) -> np.ndarray:
    """The actions of the export, computed in a process that can import neither fidec nor, in most cases, JAX."""
    with tempfile.TemporaryDirectory() as place:
        inputs, outputs = Path(place) / "inputs.npz", Path(place) / "outputs.npy"
        columns: dict[str, Any] = named("observations", sample.observations)
        columns |= {} if sample.noise is None else {"noise": sample.noise}
        np.savez(inputs, **columns)
        script = str(Path(__file__).with_name("check.py"))
        words = ("-W", "ignore", script, target, str(directory.absolute()), str(inputs), str(outputs))
        ended = launch.run(*words, timeout=SECONDS, environ={"JAX_PLATFORMS": "cpu"})
        if ended is None or ended[0]:
            said = "it took too long" if ended is None else (ended[1].strip().splitlines() or ["no message"])[-1]
            print("" if ended is None else ended[1], end="", file=sys.stderr)
            raise RunError(f"the export was written, but does not run: {said}")
        return np.load(outputs)


def compare(spec: Spec, sample: Sample, actions: np.ndarray, tolerance: float) -> dict[str, Any]:
    """The largest difference of an action component, as a part of half its range; RunError if it is too large.

    Half a range is 1 in the units of the method, whose actions lie in [-1, 1]. Bounds far from zero cost digits of
    float32: two roundings of the larger bound are allowed. A row whose choice among candidates was a tie may differ.
    """
    if actions.shape != sample.actions.shape or actions.dtype != np.float32 or not np.isfinite(actions).all():
        raise RunError(
            f"the export gives {actions.dtype} actions of shape {actions.shape}, or actions that are not finite; "
            f"expected float32 {sample.actions.shape}"
        )
    low, high = (np.asarray(bound) for bound in spec.bounds)
    rounding = 2 * np.spacing(np.maximum(abs(low), abs(high)).astype(np.float32))
    apart = np.abs(actions.astype(np.float64) - sample.actions)
    apart = np.maximum(apart - (0 if spec.action_low is None else rounding), 0) / (0.5 * (high - low))
    apart = apart.reshape(*sample.actions.shape[:2], -1).max(axis=-1)
    ties = np.zeros(apart.shape, bool) if sample.margin is None else (sample.margin < TIE) & (apart > tolerance)
    largest = float(apart[~ties].max(initial=0.0))
    if not largest <= tolerance or ties.mean() > MOST_TIES:
        raise RunError(
            f"the export differs from the policy by {largest:.1e} of half the action range, more than {tolerance:g}; "
            f"{int((apart > tolerance).sum())} of {apart.size} observations differ more, {int(ties.sum())} of them "
            "in a choice between equal values. Nothing was written. Another target may be nearer; --tolerance allows "
            "more"
        )
    return {"largest_difference": largest, "tolerance": tolerance, "ties": int(ties.sum())}
