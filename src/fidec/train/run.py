"""Start or resume training runs, and train them to their ends: one, or several that differ only in their seeds."""

from __future__ import annotations

import dataclasses
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fidec import compilation
from fidec.data import OfflineDataset
from fidec.data.memory import memory_errors
from fidec.envs.factory import MakeEnv
from fidec.errors import ConfigError, FidecError, RunError
from fidec.store.rundir import RunDirectory
from fidec.train import loop
from fidec.train.config import OnlineConfig, RunConfig
from fidec.train.devices import places_of
from fidec.train.dispatch import Pace, Program, run_for
from fidec.train.hosts import Leader
from fidec.train.opening import open_sessions, runs_that_fit
from fidec.train.pretrained_flow import Flow, copy_flow, load_flow
from fidec.train.resolve import seed_name
from fidec.train.session import Callback, Session
from fidec.train.starting import Start, begin, check_offline, open_stage, reopen


class Preempted(RunError):
    """A signal stopped the run, which is saved and can be resumed. The exit code is 75, or 130 after Ctrl-C."""

    def __init__(self, number: int, text: str):
        super().__init__(f"{signal.Signals(number).name}: {text}")
        self.number, self.text = number, text
        self.exit_code = 130 if number == signal.SIGINT else 75


class Result(NamedTuple):
    """A run: its directory, its last step, and the last evaluation (None without an environment).

    `stopped` says that a callback ended it before its last step. `fidec.resume` continues it. `url` is where the run
    is mirrored, if its place is a URL.
    """

    directory: Path
    step: int
    evaluation: dict[str, Any] | None
    stopped: bool = False
    url: str | None = None

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
    with ExitStack() as stack:
        starts = begin([config], dataset, buffer, env, overwrite, stack)
        return _train_all(starts, quiet, callback)[0]


def train_seeds(
    config: RunConfig,
    seeds: Sequence[int],
    dataset: OfflineDataset | None = None,
    buffer: OfflineDataset | None = None,
    *,
    env: MakeEnv | None = None,
    overwrite: bool = False,
    quiet: bool = False,
) -> list[Result]:
    """Train several seeds by one compiled program, each in a run directory of its own, OUT/seedNNN.

    Each run is as `train` makes it, and can be resumed alone or with the others (`resume_all`).
    """
    if not seeds:
        raise ConfigError("no seeds are given: expected at least one")
    if len(set(seeds)) < len(seeds):
        raise ConfigError(f"seeds {' '.join(map(str, seeds))}: each seed can be given once")
    check_offline(config, len(seeds))
    given = [dataclasses.replace(config, seed=seed) for seed in seeds]
    configs = [dataclasses.replace(each, out=each.out and each.out / seed_name(each.seed)) for each in given]
    with ExitStack() as stack:
        return _train_by_memory(begin(configs, dataset, buffer, env, overwrite, stack), quiet)


def resume(
    path: str | Path,
    dataset: OfflineDataset | None = None,
    buffer: OfflineDataset | None = None,
    *,
    env: str | MakeEnv | None = None,
    steps: int | None = None,
    online_steps: int | None = None,
    online: OnlineConfig | None = None,
    devices: int | None = None,
    quiet: bool = False,
    callback: Callback | None = None,
) -> Result:
    """Continue an interrupted run, bit for bit, or extend a finished one by more `steps` or by an online phase.

    What the run was given in Python (`dataset`, `buffer`, `env`) has to be given again. A run that has not
    used an environment yet can be given one: a Gymnasium id, or a function that returns an environment.
    `online_steps` is the number of the whole run. `online` has the options of its online phase. Once that has begun,
    only `max_failures` may change. `devices` is another number of devices, after which the run is equal to an
    uninterrupted one up to rounding. `callback` is that of `fidec.fit`.

    If rows of the replay buffer or of a log are damaged or lost, this is an error that names the file.
    """
    longer = {"steps": steps, "online_steps": online_steps, "online": online, "devices": devices}
    with ExitStack() as stack:
        start = reopen(path, dataset, buffer, env, longer, stack)
        return _train_all([start], quiet, callback)[0]


def resume_all(
    paths: Sequence[str | Path],
    dataset: OfflineDataset | None = None,
    buffer: OfflineDataset | None = None,
    *,
    env: str | MakeEnv | None = None,
    steps: int | None = None,
    quiet: bool = False,
) -> list[Result]:
    """Continue several runs that differ only in their seeds, by one compiled program."""
    starts: list[Start] = []
    with ExitStack() as stack:
        for path in paths:
            first = starts[0] if starts else None
            starts.append(reopen(path, dataset, buffer, env, {"steps": steps}, stack, first))
        return _train_by_memory(starts, quiet)


