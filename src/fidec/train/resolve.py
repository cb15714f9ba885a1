"""Fill in what a configuration leaves open."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from fidec import algos, tasks
from fidec.data.source import SOURCES, absolute_source
from fidec.errors import ConfigError
from fidec.launch import env_processes, usable_cores
from fidec.store.staging import local_run
from fidec.train.config import OnlineConfig, RunConfig
from fidec.train.protocol import resolve_options, with_protocol


def resolve(config: RunConfig) -> RunConfig:
    """Fill in what was not given: protocol, options, data source, output directory, number of environments."""
    config = with_protocol(config)
    options = config.options
    if options is None:
        options = resolve_options(config.algo, config.preset, config.task, config.setting)
    name = (config.env_name or (config.data or "arrays").rpartition("/")[2]).replace(":", "-")
    out = config.out or Path("runs") / name / f"{config.algo}-{config.preset}" / seed_name(config.seed)
    envs = config.eval_envs or env_processes(len(usable_cores()))
    data = config.data or (tasks.source_of(config.task) if config.task else None)
    if config.data is None and data and data.partition(":")[0] not in SOURCES:
        data = None  # a family of environments without data
    runs = (path and local_run(path, whole=True) for path in (config.init_from, config.flow))
    data_dir, init_from, flow = (path and Path(path).expanduser().absolute() for path in (config.data_dir, *runs))
    normalize = config.normalize_observations
    if normalize is None and init_from is None:  # else as in the run that it starts from
        normalize = config.task is None
    n_step, replan = config.n_step, config.replan
    if config.chunk > 1:
        replan = replan or config.chunk
        n_step = n_step or (config.chunk if algos.get(config.algo).learns_values else None)
    config = dataclasses.replace(
        config,
        options=options,
        n_step=n_step,
        replan=replan,
        out=out,
        normalize_observations=normalize,
        eval_envs=envs,
        data=data and absolute_source(data),
        buffer=config.buffer and absolute_source(config.buffer),
        data_dir=data_dir,
        init_from=init_from,
        flow=flow,
    )
    return dataclasses.replace(config, online=resolve_online(config)) if config.online_steps else config


def seed_name(seed: int) -> str:
    """The name of the run directory of a seed."""
    return f"seed{seed:03d}"


def resolve_online(config: RunConfig) -> OnlineConfig:
    """The online phase with the method's defaults; ConfigError if the run cannot have one."""
    method, online = algos.get(config.algo), config.online
    if method.offline_only:
        raise ConfigError(f"{config.algo} is not trained online: {method.offline_only}")
    if config.env_name is None:
        raise ConfigError("online training needs an environment: name a --task, or a Gymnasium id with --env")
    if config.buffer is not None:
        raise ConfigError(
            f"online training has its own buffer and cannot have {config.buffer} as a second data set: "
            "omit --buffer, or start a new run without it"
        )
    defaults = {"sampling": "uniform", "collect": "step", "freeze_flow": config.has_flow, **method.online}
    online = dataclasses.replace(online, **{n: v for n, v in defaults.items() if getattr(online, n) is None})
    if method.needs_returns and online.collect != "episode":
        raise ConfigError(
            f"{config.algo} needs returns, which are known only at the end of an episode: "
            "online.collect must be episode"
        )
    if online.freeze_flow and not hasattr(config.options, "train_flow"):
        raise ConfigError(f"online.freeze_flow: {config.algo} has no behaviour flow that can be frozen")
    return online
