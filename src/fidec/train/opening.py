"""Open a run: its data, its newest checkpoint, its logs and its environments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import jax

from fidec import algos, rng
from fidec.data import OfflineDataset
from fidec.data.feed import Feed, HostFeed, free_memory, make_feed
from fidec.data.holdout import hold_out
from fidec.data.sampling import Sampling
from fidec.envs.factory import EnvFactory
from fidec.store import versions
from fidec.store.checkpoint import Checkpoints
from fidec.store.replay import ReplayStore
from fidec.store.rundir import RunDirectory
from fidec.train import loop
from fidec.train.config import RunConfig
from fidec.train.flow_first import Flow, draw_proposals, frozen_of, with_flow
from fidec.train.identity import identity_of
from fidec.train.initial import Initial, read_initial
from fidec.train.session import Callback, Journal, Session
from fidec.train.validation import Validation
from fidec.types import Spec


def open_session(
    config: RunConfig,
    dataset: OfflineDataset,
    buffer: OfflineDataset | None,
    env: EnvFactory | None,
    directory: RunDirectory,
    stack: ExitStack,
    signals: loop.Signals,
    quiet: bool,
    callback: Callback | None = None,
    salvage: bool = False,
    flow: Flow | None = None,
) -> Session:
    """Open the data, restore the newest checkpoint if there is one, and record the software versions.

    `stack` closes what is opened. Environments are started later (`Session.start_environments`). With `salvage` the
    run does without rows of its replay buffer and of its logs that are damaged. A `flow` is used as it is.
    """
    initial = None if config.init_from is None else read_initial(directory.init)
    spec = spec_of(config, dataset, initial)
    algorithm = algos.get(config.algo).build(config.options, spec)
    sampling = Sampling.of(dataset.spec, config.frame_stack, config.augment, config.buffer_fraction)
    used, held = hold_out(dataset, config.held_out) if config.held_out else (dataset, None)
    data, proposals = [used] if buffer is None else [used, buffer], []
    if flow is not None:
        state = with_flow(jax.jit(algorithm.init)(rng.stream(config.seed, "init")), flow)
        proposals = [draw_proposals(algorithm, state, each, sampling, config.seed, quiet) for each in data]
        algorithm = algorithm._replace(update=frozen_of(algorithm, config.algo).update)
    feed = _open_feed(config, data, sampling, proposals)
    stack.callback(feed.close)
    journal = Journal(directory, config.total, quiet)
    stack.callback(journal.log.close)
    stack.enter_context(journal.progress)
    session = Session(
        config=config,
        algorithm=algorithm,
        spec=spec,
        dataset_name=dataset.name,
        sampling=sampling,
        feed=feed,
        directory=directory,
        checkpoints=Checkpoints(directory.checkpoints, config.keep_checkpoints, warn=journal.message),
        journal=journal,
        signals=signals,
        identity=identity_of(config, dataset, buffer, init=initial, flow=flow),
        flow=flow,
        held_out=None if held is None else Validation(algorithm, held, sampling),
        callback=callback,
        declaration=env.declaration if env is not None else "",
    )
    store = ReplayStore(directory.replay)
    restored = session.restore(store, salvage, initial)
    if isinstance(feed, HostFeed):
        where = "their file" if dataset.mapped else "main memory"
        journal.message(
            f"{dataset.name} takes {dataset.nbytes / 1e9:.1f} GB, more than the memory limit: its rows stay in "
            f"{where} and are read when they are drawn"
        )
    if initial is not None and restored is None:
        journal.message(f"starts from {initial.origin}")
        if spec.observation_mean is not None:
            journal.message("observations are normalised with the statistics of that run, not of this data")
    if restored is not None:
        journal.message(f"resumed {directory.path} at step {session.step}")
    facts = {"buffer": _facts(buffer)} if buffer is not None else {}
    _record_versions(directory, {**versions.environment(_facts(dataset)), **facts}, journal.message, salvage)
    directory.write_status("running", session.step)
    if env is not None:
        session.open_environments(env, store, restored, stack)
    return session


def spec_of(config: RunConfig, dataset: OfflineDataset, initial: Initial | None = None) -> Spec:
    """What the method knows about the data: stacked frames, or the statistics of the observations.

    Networks of another run (`initial`) keep its statistics: with those of this data they would see other inputs.
    """
    spec = dataset.spec.stacked(config.frame_stack)
    if spec.images or not config.normalize_observations:
        return spec
    if initial is None:
        mean, std = dataset.observation_statistics
    else:
        mean, std = initial.spec.observation_mean, initial.spec.observation_std
    return replace(spec, observation_mean=mean, observation_std=std)


def _open_feed(config: RunConfig, data: list[OfflineDataset], sampling: Sampling, proposals: list[Any]) -> Feed:
    """What batches are drawn from, with the columns that the method reads."""
    limit = free_memory() if config.online_steps else None  # online the data has to be on the device
    return make_feed(
        data,
        config.seed,
        config.batch_size,
        sampling,
        proposals=proposals,
        discount=config.options.discount if algos.get(config.algo).needs_returns else None,
        limit=limit if config.memory_limit is None else config.memory_limit * 1e9,
    )


def _facts(dataset: OfflineDataset) -> dict[str, Any]:
    facts = {"name": dataset.name, "source": dataset.source, "transitions": dataset.size}
    return {**facts, "sha256": dataset.sha256, "info": dataset.info}


def _record_versions(
    directory: RunDirectory, now: dict[str, Any], message: Callable[[str], None], salvage: bool
) -> None:
    """Write environment.json. A resumed run adds an entry, and a change since the last one is reported."""
    first = directory.read_environment_to_resume(salvage)
    if first is None:
        if directory.environment.exists():
            message("salvaged: environment.json was damaged: the earlier software versions are lost")
        directory.write_environment(now)
        return
    last = (first.get("resumed") or [first])[-1]
    for name in ("python", "packages", "platform", "backend", "devices", "xla_flags"):
        if last.get(name) != now[name]:
            message(
                f"{name} changed since this run last ran ({last.get(name)} -> {now[name]}): "
                "from here on its numbers may differ from those of an uninterrupted run"
            )
    directory.write_environment({**first, "resumed": [*first.get("resumed", []), now]})
