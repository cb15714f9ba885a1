"""The training loop: a compiled loop over steps.

The compiled loop takes its first and last step as arguments, so it is compiled once for every length. It carries the
state, running sums of metrics, and the first non-finite step. A checkpoint needs nothing else, because random numbers
and batches are functions of the seed and the step. So the loop can stop and be resumed at any step with the same
results. `fidec.train.dispatch` calls it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fidec import rng
from fidec.algos import Algorithm
from fidec.data.batches import PLAIN, Mixture, OfflineOnline, Sampling, Source, StepBatches, batch_of, sample_batch
from fidec.data.replay import Replay
from fidec.errors import NonFiniteError
from fidec.train.devices import HERE, Place
from fidec.types import Batch, Metrics, PRNGKey, Spec

NEVER = int(np.iinfo(np.int32).max)


class Carry(NamedTuple):
    """What one step passes to the next. A checkpoint saves all of it."""

    state: Any
    sums: dict[str, jax.Array]  # of each metric since `since`
    since: jax.Array
    bad: dict[str, jax.Array]  # the first step at which the metric was not finite


class Keys(NamedTuple):
    """The root keys of a run's updates. They are arguments of the compiled loop, so one program serves all seeds."""

    batch: PRNGKey
    update: PRNGKey


def keys_of(seed: int) -> Keys:
    return Keys(rng.stream(seed, "batch"), rng.stream(seed, "update"))


def start(algorithm: Algorithm, seed: int, batch: Batch) -> Carry:
    """The carry before the first step."""
    state = jax.jit(algorithm.init)(rng.stream(seed, "init"))
    # Arrays from a checkpoint have no weak types, so those of a new run must not have them either.
    state = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)
    _, metrics = jax.eval_shape(algorithm.update, state, batch, rng.stream(seed, "update"))
    return Carry(state, *_no_metrics(metrics, 0))


def _no_metrics(names: Iterable[str], step: int) -> tuple[dict[str, jax.Array], jax.Array, dict[str, jax.Array]]:
    """The fields of a carry about metrics, before the first update at `step`."""
    sums = {name: jnp.zeros((), jnp.float32) for name in names}
    return sums, jnp.asarray(step, jnp.int32), {name: jnp.full((), NEVER, jnp.int32) for name in names}


def step_by_step(spec: Spec) -> bool:
    """Whether to run each update as a program of its own: for images on a CPU.

    On a CPU XLA uses its fast convolutions only outside of loops. An update of FQL on 16 images of 64 x 64 took 4.3 s
    inside a loop and 0.5 s outside (jax 0.10.2, one core).
    """
    return spec.images and jax.default_backend() == "cpu"


def make_steps(algorithm: Algorithm, sampling: Sampling = PLAIN, *, looped: bool = True, place: Place = HERE) -> Any:
    """steps(keys, carry, chunk, first, last) -> carry: the updates first, ..., last - 1, as one jitted loop.

    The chunk has the rows of all these steps. The carry is donated: its buffers are reused, and the caller must not
    use it again. Unless `looped`, only the update of step `first` is made. At a `place` of several devices each of
    them computes with its part of the rows, and all have the same carry, but for critics that are split.
    """
    body = _body(algorithm, sampling, place)

    @partial(jax.jit, donate_argnums=1, out_shardings=place.whole if place.heads is None else None)
    def steps(keys: Keys, carry: Carry, chunk: StepBatches, first: jax.Array, last: jax.Array) -> Carry:
        if not looped:
            return body(keys, carry, chunk, first)
        return jax.lax.fori_loop(first, last, lambda step, carry: body(keys, carry, chunk, step), carry)

    return steps


def make_stacked_steps(algorithm: Algorithm, sampling: Sampling = PLAIN) -> Any:
    """steps(keys, carry, chunk, first, count) -> carry: `count` steps of several runs, which may differ in `first`.

    Every array has a leading axis for the runs. The carry is donated.
    """
    bodies = jax.vmap(_body(algorithm, sampling))

    @partial(jax.jit, donate_argnums=1)
    def steps(keys: Keys, carry: Carry, chunk: StepBatches, first: jax.Array, count: jax.Array) -> Carry:
        return jax.lax.fori_loop(0, count, lambda i, carry: bodies(keys, carry, chunk, first + i), carry)

    return steps


def _body(algorithm: Algorithm, sampling: Sampling, place: Place = HERE) -> Callable[..., Carry]:
    """One step of one run."""

    def body(keys: Keys, carry: Carry, chunk: StepBatches, step: Any) -> Carry:
        batch = batch_of(chunk, step, rng.at(keys.batch, step), sampling)
        state, metrics = algorithm.update(carry.state, batch, rng.at(keys.update, step))
        return place.constrain(record(carry, state, metrics, step))

    return body


