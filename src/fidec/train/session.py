"""A training run in progress: what is restored, and what is done between the compiled steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np

from fidec import algos
from fidec.algos import Algorithm
from fidec.console import Progress
from fidec.data.batches import Feed, Sampling
from fidec.envs.factory import EnvFactory
from fidec.errors import BusyError, EnvError
from fidec.store import files
from fidec.store.checkpoint import Checkpoints, Restored
from fidec.store.lock import GoneError
from fidec.store.logs import RunLog
from fidec.store.replay import ReplayStore
from fidec.store.rundir import RunDirectory
from fidec.train import loop
from fidec.train.checks import Identity, check_identity, check_never_saved
from fidec.train.config import RunConfig
from fidec.train.dispatch import Run
from fidec.train.evaluation import Evaluation, Evaluator, Interrupted
from fidec.train.online import Online, Position, make_online
from fidec.train.policy import Policy
from fidec.train.pretrained_flow import Flow, with_flow
from fidec.train.validation import Validation
from fidec.train.value_scale import start_at
from fidec.train.warm_start import Initial
from fidec.types import Spec

Callback = Callable[[int, dict[str, Any]], object]


class Extra(TypedDict):
    """What a checkpoint of a run holds besides its state."""

    logs: dict[str, int]
    evaluated: bool
    identity: NotRequired[Identity]  # runs of older versions have none
    online: NotRequired[Position | None]


class Pending(NamedTuple):
    """An evaluation in the background, of the policy at `step`."""

    step: int
    result: Future[Evaluation]


class Journal:
    """Where a run reports: progress and messages on stderr, run.log, and the logs.

    Runs that are trained together share the progress. `name` says in messages which of them it is.
    """

    def __init__(self, directory: RunDirectory, progress: Progress, name: str = ""):
        self.progress = progress
        self.log = RunLog(directory.path, verify=directory.verify)
        self._directory, self._file, self._name = directory, directory.run_log, f"{name}: " if name else ""

    def message(self, text: str) -> None:
        """Print a line on stderr, above the bar, and add it to run.log, if this is still the run of this process."""
        self.progress.message(self._name + text)
        path, verify, elsewhere = self._file, self._directory.verify, suppress(BusyError, GoneError)
        with elsewhere, files.writing(path, "run.log"), open(files.open_to_append(path, verify), "a") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n")


@dataclass(kw_only=True, eq=False)
class Session(Run):
    """A run in progress. `fidec.train.run` trains it to the next step at which something is due (`next_due`)."""

    config: RunConfig
    algorithm: Algorithm
    spec: Spec
    dataset_name: str
    sampling: Sampling
    directory: RunDirectory
    checkpoints: Checkpoints
    journal: Journal
    signals: loop.Signals
    identity: Identity
    callback: Callback | None = None
    stop_requested: bool = False  # by the callback
    flow: Flow | None = None  # trained before, and frozen
    value: float | None = None  # at which the critic starts
    make_feed: Callable[[int], Feed] | None = None  # of the given step, with the flow's proposals if it has any
    online_algorithm: Algorithm | None = None  # for the online phase, if the run has one
    held_out: Validation | None = None
    declaration: str = ""  # of the environment, for the policy (`fidec.envs.families.TaskInfo`)
    action_bounds: Any = None  # of the data, if the policy's own are a part of them
    statistics: dict[str, Any] | None = None  # of the data, for the policy (`fidec.data.statistics`)
    evaluated: bool = True  # whether the evaluation that is due at this step was made, or is in the background
    evaluation: dict[str, Any] | None = None  # the last one
    evaluator: Evaluator | None = None
    background: bool = False  # whether training goes on during an evaluation
    online: Online | None = None
    _online_metrics: tuple[str, ...] = ()
    _pending: Pending | None = None
    _warm: bool = False  # whether a dispatch was made since the last compilation
    _mark: tuple[float, int] = (0.0, 0)  # time and step from which the speed is measured

    def restore(self, store: ReplayStore, initial: Initial | None = None, proposals: Any = None) -> Restored | None:
        """Continue from the newest intact checkpoint, which is returned, or start from nothing or from `initial`.

        `proposals` are the shapes of the flow's for a batch, which the feed does not have yet.
        """
        plain = loop.example_batch(self.feed.example, self.sampling)
        batch = plain._replace(proposals=proposals)

        def check(extra: dict[str, Any]) -> None:
            store.verify((extra.get("online") or {}).get("segments"))

        template, other = loop.template(self.algorithm, self.config.seed, batch), None
        if self.online_algorithm is not None and self.flow is not None:
            other = loop.template(self.online_algorithm, self.config.seed, plain)
        self._online_metrics = tuple((other or template).sums)
        restored = self.checkpoints.latest(template, check, Extra, other=other)
        if restored is None:
            check_never_saved(self.directory)
            self.carry = loop.start(self.algorithm, self.config.seed, batch)
            if initial is not None:
                self.carry = self.carry._replace(state=initial.state_like(self.carry.state))
            if self.flow is not None:
                self.carry = self.carry._replace(state=with_flow(self.carry.state, self.flow))
            if self.value is not None:
                critics = algos.get(self.config.algo).critics
                self.carry = self.carry._replace(state=start_at(self.carry.state, self.value, critics))
            self.journal.log.resume(None)
        else:
            check_identity(self.directory, restored, self.identity)
            self.step, self.carry, self.evaluated = restored.step, restored.state, restored.extra["evaluated"]
            self.journal.log.resume(restored.extra["logs"], self.step)
        evaluations = self.directory.read_jsonl("eval")
        self.evaluation = evaluations[-1] if evaluations else None
        if self.held_out is not None:
            self.held_out.restore(self.directory.read_jsonl("train"))
        self.journal.progress.restart(self.step)
        self._mark = (time.perf_counter(), self.step)
        return restored

    def open_environments(
        self,
        env: EnvFactory,
        store: ReplayStore,
        restored: Restored | None,
        stack: ExitStack,
        shared: Evaluator | None = None,
    ) -> None:
        """Prepare the evaluations and the online phase, as far as the configuration has them.

        Runs that are trained together share the environments of their evaluations.
        """
        config = self.config
        if config.eval_interval:
            self.evaluator = shared or stack.enter_context(
                Evaluator(
                    env,
                    self.spec,
                    envs=config.eval_envs,
                    episodes=config.eval_episodes,
                    fresh=config.eval_seeds == "fresh",
                    timeout=config.eval_timeout,
                )
            )
        if config.online_steps:
            assert self.online_algorithm is not None
            log, message = self.journal.log.exploration, self.journal.message
            self.online = make_online(
                config, env, self.spec, self.online_algorithm, self.feed, self.sampling, store, log, message
            )
            stack.callback(self.online.close)
            self.online.restore(restored.extra.get("online") if restored is not None else None)

    def start_environments(self) -> None:
        """Start the environments before training, so that a broken environment fails at once."""
        if self.evaluator is not None:
            self.evaluator.start()
        elif self.online is not None:
            self.online.start()

    @property
    def done(self) -> bool:
        finished = self.evaluated and self._pending is None and not self._round_pending
        return self.step == self.config.total and finished

    @property
    def _round_pending(self) -> bool:
        """Whether the updates of this step were made, but an environment failed in its round."""
        return self.online is not None and self.online.pending_actions is not None

    @property
    def in_online_phase(self) -> bool:
        return self.step >= self.config.steps

    def do_what_is_due(self) -> None:
        """Log, evaluate and save, in this order, as far as they are due at this step."""
        config = self.config
        if self.evaluated:
            if self._due(config.log_interval):
                self._log_metrics()
                self._stop_early()
            self.evaluated = self.evaluator is None or not self._due(config.eval_interval)
        if not self.evaluated:
            self.evaluate()
        if self.evaluated and self._due(config.checkpoint_interval):
            self.save()
        if self.flow is not None and self.step == config.steps:
            self.open_feed()

    def open_feed(self) -> None:
        """Draw the flow's proposals. The online phase frees their memory instead."""
        assert self.make_feed is not None
        before = time.perf_counter()
        self.feed.close()
        self.feed = self.make_feed(self.step)
        seconds = time.perf_counter() - before
        self._mark = (self._mark[0] + seconds, self._mark[1])
        if self.feed.example.rows.proposals is not None:
            self.journal.log.time(self.step, {"time/proposals": seconds})

    def _stop_early(self) -> None:
        """End the run here if the loss on held-out episodes has not improved for long: its steps are now these."""
        held, config = self.held_out, self.config
        if held is None or not held.stopped(config.patience) or self.step >= config.total:
            return
        self.journal.message(f"step {self.step}: {held.sentence()}. Training ends here.")
        self.config = replace(config, steps=self.step, online_steps=0)
        self.directory.write_config(self.config.to_json())

    def _due(self, interval: int) -> bool:
        """Whether something is due now that is done every `interval` steps and at the end of each phase."""
        ends = self.step in (self.config.steps, self.config.total)
        return ends or (interval > 0 and self.step % interval == 0)

    def next_due(self) -> int:
        """The next step at which something is due."""
        if self._round_pending:
            return self.step
        config = self.config
        intervals = (config.log_interval, config.eval_interval, config.checkpoint_interval)
        end = self.config.steps if self.step < self.config.steps else self.config.total
        return min(end, *((self.step // i + 1) * i for i in intervals if i > 0))

    def train_online(self, target: int) -> None:
        assert self.online is not None
        # The update of a frozen flow logs no loss of it. The row of the last offline step has the means so far.
        self.carry = loop.with_metrics(self.carry, self._online_metrics, self.step)
        self.record_compilation(self.online.compile(self.carry))
        self.carry, self.step = self.online.run_to(self.carry, self.step, target, self.signals, self.show)
        if self.online.failure is not None:
            self.save()  # so that the run can be resumed from here
            raise self.online.failure

    def record_compilation(self, seconds: float) -> None:
        """Log the time of a compilation, and do not count it in the speed."""
        if seconds < 0.01:  # it was compiled already
            return
        self.journal.log.time(self.step, {"time/compile": seconds})
        self._mark = (time.perf_counter(), self.step)
        self._warm = False

    def show(self, step: int) -> None:
        """Show how far the run is, after each dispatch."""
        if not self._warm:  # the first dispatch also compiles what runs beside the updates: no speed to go by
            self.journal.progress.restart(step)
            self._warm = True
        self.journal.progress.update(step)
        self._finish_evaluation(wait=False)

    def _log_metrics(self) -> None:
        means, fresh = loop.take_means(self.carry, self.step)
        if self.step % self.config.log_interval == 0:
            self.carry = fresh  # else a phase ends here, and the next row includes these steps
        rows = {f"training/{name}": value for name, value in means.items()}
        if self.held_out is not None:
            rows |= self.held_out(self.carry.state)
        online = self.online if self.online is not None and self.online.collected else None
        if online is not None:
            rows |= online.metrics()
            if self.step % self.config.log_interval == 0:
                online.recent = []
        self.journal.log.train(self.step, rows)
        now, (before, first) = time.perf_counter(), self._mark
        self._mark = (now, self.step)
        if now > before and self.step > first:
            times = {"time/steps_per_second": (self.step - first) / (now - before)}
            if online is not None:
                times["time/environment_share"] = online.take_waiting_time() / (now - before)
            self.journal.log.time(self.step, times)
        self.journal.progress.update(self.step, loss=float(means["loss"]))
        self._call_back(rows)

    def _call_back(self, rows: dict[str, Any]) -> None:
        """Tell the user's function what was logged. It may ask to stop; what it raises ends the run."""
        if self.callback is not None:
            answer = self.callback(self.step, files.to_builtin(rows))
            self.stop_requested |= isinstance(answer, bool | np.bool_) and bool(answer)

    def evaluate(self) -> None:
        """Evaluate, in the background except at the end, where nothing is left to do meanwhile.

        If a signal comes, `evaluated` stays False, and a resumed run begins with this evaluation. An evaluation in
        the background begins with a checkpoint that says the same; there is no other one until it is done.
        """
        assert self.evaluator is not None
        self._finish_evaluation()
        if self.signals.received is not None:
            return
        what = (self.algorithm, self.carry.state, self.step, self.config.seed)
        how = {"act": self.config.act, "on_step": self._check_signals}
        if self.background and self.step < self.config.total:
            self.save()
            self._pending = Pending(self.step, self.evaluator.in_background(*what, **how))
            self.evaluated = True
            return
        try:
            found = self.evaluator(*what, **how)
        except Interrupted:
            return
        except EnvError:
            self.save()  # so that a resumed run begins with this evaluation
            raise
        self._mark = (self._mark[0] + found.seconds, self._mark[1])
        self.evaluated = True
        self._log_evaluation(self.step, found)

    def _finish_evaluation(self, wait: bool = True) -> None:
        """Log the evaluation in the background when it is done. After a signal it stays pending, and is not done."""
        pending = self._pending
        if pending is None or not (wait or pending.result.done()):
            return
        try:
            found = pending.result.result()
        except Interrupted:
            return
        self._pending = None
        self._log_evaluation(pending.step, found)

    def _log_evaluation(self, step: int, found: Evaluation) -> None:
        rows = {f"evaluation/{name}": value for name, value in found.summary.items()}
        self.journal.log.evaluation(step, rows, [episode.row() for episode in found.episodes])
        self.evaluation = {"step": step, **rows}
        self.journal.log.time(step, {"time/evaluation": found.seconds})
        if found.summary.get("score") is not None:
            self.journal.progress.update(self.step, score=float(found.summary["score"]))
        for episode in found.episodes:
            if episode.status != "ok":
                self.journal.message(f"evaluation episode {episode.index} {episode.status}: {episode.detail}")
        if not found.summary["n"]:
            run, goes_on = self.directory.path, "Training goes on. " if step < self.config.total else ""
            self.journal.message(
                f"the evaluation of step {step} has no result: all {len(found.episodes)} episodes failed. The "
                f"reasons are in {run / 'episodes.jsonl'}. {goes_on}Repair the environment, and evaluate the policy "
                f"with `fidec eval {run}`."
            )
        self._call_back(rows)

    def _check_signals(self) -> None:
        if self.signals.received is not None:
            raise Interrupted

    def stop(self) -> None:
        """Save before the end. During an evaluation in the background, the run continues from its step."""
        self._finish_evaluation(wait=False)
        if self._pending is None:
            self.save()
        else:
            self.step = self._pending.step

    def save(self) -> None:
        """Save a checkpoint, and the portable policy of the same step. An earlier evaluation is finished before."""
        if self._pending is not None and self._pending.step < self.step:
            self._finish_evaluation()
        if self._pending is not None:
            return  # saved when it began; or a signal has come, and `stop` follows
        self.directory.verify()
        online = {"online": self.online.position()} if self.online is not None and self.online.has_begun else {}
        extra = {"logs": self.journal.log.positions(), "evaluated": self.evaluated, "identity": self.identity}
        extra |= online
        self.checkpoints.save(self.step, self.carry, extra)
        self.save_policy()
        self.directory.write_status("running", self.step)
        self.mirror()

    def mirror(self) -> None:
        """Bring the URL of the run up to date, if it has one. This is not counted in the speed."""
        if self.directory.mirror is None:
            return
        before = time.perf_counter()
        self.directory.mirror.update(self.journal.message)
        seconds = time.perf_counter() - before
        self._mark = (self._mark[0] + seconds, self._mark[1])
        self.journal.log.time(self.step, {"time/mirror": seconds})

    def save_policy(self) -> None:
        info = {"task": self.config.task, "dataset": self.dataset_name, "step": self.step}
        info["success_timing"] = self.config.success_timing
        if self.declaration:
            info["declaration"] = self.declaration
        info |= {"config_sha256": files.sha256_json(self.identity["config"]), "data_sha256": self.identity["data"]}
        if self.config.env is not None:
            info["env"] = self.config.env
        if self.config.scale_actions:
            info["scale_actions"] = True
        if self.action_bounds is not None:
            info["action_bounds"] = self.action_bounds
        if self.statistics is not None:
            info["data_statistics"] = self.statistics
        how = self.config.algo, self.config.options, self.spec, self.carry.state, info
        policy = Policy(*how, act=self.config.act)
        policy.save(self.directory.policy, self.directory.verify)
