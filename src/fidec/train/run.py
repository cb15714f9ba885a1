"""Start or resume a training run."""

from __future__ import annotations

import dataclasses
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from fidec import compilation
from fidec.data import OfflineDataset
from fidec.data.sampling import parts
from fidec.envs.factory import EnvFactory, MakeEnv, describe_env, factory_of, is_function
from fidec.errors import ConfigError, FidecError, RunError
from fidec.store.rundir import RunDirectory, check_no_results
from fidec.train import loop
from fidec.train.checks import check_agree, check_data, check_method, check_rewards, check_same_data, with_data
from fidec.train.config import OnlineConfig, RunConfig, read_config, task_options
from fidec.train.configfile import ARRAYS
from fidec.train.flow_first import Flow, copy_flow, load_flow, stage_config, stage_state
from fidec.train.initial import with_initial
from fidec.train.memory import memory_errors
from fidec.train.opening import open_session, spec_of
from fidec.train.resolve import resolve, resolve_online
from fidec.train.session import Callback, Session


class Preempted(RunError):
    """A signal stopped the run, which is saved and can be resumed. The exit code is 75, or 130 after Ctrl-C."""

    def __init__(self, number: int, text: str):
        super().__init__(f"{signal.Signals(number).name}: {text}")
        self.number = number
        self.exit_code = 130 if number == signal.SIGINT else 75


class Result(NamedTuple):
    """A run: its directory, its last step, and the last evaluation (None without an environment).

    `stopped` says that a callback ended it before its last step. `fidec.resume` continues it.
    """

    directory: Path
    step: int
    evaluation: dict[str, Any] | None
    stopped: bool = False

    @property
    def policy(self) -> Path:
        return self.directory / "policy"


def train(
    config: RunConfig,
    dataset: OfflineDataset | None = None,
    buffer: OfflineDataset | None = None,
    *,
    env: MakeEnv | None = None,
    overwrite: bool = False,
    quiet: bool = False,
    callback: Callback | None = None,
) -> Result:
    """Start a run in a new directory and train it to its end. Data sets that are not given are loaded.

    `env` is a function that returns the environment, instead of a task or a Gymnasium id in the configuration.
    `callback(step, metrics)` is called after each row of the logs; if it returns True, the run saves and stops.
    """
    if env is not None:
        config = dataclasses.replace(config, env=describe_env(env))
    own_arrays = dataset is not None and config.data is None
    config = resolve(config)
    config, initial = (config, None) if config.init_from is None else with_initial(config)
    if own_arrays and (config.action_low is not None or config.action_high is not None):
        raise ConfigError("action_low and action_high are for a data source: give them to dataset_from_arrays")
    if own_arrays:  # `resolve` names the task's data, which a resumed run would load instead
        config = dataclasses.replace(config, data=None)
    if buffer is not None and config.buffer is None:
        config = dataclasses.replace(config, buffer=f"{ARRAYS}{buffer.name}")
        if config.online_steps:
            resolve_online(config)  # raises: an online run has no second data set
    # Check the configuration before the directory is created, so that a wrong id leaves none.
    _factory(config, env)
    dataset, buffer = _load(config, dataset, buffer)
    if config.rendering is None and dataset.spec.images:
        config = dataclasses.replace(config, rendering=dataset.info.get("rendering") or "exact")
    check_method(config, dataset, spec_of(config, dataset, initial), initial)
    config = with_data(config, dataset)
    assert config.out is not None
    warnings = check_data(config, dataset)
    with RunDirectory.create(config.out, overwrite=overwrite) as directory:
        if initial is not None:
            initial.save(directory.init)
        directory.write_config(config.to_json())
        return _train(config, dataset, buffer, _factory(config, env), directory, quiet, callback, warnings)


def resume(
    path: str | Path,
    dataset: OfflineDataset | None = None,
    buffer: OfflineDataset | None = None,
    *,
    env: str | MakeEnv | None = None,
    steps: int | None = None,
    online_steps: int | None = None,
    online: OnlineConfig | None = None,
    salvage: bool = False,
    quiet: bool = False,
    callback: Callback | None = None,
) -> Result:
    """Continue an interrupted run, bit for bit, or extend a finished one by more `steps` or by an online phase.

    What the run was given in Python (`dataset`, `buffer`, `env`) has to be given again. A run that has not
    used an environment yet can be given one: a Gymnasium id, or a function that returns an environment.
    `online_steps` is the number of the whole run. `online` has the options of its online phase. Once that has begun,
    only `max_failures` may change. `callback` is that of `fidec.fit`.

    If rows of the replay buffer or of a log are damaged or lost, this is an error. With `salvage` the run continues
    without them, from the newest checkpoint that is itself intact, and says what is lost. From there on it differs
    from an uninterrupted run.
    """
    with RunDirectory.open(path) as directory:
        if not directory.config.exists():
            check_no_results(directory.path)
            raise RunError(f"{path} was stopped before training began. Start it again with its first command.")
        config = read_config(directory)
        config = _with_env(config, directory, env)
        offline = not config.online_steps
        config = _extended(config, path, steps, online_steps, online)
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
        dataset, buffer = _load(config, dataset, buffer)
        recorded = directory.read_environment_to_resume(salvage) or {}
        for kind, data in (("dataset", dataset), ("buffer", buffer)):
            if data is not None:
                check_same_data(directory.path, kind, recorded, data)
        config = with_data(config, dataset)
        return _train(config, dataset, buffer, _factory(config, env), directory, quiet, callback, salvage=salvage)


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