def _train_by_memory(starts: Sequence[Start], quiet: bool) -> list[Result]:
    """Train as many runs at a time as fit into memory."""
    size = runs_that_fit(starts[0])
    groups = [starts[first : first + size] for first in range(0, len(starts), size)]
    if len(groups) == 1:
        return _train_all(starts, quiet)
    print(f"there is memory for {size} of {len(starts)} runs at a time", file=sys.stderr)
    results, problems = [], []
    for number, group in enumerate(groups):
        try:
            results += _train_all(group, quiet)
        except Preempted as error:
            left = [start.directory.address for later in groups[number + 1 :] for start in later]
            raise Preempted(error.number, " ".join([error.text, *left])) from error
        except FidecError as error:
            problems.append(str(error))
    if problems:
        raise RunError(" ".join(problems))
    return results


class Together:
    """Runs with the same method, data and schedule. `advance` moves on all that are not done.

    A run may be ahead of another, for it may have been resumed from a later checkpoint. If one of several fails, the
    others go on.
    """

    def __init__(self, runs: Sequence[Session], signals: loop.Signals):
        self.runs, self._signals = runs, signals
        self.failures: dict[Session, FidecError] = {}
        self._program: Program | None = None  # compiled when first needed
        self._pace = Pace()

    @property
    def going(self) -> list[Session]:
        """The runs that have neither ended nor failed."""
        return [run for run in self.runs if not (run.done or run in self.failures)]

    def advance(self) -> None:
        """Train to the next step at which something is due in one of the runs, and do it."""
        runs = self.going
        if behind := [run for run in runs if not run.evaluated]:  # resumed runs that begin with an evaluation
            self._do_what_is_due(behind)
            return
        if runs[0].in_online_phase:
            (run,) = runs  # several seeds have none
            target = run.next_due()
            run.train_online(target)
            reached = run.step == target
        else:
            count = min(run.next_due() - run.step for run in runs)
            before = runs[0].step
            self._train(runs, count)
            reached = runs[0].step == before + count
        if reached:  # else a signal has come: the caller stops the runs
            self._do_what_is_due(runs)

    def close(self) -> None:
        if self._program is not None:
            self._program.close()

    def _train(self, runs: list[Session], count: int) -> None:
        if self._program is None:
            before, run = time.perf_counter(), runs[0]
            places = places_of(run.config.devices, len(self.runs), run.config.split_critics)
            lead = partial(Leader, config=run.config, signals=self._signals) if jax.process_count() > 1 else None
            self._program = Program(run.algorithm, run.sampling, run.spec, runs, places=places, single=lead)
            for each in runs:
                each.record_compilation(time.perf_counter() - before)
        run_for(self._program, runs, count, self._pace, self._signals, lambda: self._show(runs))
        for run in runs:
            with self.contained(run):
                loop.check_finite(run.carry)

    def _show(self, runs: list[Session]) -> None:
        for run in runs:
            with self.contained(run):
                run.show(run.step)

    def _do_what_is_due(self, runs: list[Session]) -> None:
        for run in runs:
            with self.contained(run):
                if run not in self.failures:
                    run.do_what_is_due()

    @contextmanager
    def contained(self, run: Session) -> Iterator[None]:
        """An error of one of several runs ends this run only."""
        try:
            yield
        except FidecError as error:
            if len(self.runs) == 1:
                raise
            self.failures.setdefault(run, error)
            run.journal.message(f"stopped at step {run.step}: {error}")


