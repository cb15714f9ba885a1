"""Windows of successive steps: chunks of actions, and returns over several steps.

Row t of the data, with its trajectory's last row e, becomes one transition of a longer step:

    actions            a_t, ..., a_{t+h-1}, side by side         h = chunk
    rewards            r_t + gamma r_{t+1} + ... + gamma^{L-1} r_{t+L-1}
    masks              gamma^{L-1} m_t ... m_{t+L-1}
    next observation   s_{t+L},  next actions a_{t+L}, ..., a_{t+L+h-1}
    L = min(n, e - t + 1)                                        n = n_step, at least h

A method's target r + gamma m V(s') is then that of L steps, so a method knows nothing of windows. The sum of rewards
ends with the first mask of 0. Actions after row e do not exist: its last action is repeated, and `valid` is 0 there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fidec.errors import ConfigError
from fidec.types import Batch

if TYPE_CHECKING:
    from fidec.store.replay import Rows


@dataclass(frozen=True)
class Window:
    """How many steps a transition has."""

    chunk: int = 1
    """h: actions that are chosen together."""
    n_step: int = 1
    """n: steps until the value is bootstrapped."""
    discount: float = 1.0
    """gamma of one step."""

    def __post_init__(self) -> None:
        if not 1 <= self.chunk <= self.n_step:
            raise ConfigError(
                f"n_step must be at least chunk, and both at least 1, not n_step {self.n_step} and chunk {self.chunk}"
            )

    @property
    def single(self) -> bool:
        """Whether a transition is one step, as it is stored."""
        return self.n_step == 1


SINGLE = Window()
BLOCK = 2**20  # rows whose sums are made at a time


def last_rows(episodes: np.ndarray) -> np.ndarray:
    """For each row the last row of its trajectory; `episodes` has [start, stop) of each."""
    first, stop = episodes.T
    return np.repeat(stop - 1, stop - first).astype(np.int32)


def sum_rewards(
    window: Window, rewards: np.ndarray, masks: np.ndarray, ends: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The columns `rewards` and `masks` of windows that begin at each row, float32."""
    sums, kept = np.empty(len(rewards), np.float32), np.empty(len(rewards), np.float32)
    for first in range(0, len(rewards), BLOCK):  # in blocks: the sums are made in float64
        rows = np.arange(first, min(first + BLOCK, len(rewards)))
        sums[rows], kept[rows] = _sums(window, rewards, masks, rows, ends[rows])
    return sums, kept


def _sums(window: Window, rewards: Any, masks: Any, rows: Any, last: Any) -> tuple[np.ndarray, np.ndarray]:
    """`sum_rewards` of windows that begin at `rows`, float64; `last` is the last row of each one's trajectory."""
    total, alive, factor = np.zeros(len(rows)), np.ones(len(rows)), np.ones(len(rows))
    for k in range(window.n_step):
        inside = rows + k <= last
        at = np.minimum(rows + k, last)
        total += np.where(inside, window.discount**k * alive * rewards[at], 0.0)
        alive *= np.where(inside, masks[at], 1.0)
        factor = np.where(inside, window.discount**k, factor)
    return total, factor * alive


def steps_from(first: Any, ends: Any, count: int, xp: Any) -> tuple[Any, Any]:
    """The rows of `count` steps from each of some rows on, held at the trajectory's end, and which of them exist."""
    rows = first[:, None] + xp.arange(count, dtype=first.dtype)
    return xp.minimum(rows, ends[:, None]), (rows <= ends[:, None]).astype(np.float32)


def take_window(data: Batch, rows: Any, last: Any, ends: Any, chunk: int, xp: Any) -> Batch:
    """The windows from `rows` to `last`, without observations; `ends` has the last row of each one's trajectory.

    `rewards` and `masks` of the data are those of `sum_rewards`. `xp` is numpy or jax.numpy.
    """

    def side_by_side(first: Any) -> tuple[Any, Any]:
        at, exists = steps_from(first, ends, chunk, xp)
        return data.actions[at].reshape(len(rows), -1), exists

    actions, valid = side_by_side(rows)
    return Batch(
        observations=None,
        actions=actions,
        rewards=data.rewards[rows],
        masks=data.masks[rows],
        next_observations=None,
        next_actions=side_by_side(last + 1)[0],
        returns=None if data.returns is None else data.returns[rows],
        valid=valid if chunk > 1 else None,
    )


class WindowBuilder:
    """Windows of steps as they are collected. It keeps the steps of running episodes that still begin windows.

    A window is complete when its next chunk is known too, or when its episode has ended: at a terminal, or, if the
    environment failed, where the lane goes on elsewhere. The windows depend on the rows and their
    order alone, so a resumed run makes them again from the rows on the disk. They equal those of a data set.
    """

    def __init__(self, window: Window):
        self._window = window
        self._reach = window.n_step + window.chunk  # the steps that one window needs
        # By lane: the episode and the step of its next row, and its last steps.
        self._running: dict[int, tuple[tuple[int, int], list[Batch]]] = {}

    def add(self, rows: Rows) -> Batch | None:
        """The windows that these rows complete, in a fixed order; None if there are none."""
        complete: list[Batch] = []
        places = (column.tolist() for column in (rows.lanes, rows.episodes, rows.steps, rows.terminals))
        for number, (lane, episode, step, ended) in enumerate(zip(*places, strict=True)):
            expected, steps = self._running.get(lane, ((episode, step), []))
            if expected != (episode, step):
                complete += self._take_complete(steps, ended=True)
                steps = []
            steps.append(Batch(*(None if column is None else column[number] for column in rows.batch)))
            complete += self._take_complete(steps, ended)
            self._running[lane] = ((episode, step + 1), steps)
        columns = zip(*complete, strict=True)
        return Batch(*(None if c[0] is None else np.stack(c) for c in columns)) if complete else None

    def _take_complete(self, steps: list[Batch], ended: bool) -> list[Batch]:
        """Take the complete windows off the beginning of an episode's last steps."""
        windows = []
        while steps and (ended or len(steps) >= self._reach):
            windows.append(self._first(steps[: self._reach]))
            steps.pop(0)
        return windows

    def _first(self, steps: list[Batch]) -> Batch:
        """The window that begins at the first of these steps, which end its trajectory or reach far enough."""
        first, end = np.zeros(1, np.int32), np.array([len(steps) - 1], np.int32)
        last = np.minimum(first + (self._window.n_step - 1), end)
        actions, rewards, masks = (
            np.stack([getattr(step, name) for step in steps]) for name in ("actions", "rewards", "masks")
        )
        total, kept = (column.astype(np.float32) for column in _sums(self._window, rewards, masks, first, end))
        data = Batch(None, actions, total, kept, None, None)
        window = take_window(data, first, last, end, self._window.chunk, np)
        return Batch(*(None if column is None else column[0] for column in window))._replace(
            observations=steps[0].observations,
            next_observations=_next_observation(steps[int(last[0])]),
            returns=steps[0].returns,
        )


def _next_observation(step: Batch) -> np.ndarray:
    """The next observation. Rows store only the newest frame of a stack."""
    from fidec.ops import images  # here, because it imports JAX

    before, newest = step.observations, step.next_observations
    return newest if before.shape == newest.shape else images.push(before, newest, np)