def _extended(
    config: RunConfig,
    path: str | Path,
    steps: int | None,
    online_steps: int | None,
    online: OnlineConfig | None,
) -> RunConfig:
    """The configuration with more steps; ConfigError if the run cannot be extended like that."""
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
    tables = (task_options(config.algo, config.preset, config.task, setting) for setting in ("offline", "online"))
    offline, online = tables
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
        parts(config.batch_size, config.buffer_fraction)
        check_agree(dataset, buffer)
    check_rewards(config.algo, [data for data in (dataset, buffer) if data is not None])
    return dataset, buffer


def _train(
    config: RunConfig,
    dataset: OfflineDataset,
    buffer: OfflineDataset | None,
    env: EnvFactory | None,
    directory: RunDirectory,
    quiet: bool,
    callback: Callback | None,
    messages: Sequence[str] = (),
    salvage: bool = False,
) -> Result:
    compilation.enable()
    run: Session | None = None
    try:
        with memory_errors(config, dataset, buffer), ExitStack() as stack:
            signals = stack.enter_context(loop.catch_signals())
            flow = _provide_flow(config, dataset, buffer, directory, quiet)
            how = (quiet, callback, salvage, flow)
            run = open_session(config, dataset, buffer, env, directory, stack, signals, *how)
            for text in messages:
                run.journal.message(text)
            if not run.done:
                run.start_environments()
            directory.write_config(config.to_json())  # only now, after all checks have passed
            directory.delete_earlier()
            if run.losses:
                run.save()  # a checkpoint that refers to nothing that is lost
            elif run.step:
                run.save_policy()  # the run may have been killed between the checkpoint and its policy
            while not (run.done or run.stop_requested or signals.received):
                run.advance()
            if not run.done:
                run.save()
            elif failed := _all_failed(run.evaluation):
                run.journal.message(
                    f"the last evaluation has no result: all {failed} episodes failed. The reasons are in "
                    f"{directory.path / 'episodes.jsonl'}. The policy is saved: repair the environment and evaluate "
                    f"it with `fidec eval {directory.path}`."
                )
    except BaseException as error:
        reason = str(error) if isinstance(error, FidecError) else f"{type(error).__name__}: {error}"
        with suppress(FidecError):  # a full disk must not hide the first error
            if run is not None or directory.read_status() is None:  # a run that cannot be resumed keeps its status
                directory.write_status("failed", run.step if run else 0, reason)
        raise
    if run.done:
        directory.write_status("done", run.step)
    elif signals.received is None:
        directory.write_status("preempted", run.step, "the callback asked to stop")
    else:
        directory.write_status("preempted", run.step, signal.Signals(signals.received).name)
        raise Preempted(
            signals.received, f"saved at step {run.step}. Continue with: fidec train --resume {directory.path}"
        )
    return Result(directory.path, run.step, run.evaluation, stopped=not run.done)


def _provide_flow(
    config: RunConfig, dataset: OfflineDataset, buffer: OfflineDataset | None, directory: RunDirectory, quiet: bool
) -> Flow | None:
    """The behaviour flow that the run is given: a copy of another run's, or one that is trained now, in `flow/`."""
    if not config.has_flow:
        return None
    spec, place = spec_of(config, dataset), directory.flow
    if config.flow is not None and not place.exists():
        copy_flow(config.flow, place)
    elif config.flow is None and (state := stage_state(place)) != "done":
        try:
            if state is None:
                stage = stage_config(config, place, len(dataset.episodes))
                train(stage, dataset, buffer, overwrite=True, quiet=quiet)
            else:
                resume(place, dataset, buffer, quiet=quiet)
        except Preempted as error:
            text = f"the behaviour flow is saved in {place}. Continue with: fidec train --resume {directory.path}"
            directory.write_status("preempted", 0, signal.Signals(error.number).name)
            raise Preempted(error.number, text) from error
    return load_flow(place, config, dataset, spec)


def _all_failed(evaluation: dict[str, Any] | None) -> int:
    """The number of episodes of an evaluation if all of them failed, else 0."""
    row = evaluation or {}
    return 0 if row.get("evaluation/n") else row.get("evaluation/n_failed", 0)
