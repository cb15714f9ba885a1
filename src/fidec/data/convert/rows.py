"""The rows of a data set as formats store them: each episode, and after it the state that it ended in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fidec.data.check import unlinked_rows
from fidec.data.columns import ACTION_LIMIT, action_array
from fidec.data.dataset import OfflineDataset
from fidec.data.disk_array import BLOCK_BYTES, row_bytes
from fidec.errors import DataError
from fidec.parts import arrays_of, named


@dataclass(frozen=True)
class Rows:
    """Row i of the new data set shows row `rows[i]` of the old one; if `last[i]`, its next state alone."""

    dataset: OfflineDataset
    rows: np.ndarray
    last: np.ndarray
    unlinked: int
    """Rows whose next state is not the next row of their episode."""

    @classmethod
    def of(cls, dataset: OfflineDataset, last_states: bool) -> Rows:
        """A last state follows an episode that was cut; with `last_states`, any episode whose last state is known.

        At the end of the task the data may repeat the last observation as a next state that is never used.
        """
        stops = dataset.episodes[:, 1]
        final = stops - 1
        has_last = dataset.masks[final] != 0
        if last_states:
            has_last |= moved(dataset, final)
        rows = np.sort(np.concatenate([np.arange(dataset.size), final[has_last]]))
        last = np.append(rows[1:] == rows[:-1], False)
        last = np.concatenate([[False], last[:-1]])  # the second of two equal numbers
        return cls(dataset, rows, last, unlinked_rows(dataset)[0])

    @property
    def count(self) -> int:
        return len(self.rows)

    @cached_property
    def ends(self) -> np.ndarray:
        """(count,) bool: the last row of each episode."""
        episode = np.repeat(np.arange(len(self.dataset.episodes)), np.diff(self.dataset.episodes, axis=1)[:, 0])
        ids = episode[self.rows]
        return np.append(ids[1:] != ids[:-1], True)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """[start, stop) of each episode."""
        stops = np.flatnonzero(self.ends) + 1
        return list(zip([0, *stops[:-1].tolist()], stops.tolist(), strict=True))

    def observed(self, start: int = 0, stop: int | None = None) -> dict[str, np.ndarray]:
        """The observations of some rows, by `observations` or `observations/NAME`."""
        rows, last = self.rows[start:stop], self.last[start:stop]
        found = {}
        following = named("observations", self.dataset.next_observations)
        for key, array in named("observations", self.dataset.observations).items():
            found[key] = np.array(array[rows])
            found[key][last] = following[key][rows[last]]
        return found

    def blocks(self) -> Iterator[tuple[int, int]]:
        """[start, stop) of blocks whose observations take little memory."""
        size = sum(map(row_bytes, arrays_of(self.dataset.observations)))
        step = max(1, BLOCK_BYTES // max(1, size))
        for start in range(0, self.count, step):
            yield start, min(start + step, self.count)

    @cached_property
    def actions(self) -> np.ndarray:
        """In the user's units. The last state of an episode repeats its last action."""
        return user_actions(self.dataset)[self.rows]

    @property
    def rewards(self) -> np.ndarray:
        """0 at last states."""
        return np.where(self.last, np.float32(0), self.dataset.rewards[self.rows])

    @property
    def masks(self) -> np.ndarray:
        """1 at last states."""
        return np.where(self.last, np.float32(1), self.dataset.masks[self.rows])

    def check_linked(self, form: str) -> None:
        """DataError if a next state is not the next row, for a format that cannot hold such rows."""
        if self.unlinked:
            raise DataError(
                f"{self.dataset.name}: in {self.unlinked} rows the next state is not the next row, which {form} "
                "cannot hold. Convert to npz, or mark the ends of episodes there."
            )

    def lost_masks(self, form: str) -> list[str]:
        """What a format loses that has no rows after the end of the task."""
        count = int(((self.dataset.masks == 0) & ~self.dataset.terminals).sum())
        text = (
            f"masks: {count} rows inside an episode have mask 0 (the task had ended, and the episode went on). "
            f"{form} has no such rows; their mask is 1 now, so values are bootstrapped there."
        )
        return [text] if count else []


def moved(dataset: OfflineDataset, rows: np.ndarray) -> np.ndarray:
    """Whether the next state of each row is another one."""
    pairs = zip(arrays_of(dataset.observations), arrays_of(dataset.next_observations), strict=True)
    differs = [(np.asarray(a[rows]) != np.asarray(b[rows])).reshape(len(rows), -1).any(axis=1) for a, b in pairs]
    return np.any(differs, axis=0)


def user_actions(dataset: OfflineDataset) -> np.ndarray:
    """Actions in the user's units, which `action_array` turns into the same bits again.

    Actions at the border were moved inside by `ACTION_LIMIT`; they are at the border again.
    """
    unit, border = np.asarray(dataset.actions), np.float32(ACTION_LIMIT)
    if dataset.action_low is None or dataset.action_high is None:
        return np.where(np.abs(unit) >= border, np.sign(unit), unit)
    bounds = dataset.action_low, dataset.action_high
    low, high = (np.asarray(each) for each in bounds)
    back = (low + (unit.astype(np.float64) + 1) / 2 * (high - low)).astype(np.float32)
    back = np.where(unit >= border, high, np.where(unit <= -border, low, back)).astype(np.float32)
    for direction in (np.inf, -np.inf):  # float32 may round to the neighbour
        other = np.clip(np.nextafter(back, np.float32(direction)), low, high).astype(np.float32)
        wrong = _scaled(back, bounds) != unit
        back = np.where(wrong & (_scaled(other, bounds) == unit), other, back)
    return back


def _scaled(actions: np.ndarray, bounds: Any) -> np.ndarray:
    return action_array("actions", actions, len(actions), bounds)
