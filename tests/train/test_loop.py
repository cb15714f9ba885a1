"""The compiled loop: its results do not depend on how it is divided into dispatches."""

from __future__ import annotations

import io
import signal
import threading
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos, dataset_from_arrays, rng
from fidec.console import Progress
from fidec.data.batches import PLAIN, DeviceFeed
from fidec.errors import NonFiniteError
from fidec.train import dispatch, loop
from fidec.train.session import Session
from fidec.types import Spec
from helpers.runs import random_columns

SEED, BATCH, STEPS = 5, 16, 23


def bits(tree) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def run(steps, carry, chunk, *borders):
    """Dispatch [0, b0), [b0, b1), ..."""
    first = 0
    for last in borders:
        carry = steps(carry, chunk, np.int32(first), np.int32(last))
        first = last
    return carry


class Loop:
    """A method with data on the device, and its compiled loop."""

    def __init__(self, name: str, columns=None, **options):
        dataset = dataset_from_arrays(**(columns or random_columns()))
        method = algos.get(name)
        self.algorithm = method.make(method.configure(**options), dataset.spec)
        self.data = jax.tree.map(jnp.asarray, dataset.batch())
        self.feed = DeviceFeed(self.data, SEED, BATCH, PLAIN)
        self.chunk, _ = self.feed.at(0)  # of more steps than any test here takes
        self.batch = loop.example_batch(self.feed.example)
        self.jitted = loop.make_steps(self.algorithm)
        self.steps = partial(self.jitted, loop.keys_of(SEED))

    def start(self):
        return loop.start(self.algorithm, SEED, self.batch)


@pytest.fixture(scope="module")
def fidec(compile_cache):
    return Loop("fidec", hidden=(16, 16), flow_steps=2)


@pytest.fixture(scope="module")
def made():
    return {}


@pytest.fixture
def linear(tiny, compile_cache, made):
    """The tiny method, compiled once."""
    if "tiny" not in made:
        made["tiny"] = Loop("tiny")
    return made["tiny"]


def test_dispatches_of_any_length_give_the_same_bits(fidec):
    whole = run(fidec.steps, fidec.start(), fidec.chunk, STEPS)
    parts = run(fidec.steps, fidec.start(), fidec.chunk, 1, 8, 8, 13, 22, STEPS)
    assert bits(whole) == bits(parts)
    assert int(whole.state.step) == STEPS
    assert fidec.jitted._cache_size() == 1  # first and last are arguments, so no length is compiled again


def compare_with_single_updates(case, count: int) -> None:
    """The same updates as separate calls. XLA may fuse them differently, so equality is up to rounding."""
    carry = run(case.steps, case.start(), case.chunk, count)
    state, sums = case.start().state, dict.fromkeys(carry.sums, 0.0)
    update = jax.jit(case.algorithm.update)
    size = case.data.rewards.shape[0]
    for step in range(count):
        rows = jax.random.randint(rng.at(rng.stream(SEED, "batch"), step), (BATCH,), 0, size)
        batch = jax.tree.map(lambda array, rows=rows: array[rows], case.data)
        state, metrics = update(state, batch, rng.at(rng.stream(SEED, "update"), step))
        sums = {name: sums[name] + float(metrics[name]) for name in sums}
    expected = jax.tree_util.tree_leaves_with_path(state)
    for (path, leaf), found in zip(expected, jax.tree.leaves(carry.state), strict=True):
        np.testing.assert_allclose(found, leaf, rtol=1e-4, atol=1e-6, err_msg=str(path))
    for name, total in sums.items():
        np.testing.assert_allclose(carry.sums[name], total, rtol=1e-4, atol=1e-5, err_msg=name)


def test_the_loop_is_a_loop_of_updates(linear):
    compare_with_single_updates(linear, 40)


@pytest.mark.slow  # for the compilation alone
def test_the_loop_is_a_loop_of_fidec_updates(fidec):
    compare_with_single_updates(fidec, 6)


def test_the_bits_depend_on_every_step_and_on_the_seed(linear):
    whole = run(linear.steps, linear.start(), linear.chunk, STEPS)
    skipped = linear.steps(linear.start(), linear.chunk, np.int32(1), np.int32(STEPS))
    rows, _ = DeviceFeed(linear.data, SEED + 1, BATCH, PLAIN).at(0)
    other = linear.steps(linear.start(), rows, np.int32(0), np.int32(STEPS))
    noise = linear.jitted(loop.keys_of(SEED + 1), linear.start(), linear.chunk, np.int32(0), np.int32(STEPS))
    assert bits(whole.state["weight"]) != bits(skipped.state["weight"])
    assert bits(whole.state["weight"]) != bits(other.state["weight"])
    assert bits(whole.state["weight"]) != bits(noise.state["weight"])


def test_means_are_over_the_steps_since_they_were_taken(linear):
    one_by_one, carry = [], linear.start()
    for step in range(7):
        carry = linear.steps(carry, linear.chunk, np.int32(step), np.int32(step + 1))
        means, carry = loop.take_means(carry, step + 1)
        one_by_one.append(means)
    carry = run(linear.steps, linear.start(), linear.chunk, 3)
    first, carry = loop.take_means(carry, 3)
    carry = linear.steps(carry, linear.chunk, np.int32(3), np.int32(7))
    second, carry = loop.take_means(carry, 7)
    for name in first:
        np.testing.assert_allclose(first[name], np.mean([m[name] for m in one_by_one[:3]]), rtol=1e-6)
        np.testing.assert_allclose(second[name], np.mean([m[name] for m in one_by_one[3:]]), rtol=1e-6)
    assert int(carry.since) == 7
    assert all(float(value) == 0 for value in carry.sums.values())


