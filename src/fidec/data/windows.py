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
from typing import Any

import numpy as np

from fidec.errors import ConfigError
from fidec.types import Batch


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
        last = ends[rows]
        total, alive, factor = np.zeros(len(rows)), np.ones(len(rows)), np.ones(len(rows))
        for k in range(window.n_step):
            inside = rows + k <= last
            at = np.minimum(rows + k, last)
            total += np.where(inside, window.discount**k * alive * rewards[at], 0.0)
            alive *= np.where(inside, masks[at], 1.0)
            factor = np.where(inside, window.discount**k, factor)
        sums[rows], kept[rows] = total, factor * alive
    return sums, kept


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
