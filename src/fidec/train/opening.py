"""Open runs: their data, their newest checkpoints, their logs and their environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax

from fidec import algos, rng
from fidec.console import Progress
from fidec.data import OfflineDataset
from fidec.data.batches import AHEAD_BYTES, Data, Feed, HostFeed, Sampling
from fidec.data.memory import free_memory, host_device
from fidec.data.statistics import data_statistics
from fidec.launch import usable_cores
from fidec.store import versions
from fidec.store.checkpoint import Checkpoints, Restored
from fidec.store.replay import ReplayStore
from fidec.store.rundir import RunDirectory
from fidec.store.trackers import Tracking
from fidec.train import loop
from fidec.train.checks import identity_of, is_checked
from fidec.train.config import RunConfig
from fidec.train.pretrained_flow import Flow, draw_proposals, proposal_shapes, with_flow
from fidec.train.session import Callback, Journal, Session
from fidec.train.starting import Start
from fidec.train.validation import Validation
from fidec.train.value_scale import data_value, describe_time_constant, reward_factor
from fidec.train.warm_start import Initial


def open_sessions(
    starts: Sequence[Start],
    flows: Sequence[Flow | None],
    stack: ExitStack,
    signals: loop.Signals,
    quiet: bool,
    callback: Callback | None = None,
) -> Iterator[Session]:
    """Open the data, restore the newest checkpoints if there are any, and record the software versions.

    The runs differ in their seeds, and share the method, the data on the device and the environments of evaluations.
    `stack` closes what is opened. Environments are started later (`Session.start_environments`). A flow is used as it
    is.
    """
    config, dataset, buffer, env, _, initial, *_ = starts[0]
    spec = starts[0].spec
    algorithm = algos.get(config.algo).build(config.options, spec)
    settings = {"window": config.window, "reward_scale": reward_factor(config, dataset), "history": config.history}
    sampling = Sampling.of(dataset.spec, config.frame_stack, config.augment, config.buffer_fraction, **settings)
    used, held = config.transforms.split(dataset)
    sources = [used] if buffer is None else [used, buffer]
    proposals = None if flows[0] is None else proposal_shapes(algorithm, spec, config.batch_size)
    online = None
    if config.online_steps:
        online = algos.get(config.algo).build(config.online_options, spec)

    def feed_at(config: RunConfig, flow: Flow | None, folder: Path, step: int) -> Feed:
        """The batches from this step on. Without proposals in the online phase, and if a signal ends the run here."""
        drawn: list[Any] = []
        if flow is not None and step < config.steps:
            state = with_flow(jax.jit(algorithm.init)(rng.stream(config.seed, "init")), flow)
            how = (sampling, config.seed, signals, quiet, None if data.on_device else folder)
            drawn = [draw_proposals(algorithm, state, each, *how) for each in sources]
        return data.feed(config.seed, config.batch_size, sampling, [] if signals.received else drawn)

    value = data_value(config, dataset)
    statistics = data_statistics([dataset] if buffer is None else [dataset, buffer])
    rows = len(starts) * sum(each.size for each in sources)
    data = _place(config, sources, sampling, rows * _bytes(proposals) // config.batch_size)
    progress = stack.enter_context(Progress(config.total, enabled=not quiet))
    several, evaluator = len(starts) > 1, None
    for start, flow in zip(starts, flows, strict=True):
        config = start.config
        journal = Journal(start.directory, progress, f"seed {config.seed}" if several else "")
        stack.callback(journal.log.close)
        if config.track is not None:
            facts = config.fixed() | {"steps": config.steps, "online_steps": config.online_steps}
            place = start.directory
            journal.log.tracking = Tracking(config.track, place.path, facts, journal.message, place.verify)
        session = Session(
            config=config,
            keys=loop.keys_of(config.seed),
            algorithm=algorithm,
            spec=spec,
            dataset_name=dataset.name,
            sampling=sampling,
            feed=data.feed(config.seed, config.batch_size, sampling),
            directory=start.directory,
            checkpoints=Checkpoints(
                start.directory.checkpoints,
                config.keep_checkpoints,
                warn=journal.message,
                verify=start.directory.verify,
            ),
            journal=journal,
            signals=signals,
            identity=identity_of(config, dataset, buffer, init=initial, flow=flow),
            flow=flow,
            value=value,
            make_feed=partial(feed_at, config, flow, start.directory.path),
            online_algorithm=online,
            held_out=None if held is None else Validation(algorithm, held, sampling),
            callback=callback,
            declaration=env.declaration if env is not None else "",
            action_bounds=dataset.info.get("action_bounds"),
            statistics=statistics,
            background=_in_background(config, callback),
        )
        stack.callback(lambda session=session: session.feed.close())
        store = ReplayStore(start.directory.replay, start.directory.verify)
        restored = session.restore(store, initial, proposals)
        if flow is not None:
            session.open_feed()
        _report(session, start, restored, initial)
        if env is not None:
            session.open_environments(env, store, restored, stack, evaluator)
            evaluator = session.evaluator
        yield session


def runs_that_fit(start: Start) -> int:
    """How many runs like this one can be trained at the same time in half of the free memory, at least one."""
    config, dataset, spec = start.config, start.dataset, start.spec
    algorithm, key = algos.get(config.algo).build(config.options, spec), rng.stream(0, "init")
    state = jax.eval_shape(algorithm.init, key)
    size = 4 * _bytes(state) + 2 * AHEAD_BYTES  # gradients, temporaries, and a copy for a checkpoint or an evaluation
    if config.has_flow:
        size += dataset.size * _bytes(proposal_shapes(algorithm, spec, 1))
    return max(1, int((free_memory() / 2 - dataset.nbytes) // size))


def _bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _in_background(config: RunConfig, callback: Callback | None) -> bool:
    """Whether evaluations run beside training. A callback may stop the run after one, so it waits for each."""
    possible = host_device() is not None and callback is None
    return possible and (len(usable_cores()) > 1 if config.eval_background is None else config.eval_background)


def _report(session: Session, start: Start, restored: Restored | None, initial: Initial | None) -> None:
    """Say how the run begins, and record the software versions."""
    dataset, message = start.dataset, session.journal.message
    if isinstance(session.feed, HostFeed):
        where = "their files" if dataset.mapped else "main memory"
        message(
            f"{dataset.name} takes {dataset.nbytes / 1e9:.1f} GB, more than the memory limit: its rows stay in "
            f"{where} and are read when they are drawn"
        )
    if initial is not None and restored is None:
        message(f"starts from {initial.origin}")
        if session.spec.normalised:
            message("observations are normalised with the statistics of that run, not of this data")
    if restored is None and initial is None and (settling := describe_time_constant(start.config)) is not None:
        message(settling)
    if restored is not None:
        message(f"resumed {start.directory.path} at step {session.step}")
    facts = {"buffer": _facts(start.buffer)} if start.buffer is not None else {}
    found = {"findings": list(start.messages)} if restored is None and is_checked(start.config, dataset) else {}
    used = {"training_devices": (start.config.devices or 1) * jax.process_count()}
    now = {**versions.environment({**_facts(dataset), **found}), **facts, **used}
    _record_versions(start.directory, now, message)
    start.directory.write_status("running", session.step)


def _place(config: RunConfig, datasets: list[OfflineDataset], sampling: Sampling, beside: int) -> Data:
    """What batches are drawn from, with the columns that the method reads. Beside it are this many bytes."""
    limit = free_memory() if config.online_steps else None  # online the data has to be on the device
    return Data.of(
        datasets,
        sampling,
        discount=config.options.discount if algos.get(config.algo).needs_returns else None,
        limit=limit if config.memory_limit is None else config.memory_limit * 1e9,
        beside=beside,
    )


def _facts(dataset: OfflineDataset) -> dict[str, Any]:
    facts = {"name": dataset.name, "source": dataset.source, "transitions": dataset.size}
    return {**facts, "sha256": dataset.sha256, "info": dataset.info}


def _record_versions(directory: RunDirectory, now: dict[str, Any], message: Callable[[str], None]) -> None:
    """Write environment.json. A resumed run adds an entry, and a change since the last one is reported."""
    first = directory.read_environment_to_resume()
    if first is None:
        directory.write_environment(now)
        return
    last = (first.get("resumed") or [first])[-1]
    last = {"training_devices": 1, **last}  # of a version that knew no other
    for name in ("python", "packages", "platform", "backend", "devices", "training_devices", "xla_flags"):
        if last.get(name) != now[name]:
            message(
                f"{name} changed since this run last ran ({last.get(name)} -> {now[name]}): "
                "from here on its numbers may differ from those of an uninterrupted run"
            )
    directory.write_environment({**first, "resumed": [*first.get("resumed", []), now]})
