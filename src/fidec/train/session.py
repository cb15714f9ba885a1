"""The moving parts of a run, and what happens at the borders between dispatches."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fidec import algos
from fidec.console.progress import Progress
from fidec.data import OfflineDataset
from fidec.data.feed import Feed, HostFeed, free_memory, make_feed
from fidec.data.sampling import Sampling
from fidec.envs.factory import EnvFactory
from fidec.errors import EnvError
from fidec.store import files, versions
from fidec.store.checkpoint import Checkpoints
from fidec.store.logs import RunLog
from fidec.store.replay import ReplayStore
from fidec.store.rundir import RunDirectory
from fidec.train import loop
from fidec.train.config import RunConfig
from fidec.train.evaluate import Evaluator
from fidec.train.online import Online, make_online
from fidec.train.policy import Policy


class Interrupted(Exception):
    """A signal arrived during an evaluation."""


class Session:
    """The moving parts of a run, and what happens at the borders between dispatches."""

    def __init__(
        self,
        config: RunConfig,
        dataset: OfflineDataset,
        buffer: OfflineDataset | None,
        env: EnvFactory | None,
        directory: RunDirectory,
        stack: ExitStack,
        signals: loop.Signals,
        quiet: bool,
    ):
        self.config, self.directory, self.signals = config, directory, signals
        self.spec = dataset.spec.stacked(config.frame_stack)
        self.algorithm = algos.get(config.algo).make(config.options, self.spec)
        self.dataset_name = dataset.name
        self.sampling = Sampling.of(dataset.spec, config.frame_stack, config.augment, config.buffer_fraction)
        self.feed = self._make_feed(dataset, buffer, stack)
        batch = loop.example_batch(self.feed.example, self.sampling)

        self.progress = Progress(config.total) if not quiet else None
        self.checkpoints = Checkpoints(directory.checkpoints, config.keep_checkpoints, warn=self.message)
        self.log = RunLog(directory.path)
        stack.callback(self.log.close)
        store = ReplayStore(directory.replay)
        restored = self.checkpoints.latest(
            loop.template(self.algorithm, config.seed, batch),
            check=lambda extra: store.verify((extra.get("online") or {}).get("segments")),
        )
        if restored is None:
            self.step, self.carry = 0, loop.start(self.algorithm, config.seed, batch)
            self.evaluated = True  # whether the evaluation that is due at this step was made
            self.log.resume(None)
        else:
            self.step, self.carry = restored.step, restored.state
            self.evaluated = restored.extra["evaluated"]
            self.log.resume(restored.extra["logs"], self.step)
        evaluations = directory.read_jsonl("eval")
        self.evaluation: dict[str, Any] | None = evaluations[-1] if evaluations else None
        if self.progress is not None:
            self.progress.step = self.step
            stack.enter_context(self.progress)
        if isinstance(self.feed, HostFeed):
            where = "their file" if dataset.mapped else "main memory"
            self.message(
                f"{dataset.name} takes {dataset.nbytes / 1e9:.1f} GB, more than the memory limit: its rows stay in "
                f"{where} and are read when they are drawn"
            )
        if restored is not None:
            self.message(f"resumed {directory.path} at step {self.step}")
            self._save_policy()  # the kill may have come between the checkpoint and its policy

        now = versions.environment(_facts(dataset))
        self._write_environment(now if buffer is None else {**now, "buffer": _facts(buffer)})
        directory.write_status("running", self.step)
        self.evaluator = self._make_evaluator(env, stack)
        self.online: Online | None = None
        if config.online_steps:
            assert env is not None
            self.online = make_online(
                config,
                env,
                self.spec,
                self.feed,
                self.sampling,
                store,
                log=self.log.exploration,
                message=self.message,
            )
            stack.callback(self.online.close)
            self.online.restore(restored.extra.get("online") if restored is not None else None)
        self.pace = loop.Pace()
        self.steps: Callable | None = None  # compiled when first needed
        self.mark = (time.perf_counter(), self.step)

    def _make_feed(self, dataset: OfflineDataset, buffer: OfflineDataset | None, stack: ExitStack) -> Feed:
        """What batches are drawn from, with the columns that the method reads."""
        config = self.config
        feed = make_feed(
            [dataset] if buffer is None else [dataset, buffer],
            config.seed,
            config.batch_size,
            self.sampling,
            discount=config.options.discount if algos.get(config.algo).needs_returns else None,
            limit=self._memory_limit(),
        )
        stack.callback(feed.close)
        return feed

    def _memory_limit(self) -> float | None:
        """Bytes that the data may take on the device. Online it has to be there, so all that is free may be taken."""
        if self.config.memory_limit is not None:
            return self.config.memory_limit * 1e9
        return free_memory() if self.config.online_steps else None

    def _make_evaluator(self, env: EnvFactory | None, stack: ExitStack) -> Evaluator | None:
        config = self.config
        if env is None or config.eval_interval == 0:
            return None
        return stack.enter_context(
            Evaluator(
                env,
                self.spec,
                envs=config.eval_envs,
                episodes=config.eval_episodes,
                seed=config.seed,
                timeout=config.eval_timeout,
            )
        )

    def start_environments(self) -> None:
        """Start the environments before training, so that a broken environment fails at once."""
        if self.evaluator is not None:
            self.evaluator.start()
        elif self.online is not None:
            _ = self.online.lanes

    def _write_environment(self, now: dict[str, Any]) -> None:
        """What the run is made with; what it was made with before stays, and a change is reported."""
        if not self.directory.environment.exists():
            self.directory.write_environment(now)
            return
        first = self.directory.read_environment()
        last = (first.get("resumed") or [first])[-1]
        for name in ("python", "packages", "platform", "backend", "devices", "xla_flags"):
            if last.get(name) != now[name]:
                self.message(
                    f"{name} changed since this run last ran ({last.get(name)} -> {now[name]}): "
                    "it goes on, but not bit for bit as it would have"
                )
        self.directory.write_environment({**first, "resumed": [*first.get("resumed", []), now]})

    def message(self, text: str) -> None:
        """To stderr, above the bar, and into run.log."""
        if self.progress is not None:
            self.progress.message(text)
        else:
            print(text, file=sys.stderr)
        with files.writing(self.directory.run_log, "run.log"), self.directory.run_log.open("a") as log:
            log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {text}\n")

    @property
    def done(self) -> bool:
        return self.step == self.config.total and self.evaluated and not self._owing

    @property
    def _owing(self) -> bool:
        """Whether an environment failed in a round whose updates were made, so that what is due now is still due."""
        return self.online is not None and self.online.owed is not None

    def advance(self) -> None:
        """Train to the next border, and do there what is due: log, evaluate, save, in this order."""
        config = self.config
        if self.evaluated:
            border = self.step if self._owing else self._border()
            self._train_to(border)
            if self.step < border:
                return  # a signal: `_train` saves
            if self._due(config.log_interval):
                self._log_metrics()
            self.evaluated = self.evaluator is None or not self._due(config.eval_interval)
        if not self.evaluated:
            self._evaluate()
        if self.evaluated and self._due(config.checkpoint_interval):
            self.save()

    def _due(self, interval: int) -> bool:
        """Whether something done at every `interval` steps, at the hand-over and at the end, is due now."""
        ends = self.step in (self.config.steps, self.config.total)
        return ends or (interval > 0 and self.step % interval == 0)

    def _border(self) -> int:
        """The next step at which anything is due."""
        intervals = (self.config.log_interval, self.config.eval_interval, self.config.checkpoint_interval)
        end = self.config.steps if self.step < self.config.steps else self.config.total
        return min(end, *((self.step // i + 1) * i for i in intervals if i > 0))

    def _train_to(self, border: int) -> None:
        if self.step >= self.config.steps:
            self._train_online(border)
            return
        if self.steps is None:
            self.steps = self._compile()
        self.carry, self.step = loop.run_to(
            self.steps, self.carry, self.feed, self.step, border, self.pace, self.signals, self._show
        )

    def _train_online(self, border: int) -> None:
        assert self.online is not None
        self._compiled(self.online.compile(self.carry))
        self.carry, self.step = self.online.run_to(self.carry, self.step, border, self.signals, self._show)
        if self.online.failure is not None:
            self.save()  # what was collected and learnt up to here is not lost, and resuming begins here
            raise self.online.failure

    def _compile(self) -> Callable:
        before = time.perf_counter()
        looped = not loop.step_by_step(self.spec)
        jitted = loop.make_steps(self.algorithm, self.config.seed, self.sampling, looped=looped)
        compiled = jitted.lower(self.carry, self.feed.example, np.int32(0), np.int32(1)).compile()
        self._compiled(time.perf_counter() - before)
        return compiled if looped else loop.one_by_one(compiled)

    def _compiled(self, seconds: float) -> None:
        """Note what compiling took, and do not count it in the speed."""
        if seconds < 0.01:  # it was compiled already
            return
        self.log.time(self.step, {"time/compile": seconds})
        self.mark = (time.perf_counter(), self.step)
        if self.progress is not None:
            self.progress.restart()

    def _show(self, step: int) -> None:
        if self.progress is not None:
            self.progress.update(step)

    def _log_metrics(self) -> None:
        means, fresh = loop.take_means(self.carry, self.step)
        if self.step % self.config.log_interval == 0:
            self.carry = fresh  # else this is the end; should the run be extended, its next row is a whole interval
        rows = {f"training/{name}": value for name, value in means.items()}
        online = self.online if self.online is not None and self.online.collected else None
        if online is not None:
            rows |= online.metrics()
            if self.step % self.config.log_interval == 0:
                online.recent = []
        self.log.train(self.step, rows)
        now, (before, first) = time.perf_counter(), self.mark
        self.mark = (now, self.step)
        if now > before and self.step > first:
            times = {"time/steps_per_second": (self.step - first) / (now - before)}
            if online is not None:
                times["time/environment_share"] = online.waited / (now - before)
                online.waited = 0.0
            self.log.time(self.step, times)
        if self.progress is not None:
            self.progress.update(self.step, loss=float(means["loss"]))

    def _evaluate(self) -> None:
        """Evaluate at this step, unless a signal comes: then `evaluated` stays False, and resuming begins here."""
        assert self.evaluator is not None
        before = time.perf_counter()
        try:
            summary, episodes = self.evaluator(
                self.algorithm,
                self.carry.state,
                self.step,
                candidates=self.config.candidates,
                on_step=self._check_signals,
            )
        except Interrupted:
            return
        except EnvError:
            self.save()  # the training up to here is not lost, and resuming begins with this evaluation
            raise
        rows = {f"evaluation/{name}": value for name, value in summary.items()}
        self.log.evaluation(self.step, rows, [episode.row() for episode in episodes])
        self.evaluation, self.evaluated = {"step": self.step, **rows}, True
        seconds = time.perf_counter() - before
        self.log.time(self.step, {"time/evaluation": seconds})
        self.mark = (self.mark[0] + seconds, self.mark[1])
        if self.progress is not None and summary.get("score") is not None:
            self.progress.update(self.step, score=float(summary["score"]))
        for episode in episodes:
            if episode.status != "ok":
                self.message(f"evaluation episode {episode.index} {episode.status}: {episode.detail}")

    def _check_signals(self) -> None:
        if self.signals.received is not None:
            raise Interrupted

    def save(self) -> None:
        """A checkpoint, and the portable policy of the same step."""
        online = {"online": self.online.position()} if self.online is not None and self.online.begun else {}
        extra = {"logs": self.log.positions(), "evaluated": self.evaluated, **online}
        self.checkpoints.save(self.step, self.carry, extra)
        self._save_policy()
        self.directory.write_status("running", self.step)

    def _save_policy(self) -> None:
        info = {"task": self.config.task, "dataset": self.dataset_name, "step": self.step}
        info |= {"success_timing": self.config.success_timing, "rendering": self.config.rendering}
        if self.config.env is not None:
            info["env"] = self.config.env
        Policy(self.config.algo, self.config.options, self.spec, self.carry.state, info).save(self.directory.policy)


def _facts(dataset: OfflineDataset) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "source": dataset.source,
        "transitions": dataset.size,
        "sha256": dataset.sha256,
        "info": dataset.info,
    }
