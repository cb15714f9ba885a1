"""Several processes, on one host or on several: process 0 trains as always, the others compute their parts.

Process 0 alone reads the data, evaluates, logs and writes the run directory. Before each dispatch it tells the others
which steps come next, and sends them the rows of the chunk if they are new. A process that follows has the method, a
copy of the state, and nothing on the disk.
"""

from __future__ import annotations

import atexit
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from fidec import algos, compilation
from fidec.algos import Algorithm
from fidec.data.batches import Feed, Sampling, StepBatches
from fidec.data.windows import Window
from fidec.errors import ConfigError, RunError
from fidec.train import loop
from fidec.train.config import RunConfig
from fidec.train.devices import Place, spread_over
from fidec.train.dispatch import Run, Single
from fidec.train.stored import config_from_json, spec_from_json
from fidec.types import Batch, Spec

START_SECONDS, HEARTBEAT_SECONDS = (
    300,
    100,
)  # to find each other; without a sign of life, until a process counts as dead
END, START, STEPS = range(3)


class Disconnected(RunError):
    """Another process has ended. This one cannot go on, and cannot tell the others anything."""


class Order(NamedTuple):
    """What process 0 tells the others. They answer with a signal that they received, or 0."""

    kind: int
    first: int = 0
    count: int = 0
    new_state: bool = False
    new_chunk: bool = False


def join(coordinator: str | None, process: int | None, processes: int | None) -> bool:
    """Connect with the other processes; whether this one follows process 0. To be called before JAX is used."""
    if coordinator is None:
        if process is not None or processes is not None:
            raise ConfigError("--process and --processes need the address of process 0: --coordinator HOST:PORT")
        return False
    automatic = coordinator == "auto"
    if automatic and not (process is None and processes is None):
        raise ConfigError("--coordinator auto asks the batch system: leave out --process and --processes")
    if not automatic and (process is None or processes is None or not 0 <= process < processes):
        raise ConfigError(
            f"--coordinator {coordinator} needs --processes N and, from 0 to N - 1, --process I; found --processes "
            f"{processes} and --process {process}"
        )
    # One that dies must not end the others before they have said so.
    if "jax_enable_recoverability" in jax.config.values:
        jax.config.update("jax_enable_recoverability", True)
    times: dict[str, Any] = {"initialization_timeout": START_SECONDS, "heartbeat_timeout_seconds": HEARTBEAT_SECONDS}
    try:
        if automatic:
            jax.distributed.initialize(**times)
        else:
            jax.distributed.initialize(coordinator, processes, process, **times)
    except (RuntimeError, ValueError) as error:
        detail = (str(error).splitlines() or [""])[0][:200]
        raise ConfigError(f"the processes of --coordinator {coordinator} did not meet: {detail}") from error
    with _connected():
        _tell(Order(END))  # the first exchange may not take longer than 30 seconds, and the data is not loaded yet
    return jax.process_index() > 0


class Leader(Single):
    """`Single` of process 0: each call is a dispatch of all processes."""

    def __init__(
        self,
        algorithm: Algorithm,
        sampling: Sampling,
        spec: Spec,
        run: Run,
        place: Place,
        config: RunConfig,
        signals: loop.Signals,
    ):
        self._state: Any = None  # that the others have
        self._signals = signals
        with _connected():
            _tell(Order(START))
            _send_text(json.dumps(_facts(config, spec, sampling, run.feed)))
            super().__init__(algorithm, sampling, spec, run, place)

    def __call__(self, group: list[tuple[Run, StepBatches]], count: int) -> None:
        ((run, chunk),) = group
        with _connected():
            new_chunk = run not in self._chunks or self._chunks[run][0] is not chunk
            order = Order(STEPS, run.step, count, self._state is not run.carry.state, new_chunk)
            answers = _tell(order)
            carry = run.carry if order.new_state else run.carry._replace(state=None)
            _share((carry, chunk if new_chunk else None))
            super().__call__(group, count)
        self._state = run.carry.state
        if self._signals.received is None and answers.any():
            self._signals.received = int(answers.max())


