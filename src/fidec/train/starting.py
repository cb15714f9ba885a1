"""Make new runs, or open existing ones: their configurations, directories and data, checked before training."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from fidec.data import OfflineDataset
from fidec.data.batches import shares
from fidec.envs.factory import EnvFactory, MakeEnv, describe_env, factory_of, is_function
from fidec.errors import ConfigError, RunError
from fidec.store import trackers
from fidec.store.remote import as_url
from fidec.store.rundir import RunDirectory, check_no_results
from fidec.store.staging import stage_existing, stage_new
from fidec.train.checks import (
    check_agree,
    check_chunk,
    check_method,
    check_rewards,
    data_warnings,
    with_data,
)
from fidec.train.config import OnlineConfig, RunConfig
from fidec.train.configfile import ARRAYS
from fidec.train.devices import check_devices
from fidec.train.pretrained_flow import stage_config, stage_state
from fidec.train.protocol import parts_of, task_options
from fidec.train.resolve import resolve, resolve_online
from fidec.train.stored import read_config
from fidec.train.training_data import check_same_data
from fidec.train.warm_start import Initial, read_initial, with_initial
from fidec.types import Part, Spec


class Start(NamedTuple):
    """A run whose directory is locked and whose data is loaded.

    The data is as the policy sees it (`fidec.data.transforms`). Runs that share it take it from here: only `_load`
    transforms data.
    """

    config: RunConfig
    dataset: OfflineDataset
    buffer: OfflineDataset | None
    env: EnvFactory | None
    directory: RunDirectory
    initial: Initial | None = None  # of another run, to start from
    messages: Sequence[str] = ()

    @property
    def spec(self) -> Spec:
        return spec_of(self.config, self.dataset, self.initial)


def begin(
    configs: Sequence[RunConfig],
    dataset: OfflineDataset | None,
    buffer: OfflineDataset | None,
    env: MakeEnv | None,
    overwrite: bool,
    stack: ExitStack,
) -> list[Start]:
    """New runs that differ in their seeds and directories. All is checked before a directory is created."""
    if env is not None:
        configs = [dataclasses.replace(each, env=describe_env(env)) for each in configs]
    own_arrays = dataset is not None and configs[0].data is None
    config = resolve(configs[0])
    config, initial = (config, None) if config.init_from is None else with_initial(config)
    if own_arrays and (config.action_low is not None or config.action_high is not None):
        raise ConfigError("action_low and action_high are for a data source: give them to dataset_from_arrays")
    if own_arrays:  # `resolve` names the task's data, which a resumed run would load instead
        config = dataclasses.replace(config, data=None)
    if buffer is not None and config.buffer is None:
        config = dataclasses.replace(config, buffer=f"{ARRAYS}{buffer.name}")
        if config.online_steps:
            resolve_online(config)  # raises: an online run has no second data set
    if config.track is not None:
        trackers.package(config.track)
    # Check the configuration before the directory is created, so that a wrong id leaves none.
    factory = _factory(config, env)
    dataset, buffer = _load(config, dataset, buffer)
    spec = spec_of(config, dataset, initial)
    check_method(config, dataset, spec, initial)
    if config.flow_updates and spec != spec_of(config, dataset):
        raise ConfigError(
            "--init-from and --flow-updates: the networks of that run see observations by its statistics, and a new "
            "flow would see them by those of this data, which differ. Leave --flow-updates out, or give both runs "
            "--normalize-observations False"
        )
    check_devices(config, len(configs))
    config, factory = with_data(config, dataset), _with_bounds(factory, dataset)
    warnings = data_warnings(config, dataset)
    named = [dataclasses.replace(config, seed=each.seed, out=resolve(each).out) for each in configs]
    made = [_create(Path(str(each.out)), overwrite, stack) for each in named]
    for own, directory in zip(named, made, strict=True):
        if initial is not None:
            initial.save(directory.init, directory.verify)
        directory.write_config(own.to_json())
    runs = zip(named, made, strict=True)
    return [Start(own, dataset, buffer, factory, directory, initial, warnings) for own, directory in runs]


def reopen(
    path: str | Path,
    dataset: OfflineDataset | None,
    buffer: OfflineDataset | None,
    env: str | MakeEnv | None,
    longer: Mapping[str, Any],
    stack: ExitStack,
    first: Start | None = None,
) -> Start:
    """An existing run, with its data. `longer` has more steps, an online phase, or a number of devices.

    It shares the data of the `first` run that is opened with it, and must differ from that in its seed only.
    """
    url = as_url(path)
    mirror = None if url is None else stage_existing(url, stack)
    directory = stack.enter_context(RunDirectory.open(path if mirror is None else mirror.directory))
    if mirror is not None:
        directory.attach(mirror)
    if not directory.config.exists():
        check_no_results(directory.path)
        raise RunError(f"{path} was stopped before training began. Start it again with its first command.")
    config = read_config(directory)
    config = _with_env(config, directory, env)
    offline = not config.online_steps
    config = _extended(config, path, **longer)
    check_devices(config)
    if first is not None:
        _check_differ_in_seed(first, config, path)
    if offline and config.online_steps and (other := _other_options(config)):
        print(f"the run keeps its options; those published for online training are {other}", file=sys.stderr)
    if dataset is None and config.data is None:
        raise RunError(
            f"{path} was trained on arrays given in Python: resume it there, with fidec.resume(path, dataset)"
        )
    if buffer is None and (config.buffer or "").startswith(ARRAYS):
        raise RunError(
            f"the buffer of {path} was given in Python: resume it there, with fidec.resume(path, dataset, buffer)"
        )
    if buffer is not None and config.buffer is None:
        raise RunError(f"{path} was trained on one data set: it cannot continue with two. Start a new run.")
    dataset, buffer = _load(config, dataset, buffer) if first is None else (first.dataset, first.buffer)
    _check_recorded(directory, dataset, buffer)
    config = with_data(config, dataset)
    initial = None if config.init_from is None else read_initial(directory.init)
    factory = _with_bounds(_factory(config, env), dataset)
    return Start(config, dataset, buffer, factory, directory, initial)


def open_stage(start: Start, stack: ExitStack) -> Start | None:
    """The run that trains the behaviour flow of this one first, on the same data. None if it is done."""
    place, (dataset, buffer) = start.directory.flow, (start.dataset, start.buffer)
    state = stage_state(place)
    if state == "done":
        return None
    created = state is None
    directory = RunDirectory.create(place, True, start.directory.verify) if created else RunDirectory.open(place)
    stack.enter_context(directory)
    directory.join(start.directory)
    if created:
        config = stage_config(start.config, place, len(dataset.episodes))
        directory.write_config(config.to_json())
    else:
        config = read_config(directory)
        _check_recorded(directory, dataset, buffer)
    return Start(config, dataset, buffer, None, directory)


def _check_recorded(directory: RunDirectory, dataset: OfflineDataset, buffer: OfflineDataset | None) -> None:
    """Raise unless the run was trained on this data."""
    recorded = directory.read_environment_to_resume() or {}
    for kind, data in (("dataset", dataset), ("buffer", buffer)):
        if data is not None:
            sha256 = (recorded.get(kind) or {}).get("sha256")
            check_same_data(directory.path, sha256, data, "Restore the data, or start a new run.")


def _create(place: Path, overwrite: bool, stack: ExitStack) -> RunDirectory:
    """The directory of a new run. A run at a URL is trained in one of this machine, and mirrored."""
    url = as_url(place)
    if url is None:
        return stack.enter_context(RunDirectory.create(place, overwrite=overwrite))
    mirror = stage_new(url, overwrite, stack)
    directory = stack.enter_context(RunDirectory.create(mirror.directory, overwrite=True))  # what it holds is known
    directory.attach(mirror)
    return directory


def check_offline(config: RunConfig, runs: int) -> None:
    if config.online_steps and runs > 1:
        raise ConfigError(
            "several seeds in one program are for offline training. With --online-steps start them one by one, or "
            "with `fidec sweep`"
        )


def _check_differ_in_seed(first: Start, config: RunConfig, path: str | Path) -> None:
    """Raise unless a run can be trained together with the first."""
    check_offline(config, 2)
    ours, others = first.config.fixed(), config.fixed()  # the number of steps may differ
    other = [name for name, value in ours.items() if name != "seed" and others.get(name) != value]
    if other:
        raise ConfigError(
            f"{first.directory.path} and {path} differ in {', '.join(other)}: only runs that differ in their seeds "
            "continue in one program. Resume them one by one"
        )


def spec_of(config: RunConfig, dataset: OfflineDataset, initial: Initial | None = None) -> Spec:
    """What the method knows about the data: stacked observations, and the statistics of vectors.

    Networks of another run (`initial`) keep its statistics: with those of this data they would see other inputs.
    """
    spec = dataset.spec
    if config.normalize_observations and initial is None:
        spec = spec.replace_inputs([_with_statistics(part, dataset) for part in spec.inputs])
    spec = spec.stacked(config.frame_stack, config.history).chunked(config.chunk, config.replan, config.ensemble)
    spec = dataclasses.replace(spec, delay=config.delay)
    if config.normalize_observations and initial is not None:
        known = {part.name: part for part in initial.spec.inputs}
        parts = [
            dataclasses.replace(part, mean=known[part.name].mean, std=known[part.name].std)
            for part in spec.inputs
            if part.name in known  # `check_initial` names those that are not
        ]
        spec = spec.replace_inputs(parts) if len(parts) == len(spec.inputs) else spec
    return spec


def _with_statistics(part: Part, dataset: OfflineDataset) -> Part:
    """The part with the mean and the standard deviation of the data; images stay as they are."""
    if part.image:
        return part
    found = dataset.observation_statistics
    mean, std = found[part.name] if part.name else found
    return dataclasses.replace(part, mean=mean, std=std)


def _with_env(config: RunConfig, directory: RunDirectory, env: str | MakeEnv | None) -> RunConfig:
    """The configuration with the environment that was given. It may replace one that was never used."""
    given, known = describe_env(env), config.env_name
    if given is None or given == known:
        return config
    unused = config.task is None and not directory.used_environment
    if known is None or unused or (is_function(given) and is_function(known)):
        return dataclasses.replace(config, env=given)
    raise RunError(f"{directory.path} was trained in {known}, not in {given}: start a new run")


def _factory(config: RunConfig, env: str | MakeEnv | None) -> EnvFactory | None:
    """The run's environment; `env` is the function that its configuration describes."""
    return factory_of(config.task, env or config.env, **config.env_options)


