"""Train runs to their ends: one, or several that differ only in their seeds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import jax

from fidec.errors import FidecError
from fidec.train import loop
from fidec.train.devices import places_of
from fidec.train.dispatch import Pace, Program, run_for
from fidec.train.hosts import Leader
from fidec.train.session import Session


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