def follow() -> None:
    """Compute this process's part of what process 0 trains, until it ends."""
    compilation.enable()
    print(f"process {jax.process_index()} of {jax.process_count()} follows process 0", file=sys.stderr)
    with _connected(), loop.catch_signals() as signals:
        steps = run = chunk = None
        while (order := Order(*_tell(Order(END), signals.received or 0))).kind != END:
            if order.kind == START:
                steps, run, chunk = _follower(json.loads(_receive_text()))
                continue
            assert steps is not None  # process 0 starts with START
            assert run is not None
            carry = run.carry if order.new_state else run.carry._replace(state=None)
            carry, new = _share((carry, chunk if order.new_chunk else None))
            run.carry = carry if order.new_state else carry._replace(state=run.carry.state)
            run.step, chunk = order.first, new or chunk
            assert chunk is not None  # of START
            steps([(run, chunk)], order.count)


@contextmanager
def leading() -> Iterator[None]:
    """Around what process 0 does: at the end, also after an error, it tells the others that this was all."""
    try:
        yield
    except Disconnected:
        raise
    except BaseException:
        with suppress(Disconnected):
            end()
        raise
    end()


def end() -> None:
    if jax.process_count() > 1:
        with _connected():
            _tell(Order(END))


class _Example(NamedTuple):
    """A feed that has only the shapes of its chunks."""

    example: StepBatches


def _follower(facts: dict[str, Any]) -> tuple[Single, Run, StepBatches]:
    """The program of this process, a run, and a chunk; their arrays are empty."""
    spec = spec_from_json(facts["spec"])
    method = algos.get(facts["algo"])
    algorithm = method.build(config_from_json(method.config_for(facts["options"]), facts["options"]), spec)
    sampling = Sampling(**{**facts["sampling"], "window": Window(**facts["sampling"]["window"])})
    rows = {name: _zeros(entry) for name, entry in facts["rows"].items()}
    if facts["frozen"]:
        rows.setdefault("proposals", {})  # of a method that needs no actions of the flow
    chunk = StepBatches(Batch(**{name: rows.get(name) for name in Batch._fields}), np.zeros((), np.int32))
    template = loop.template(algorithm, facts["seed"], loop.example_batch(chunk, sampling))
    carry = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), template)
    feed: Any = _Example(chunk)
    run = Run(keys=loop.keys_of(facts["seed"]), feed=feed, carry=carry)
    return Single(algorithm, sampling, spec, run, spread_over(facts["devices"], facts["split_critics"])), run, chunk


def _facts(config: RunConfig, spec: Spec, sampling: Sampling, feed: Feed) -> dict[str, Any]:
    """What a process needs to follow, as JSON."""
    columns = {name: _describe(column) for name, column in feed.example.rows._asdict().items() if column is not None}
    return {
        "algo": config.algo,
        "options": dataclasses.asdict(config.options),
        "seed": config.seed,
        "devices": config.devices or 1,
        "split_critics": config.split_critics,
        "frozen": config.has_flow,
        "spec": dataclasses.asdict(spec),
        "sampling": dataclasses.asdict(sampling),
        "rows": columns,
    }


def _describe(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _describe(each) for name, each in tree.items()}
    return [list(tree.shape), str(tree.dtype)]


def _zeros(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {name: _zeros(each) for name, each in entry.items()}
    return np.zeros(*entry)


def _tell(order: Order, signal: int = 0) -> Any:
    """Process 0 gets the signals of the others, and each of them gets its order."""
    everybody = multihost_utils.process_allgather(np.array([*map(int, order), signal], np.int32))
    return everybody[1:, -1] if jax.process_index() == 0 else everybody[0, :-1].tolist()


def _share(tree: Any) -> Any:
    """The tree of process 0, in each process."""
    return multihost_utils.broadcast_one_to_all(tree)


def _send_text(text: str) -> None:
    data = np.frombuffer(text.encode(), np.uint8)
    _share(np.int32(len(data)))
    _share(data)


def _receive_text() -> str:
    size = int(_share(np.int32(0)))
    return bytes(np.asarray(_share(np.zeros(size, np.uint8)))).decode()


@contextmanager
def _connected() -> Iterator[None]:
    """An error of the connection, in words."""
    try:
        yield
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        if "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower():
            raise
        detail = (str(error).splitlines() or [""])[0][:200]
        atexit.register(_leave)
        raise Disconnected(
            f"another process of this training has ended or cannot be reached ({detail}). The last checkpoint is "
            "intact: start all processes again, with --resume DIR"
        ) from error


def _leave() -> None:
    """End this process without JAX's own end, which would wait for the other processes."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
