"""Windows of several steps from transitions as they are collected."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from fidec.data.windows import Window, sum_rewards, take_window
from fidec.ops import images
from fidec.store.replay import Rows
from fidec.types import Batch


class OpenWindows:
    """The steps of running episodes whose windows are not complete.

    A window is complete when its next chunk is known too, or when its episode has ended: at a terminal, or, if the
    environment failed, where its lane begins another episode. The windows depend on the rows and their order alone,
    so a resumed run makes them again from the rows on the disk.
    """

    def __init__(self, window: Window):
        self._window = window
        self._reach = window.n_step + window.chunk  # the steps that one window needs
        self._running: dict[int, tuple[int, list[Batch]]] = {}  # by lane: the episode, and its last steps

    def add(self, rows: Rows) -> Batch | None:
        """The windows that these rows complete, in a fixed order; None if there are none."""
        complete: list[Batch] = []
        places = zip(rows.lanes.tolist(), rows.episodes.tolist(), rows.terminals.tolist(), strict=True)
        for number, (lane, episode, ended) in enumerate(places):
            running, steps = self._running.get(lane, (episode, []))
            if running != episode:
                complete += self._cut(steps, ended=True)
                steps = []
            steps.append(jax.tree.map(lambda column, number=number: column[number], rows.batch))
            complete += self._cut(steps, ended)
            self._running[lane] = (episode, steps)
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
        columns: Batch = jax.tree.map(lambda *each: np.stack(each), *steps)
        first, ends = np.zeros(1, np.int32), np.full(1, len(steps) - 1, np.int32)
        rewards, masks = sum_rewards(self._window, columns.rewards, columns.masks, np.repeat(ends, len(steps)))
        last = min(self._window.n_step, len(steps)) - 1
        window = take_window(columns._replace(rewards=rewards, masks=masks), first, ends, self._window, np)
        row: Any = jax.tree.map(lambda column: column[0], window)
        return row._replace(observations=columns.observations[0], next_observations=_following(columns, last))


def _following(steps: Batch, last: int) -> np.ndarray:
    """The observation after step `last`. Of stacked frames the rows have the newest one alone."""
    seen, following = steps.observations[last], steps.next_observations[last]
    return following if seen.shape == following.shape else images.push(seen, following, np)