def test_no_weak_types_and_a_template_that_fits(fidec, linear):
    for case in (fidec, linear):
        start = case.start()
        assert not any(leaf.weak_type for leaf in jax.tree.leaves(start))
        shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(start)]
        template = loop.template(case.algorithm, SEED, case.batch)
        assert shapes == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(template)]
        after = run(case.steps, start, case.chunk, 1)
        assert shapes == [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(after)]
        assert not any(leaf.weak_type for leaf in jax.tree.leaves(after))


def first_step_with(row: int, size: int) -> int:
    """The first step whose batch holds this row of the data."""
    for step in range(1000):
        rows = jax.random.randint(rng.at(rng.stream(SEED, "batch"), step), (BATCH,), 0, size)
        if row in np.asarray(rows):
            return step
    raise AssertionError("no batch holds the row")


def test_the_first_non_finite_term_and_its_step_are_named(linear):
    columns = random_columns()
    columns["rewards"][17] = 2e6  # finite, but the tiny method divides by zero there
    case = Loop("tiny", columns)
    size = case.data.rewards.shape[0]
    row = int(np.flatnonzero(np.asarray(case.data.rewards) == np.float32(2e6))[0])
    step = first_step_with(row, size)
    loop.check_finite(run(case.steps, case.start(), case.chunk, step) if step else case.start())
    carry = run(case.steps, case.start(), case.chunk, step + 30)
    with pytest.raises(NonFiniteError, match=rf"not finite at step {step}: term\. .*fidec data check"):
        loop.check_finite(carry)


def test_a_nan_in_the_data_is_noticed_at_its_first_batch(fidec):
    data = fidec.data._replace(rewards=fidec.data.rewards.at[17].set(jnp.nan))
    step = first_step_with(17, data.rewards.shape[0])
    chunk, _ = DeviceFeed(data, SEED, BATCH, PLAIN).at(0)
    carry = run(fidec.steps, fidec.start(), chunk, step + 5)
    with pytest.raises(NonFiniteError, match=rf"at step {step}: .*critic_loss.*grad_norm/critic"):
        loop.check_finite(carry)


def test_a_signal_stops_between_dispatches(linear):
    shown = []

    def on_dispatch():
        shown.append(at.step)
        if len(shown) == 3:
            signal.raise_signal(signal.SIGTERM)

    at = dispatch.Run(keys=loop.keys_of(SEED), feed=linear.feed, carry=linear.start())
    program = dispatch.Program(linear.algorithm, PLAIN, Spec((3,), 2), [at])
    with loop.catch_signals() as signals:
        dispatch.run_for(program, [at], 10**6, dispatch.Pace(), signals, on_dispatch)
    assert signals.received == signal.SIGTERM
    assert at.step == shown[-1] == int(at.carry.state["count"])
    assert len(shown) == 3
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_steps_taken_one_by_one_are_the_loop(linear):
    """As images are trained on a CPU."""
    alone = partial(loop.one_by_one(loop.make_steps(linear.algorithm, looped=False)), loop.keys_of(SEED))
    carry = run(alone, linear.start(), linear.chunk, 1, 3, STEPS)
    whole = run(linear.steps, linear.start(), linear.chunk, STEPS)
    assert int(carry.state["count"]) == int(whole.state["count"]) == STEPS
    for ours, theirs in zip(jax.tree.leaves(carry), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    assert not loop.step_by_step(Spec((3,), 2))
    assert loop.step_by_step(Spec((8, 8, 3), 2, "uint8")) == (jax.default_backend() == "cpu")


def test_a_closed_terminal_is_a_signal_unless_it_is_ignored():
    with loop.catch_signals() as signals:
        signal.raise_signal(signal.SIGHUP)
        assert signals.received == signal.SIGHUP
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with loop.catch_signals() as signals:
            signal.raise_signal(signal.SIGHUP)
        assert signals.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_interrupt_raises():
    with loop.catch_signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_training_in_a_thread_leaves_signal_handlers_alone():
    seen = []

    def work():
        with loop.catch_signals() as signals:
            seen.append(signals.received)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [None]
    assert signal.getsignal(signal.SIGTERM) == before


def test_the_pace_follows_the_clock():
    pace = dispatch.Pace()
    assert pace.next(10**6) == 10
    assert pace.next(4) == 4
    pace.record(10, 0.1)
    assert pace.next(10**6) == int(100 * dispatch.DISPATCH_SECONDS)
    pace.record(1, 10.0)  # a machine that got slow still makes progress
    for _ in range(50):
        pace.record(1, 10.0)
    assert pace.next(10**6) == 1


def test_the_first_estimate_of_the_time_left_counts_no_compilation():
    now, stream = 0.0, io.StringIO()
    journal = SimpleNamespace(
        progress=Progress(1000, stream=stream, every=0.0, clock=lambda: now),
        log=SimpleNamespace(time=lambda *_: None),
    )
    run: Any = SimpleNamespace(journal=journal, step=0, _finish_evaluation=lambda wait: None)
    for offset in (0, 500):  # the second phase compiles again
        now += 30.0
        Session.record_compilation(run, 30.0)
        now += 20.0  # the first dispatch compiles how batches are drawn
        Session.show(run, offset + 10)
        now += 1.0
        Session.show(run, offset + 20)
    assert stream.getvalue().splitlines() == [
        "step 10/1000",
        "step 20/1000  10 steps/s  2 min left",
        "step 510/1000",
        "step 520/1000  10 steps/s  48 s left",
    ]