def _train_all(starts: Sequence[Start], quiet: bool, callback: Callback | None = None) -> list[Result]:
    """Train the runs to their ends, together. An error names those that failed; a signal stops all."""
    compilation.enable()
    first, runs = starts[0], list[Session]()
    together: Together | None = None
    signals = loop.Signals()
    try:
        with memory_errors(first.config.batch_size, first.dataset, first.buffer), ExitStack() as stack:
            signals = stack.enter_context(loop.catch_signals())
            flows = _provide_flows(starts, quiet)
            for run in open_sessions(starts, flows, stack, signals, quiet, callback):
                runs.append(run)
            together = Together(runs, signals)
            stack.callback(together.close)
            for start, run in zip(starts, runs, strict=True):
                _prepare(start, run)
            while together.going and not (signals.received or any(run.stop_requested for run in runs)):
                together.advance()
            for run in together.going:
                with together.contained(run):
                    run.stop()
    except BaseException as error:
        for number, start in enumerate(starts):
            run = runs[number] if number < len(runs) else None
            if run is None or together is None or run in together.going:
                _write_failure(start.directory, run, error)
            else:
                with suppress(FidecError):
                    _write_end(run, together, signals)
        for text in _finish_mirrors(starts):  # these must not hide the first error
            if text != str(error):
                print(text, file=sys.stderr)
        raise
    for run in runs:
        with together.contained(run):
            _write_end(run, together, signals)
    behind = _finish_mirrors(starts)
    if signals.received is not None and together.going:
        steps = sorted({str(run.step) for run in together.going})
        again = " ".join(run.directory.address for run in together.going)
        saved = f"saved at step {', '.join(steps)}. Continue with: fidec train --resume {again}"
        raise Preempted(signals.received, " ".join([*behind, saved]))
    if failures := together.failures:
        what = "; ".join(f"{run.directory.path}: {error}" for run, error in failures.items())
        rest = "" if len(failures) == len(runs) else ", the others are done"
        raise RunError(" ".join([f"{len(failures)} of {len(runs)} runs failed{rest}. {what}", *behind]))
    if behind:
        raise RunError(" ".join(behind))
    return [_result(run) for run in runs]


def _result(run: Session) -> Result:
    mirror = run.directory.mirror
    url = None if mirror is None else mirror.url
    return Result(run.directory.path, run.step, run.evaluation, stopped=not run.done, url=url)


def _finish_mirrors(starts: Sequence[Start]) -> list[str]:
    """Bring the URLs of the runs to their last states; what to say about those that could not be.

    A flow that was trained first is a part of its run, which goes on.
    """
    problems = []
    for directory in (start.directory for start in starts):
        mirror = directory.mirror
        try:
            if mirror is not None and mirror.directory == directory.path:
                mirror.finish()
        except FidecError as error:
            problems.append(str(error))
    return problems


def _prepare(start: Start, run: Session) -> None:
    """Report what was found before, start the environments, and replace the configuration and an earlier run."""
    for text in start.messages:
        run.journal.message(text)
    if not run.done and run.signals.received is None:
        run.start_environments()
    start.directory.write_config(start.config.to_json())  # only now, after all checks have passed
    start.directory.delete_earlier()
    if run.step:
        run.save_policy()  # the run may have been killed between the checkpoint and its policy
    run.mirror()


def _write_failure(directory: RunDirectory, run: Session | None, error: BaseException) -> None:
    reason = str(error) if isinstance(error, FidecError) else f"{type(error).__name__}: {error}"
    with suppress(FidecError):  # a full disk must not hide the first error
        if run is not None or directory.read_status() is None:  # a run that cannot be resumed keeps its status
            directory.write_status("failed", run.step if run else 0, reason)


def _write_end(run: Session, together: Together, signals: loop.Signals) -> None:
    """Write the state in which a run ends here."""
    if run in together.failures:
        _write_failure(run.directory, run, together.failures[run])
    elif run.done:
        run.directory.write_status("done", run.step)
    else:
        received = signals.received
        reason = "the callback asked to stop" if received is None else signal.Signals(received).name
        run.directory.write_status("preempted", run.step, reason)


def _provide_flows(starts: Sequence[Start], quiet: bool) -> list[Flow | None]:
    """The behaviour flow that each run is given: a copy of another run's, or one that is trained now, in `flow/`."""
    if not starts[0].config.has_flow:
        return [None] * len(starts)
    with ExitStack() as stack:
        stages = []
        for start in starts:
            source, place = start.config.flow, start.directory.flow
            start.directory.verify()
            if source is not None and not place.exists():
                copy_flow(source, place, start.directory.verify)
            elif source is None and (stage := open_stage(start, stack)) is not None:
                stages.append(stage)
        try:
            if stages:
                _train_all(stages, quiet)
        except Preempted as error:
            for start in starts:
                start.directory.write_status("preempted", 0, signal.Signals(error.number).name)
            places = " ".join(start.directory.address for start in starts)
            text = f"the behaviour flow is saved. Continue with: fidec train --resume {places}"
            raise Preempted(error.number, text) from error
    return [load_flow(start.directory.flow, start.config, start.dataset, start.spec) for start in starts]