def _with_bounds(factory: EnvFactory | None, dataset: OfflineDataset) -> EnvFactory | None:
    """The environment, which is compared with the bounds of the data as they were before --action-quantile."""
    return factory and dataclasses.replace(factory, action_bounds=dataset.info.get("action_bounds"))


def _extended(
    config: RunConfig,
    path: str | Path,
    steps: int | None = None,
    online_steps: int | None = None,
    online: OnlineConfig | None = None,
    devices: int | None = None,
) -> RunConfig:
    """The configuration with more steps or other devices; ConfigError if the run cannot be extended like that."""
    if devices is not None:
        config = dataclasses.replace(config, devices=devices)
    has_online = config.online_steps > 0
    if steps is not None and steps != config.steps:
        if steps < config.steps:
            raise ConfigError(f"{path} is configured for {config.steps} steps; --steps {steps} would be fewer")
        if config.online_steps:
            raise ConfigError(
                f"{path} has an online phase after {config.steps} steps: only --online-steps can be increased"
            )
        config = dataclasses.replace(config, steps=steps)
    if online_steps is not None:
        if online_steps < config.online_steps:
            raise ConfigError(
                f"{path} is configured for {config.online_steps} online steps; --online-steps {online_steps} would "
                "be fewer"
            )
        config = dataclasses.replace(config, online_steps=online_steps)
    given = _changed(online or OnlineConfig())
    if given and not config.online_steps:
        raise ConfigError(f"{path} has no online phase: --online.{next(iter(given))} needs --online-steps")
    if has_online and (fixed := sorted(set(given) - {"max_failures"})):
        raise ConfigError(
            f"{path} already has an online phase: only online.max_failures can change, not online.{fixed[0]}"
        )
    config = dataclasses.replace(config, online=dataclasses.replace(config.online, **given))
    return dataclasses.replace(config, online=resolve_online(config)) if config.online_steps else config