def make_online_steps(
    algorithm: Algorithm,
    batch_size: int,
    sampling: Sampling,
    *,
    balanced: bool,
    updates: int,
    looped: bool,
) -> Any:
    """steps(keys, carry, offline, buffer, first, last) -> carry: as `make_steps`, but batches are drawn in the loop.

    A step has `updates` updates. The carry is donated. Unless `looped`, only the updates of step `first` are made.
    """
    source = Mixture if balanced else OfflineOnline

    @partial(jax.jit, donate_argnums=1)
    def steps(keys: Keys, carry: Carry, offline: Source, buffer: Replay, first: jax.Array, last: jax.Array) -> Carry:
        def body(number, carry: Carry) -> Carry:
            step, which = number // updates, number % updates
            position = (step,) if updates == 1 else (step, which)
            key = rng.at(keys.batch, *position)
            batch = sample_batch(source(offline, buffer), key, batch_size, sampling)
            state, metrics = algorithm.update(carry.state, batch, rng.at(keys.update, *position))
            return record(carry, state, metrics, step, updates)

        if looped:
            return jax.lax.fori_loop(first * updates, last * updates, body, carry)
        for which in range(updates):
            carry = body(first * updates + which, carry)
        return carry

    return steps


def record(carry: Carry, state: Any, metrics: Metrics, step: Any, updates: int = 1) -> Carry:
    """The carry after one of the `updates` of this step, with its metrics added."""
    share = metrics if updates == 1 else {name: value / updates for name, value in metrics.items()}
    sums = {name: carry.sums[name] + share[name] for name in metrics}
    bad = {
        name: jnp.where(jnp.isfinite(metrics[name]), carry.bad[name], jnp.minimum(carry.bad[name], step))
        for name in metrics
    }
    return Carry(state, sums, carry.since, bad)


def one_by_one(step: Callable) -> Callable:
    """The same steps, one call of the compiled step(keys, carry, *data, first, last) for each."""

    def steps(keys: Keys, carry: Carry, *arguments: Any) -> Carry:
        *data, first, last = arguments
        for number in range(int(first), int(last)):
            carry = step(keys, carry, *data, np.int32(number), np.int32(number + 1))
        return carry

    return steps


def with_metrics(carry: Carry, names: Iterable[str], step: int) -> Carry:
    """The carry for updates with these metrics. If they are not those so far, all sums start again at `step`."""
    if set(names) == set(carry.sums):
        return carry
    return Carry(carry.state, *_no_metrics(names, step))


def template(algorithm: Algorithm, seed: int, batch: Batch) -> Carry:
    """Shapes and dtypes of a carry, for restoring a checkpoint."""
    return jax.eval_shape(lambda: start(algorithm, seed, batch))


def take_means(carry: Carry, step: int) -> tuple[dict[str, np.ndarray], Carry]:
    """The means of the metrics since the last call, and a carry whose sums start again at `step`."""
    count = step - int(carry.since)
    means = {name: np.asarray(value) / np.float32(max(count, 1)) for name, value in carry.sums.items()}
    zeros = {name: jnp.zeros_like(value) for name, value in carry.sums.items()}
    return means, carry._replace(sums=zeros, since=jnp.asarray(step, jnp.int32))


def is_finite(carry: Carry) -> bool:
    """Whether all metrics have been finite so far."""
    return all(int(step) == NEVER for step in jax.device_get(carry.bad).values())


def check_finite(carry: Carry) -> None:
    """Raise NonFiniteError if a metric was not finite; it names the first step and the metrics."""
    bad = {name: int(step) for name, step in carry.bad.items() if int(step) != NEVER}
    if bad:
        first = min(bad.values())
        terms = ", ".join(sorted(name for name, step in bad.items() if step == first))
        raise NonFiniteError(
            f"not finite at step {first}: {terms}. The run stopped. Its last checkpoint is older and intact. Check "
            "the data with `fidec data check`, lower the learning rate, or set a gradient clip."
        )


def example_batch(chunk: StepBatches, sampling: Sampling = PLAIN) -> Batch:
    """Shapes of a batch, for tracing."""
    return jax.eval_shape(lambda chunk, key: batch_of(chunk, 0, key, sampling), chunk, rng.stream(0, "batch"))


class Signals:
    """The signal that asked the run to stop, if any. A second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.received: int | None = None

    def __call__(self, number: int, frame: Any) -> None:
        if number == signal.SIGINT and self.received is not None:
            raise KeyboardInterrupt
        self.received = number


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Record SIGTERM, SIGINT, SIGHUP (a closed terminal) and SIGUSR2 (the warning of a batch system).

    Without this they would stop the process at once. SIGHUP stays ignored if it is, as under `nohup`.
    """
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals  # only the main thread may set handlers
        return
    numbers = [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2]
    numbers += [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN else []
    former = {number: signal.signal(number, signals) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
            if isinstance(handler, Signals) and signals.received is not None:
                handler.received = signals.received  # the run that this one is a part of stops too
