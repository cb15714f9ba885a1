"""Windows of several steps from transitions as they are collected."""

from __future__ import annotations

import jax
import numpy as np

from fidec.data.windows import Window
from fidec.ops import images
from fidec.store.replay import Rows
from fidec.types import Batch


class OpenWindows:
    """The steps of running episodes whose windows are not complete.

    A window is complete when its next chunk is known too, or when its episode has ended: at a terminal, or, if the
    environment failed or rows were lost, where the lane goes on elsewhere. The windows depend on the rows and their
    order alone, so a resumed run makes them again from the rows on the disk. They equal those that
    `fidec.data.windows` takes from a data set.
    """

    def __init__(self, window: Window):
        self._window = window
        self._reach = window.n_step + window.chunk  # the steps that one window needs
        self._running: dict[
            int, tuple[tuple[int, int], list[Batch]]
        ] = {}  # by lane: its next row, and its last steps

    def add(self, rows: Rows) -> Batch | None:
        """The windows that these rows complete, in a fixed order; None if there are none."""
        complete: list[Batch] = []
        columns = (rows.lanes, rows.episodes, rows.steps, rows.terminals)
        for number, (lane, episode, step, ended) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            expected, steps = self._running.get(lane, ((episode, step), []))
            if expected != (episode, step):
                complete += self._cut(steps, ended=True)
                steps = []
            steps.append(Batch(*(None if column is None else column[number] for column in rows.batch)))
            complete += self._cut(steps, ended)
            self._running[lane] = ((episode, step + 1), steps)
        return jax.tree.map(lambda *each: np.stack(each), *complete) if complete else None

    def _cut(self, steps: list[Batch], ended: bool) -> list[Batch]:
        """Take the complete windows off the beginning of an episode's last steps."""
        found = []
        while steps and (ended or len(steps) >= self._reach):
            found.append(self._first(steps[: self._reach]))
            steps.pop(0)
        return found

    def _first(self, steps: list[Batch]) -> Batch:
        """The window that begins at the first of these steps, which end its trajectory or reach far enough."""
        window, end = self._window, len(steps) - 1
        last = min(window.n_step - 1, end)
        total, alive = 0.0, 1.0
        for k, step in enumerate(steps[: last + 1]):
            total += window.discount**k * alive * float(step.rewards)
            alive *= float(step.masks)

        def side_by_side(first: int) -> np.ndarray:
            return np.concatenate([steps[min(first + k, end)].actions for k in range(window.chunk)])

        return Batch(
            observations=steps[0].observations,
            actions=side_by_side(0),
            rewards=np.float32(total),
            masks=np.float32(window.discount**last * alive),
            next_observations=_following(steps[last]),
            next_actions=side_by_side(last + 1),
            returns=steps[0].returns,
            valid=(np.arange(window.chunk) <= end).astype(np.float32) if window.chunk > 1 else None,
        )


def _following(step: Batch) -> np.ndarray:
    """The observation after a step. Of stacked ones the rows have the newest alone."""
    seen, following = step.observations, step.next_observations
    return following if seen.shape == following.shape else images.push(seen, following, np)