def _changed(online: OnlineConfig) -> dict[str, Any]:
    """The options that differ from their defaults."""
    defaults = dataclasses.asdict(OnlineConfig())
    return {name: value for name, value in dataclasses.asdict(online).items() if value != defaults[name]}


def _other_options(config: RunConfig) -> str:
    """Options published for online training that differ from the offline ones and from the run's, as text."""
    which = (config.algo, config.preset, config.task)
    offline, online = (task_options(*which, setting, **parts_of(config)) for setting in ("offline", "online"))
    return ", ".join(
        f"{name} {value} (here {getattr(config.options, name)})"
        for name, value in online.items()
        if value not in (offline.get(name), getattr(config.options, name))
    )


def _load(
    config: RunConfig, dataset: OfflineDataset | None, buffer: OfflineDataset | None
) -> tuple[OfflineDataset, OfflineDataset | None]:
    """The data sets of a run, loaded if they are not given, and checked against each other."""
    if dataset is None:
        if config.data is None:
            what = f"the task {config.task} has no data of its own" if config.task else "nothing to train on"
            raise ConfigError(f"{what}: name a data source with --data (npz:PATH, ...)")
        dataset = config.load(config.data)
    if buffer is None and config.buffer is not None:
        buffer = config.load(config.buffer)
    if buffer is not None:
        shares(config.batch_size, config.buffer_fraction)
        check_agree(dataset, buffer)
    dataset, *others = config.transforms.view(dataset, *([] if buffer is None else [buffer]))
    buffer = others[0] if others else None
    datasets = [data for data in (dataset, buffer) if data is not None]
    check_rewards(config.algo, datasets)
    check_chunk(config.chunk, datasets)
    return dataset, buffer


def seen_by_run(config: RunConfig, dataset: OfflineDataset) -> OfflineDataset:
    """The data as a new run would see it. Raises what `begin` would raise about it, but for findings of its check."""
    config = resolve(config)
    dataset, _ = _load(config, dataset, None)
    check_method(config, dataset, spec_of(config, dataset), None)
    return dataset
