"""The loss on held-out episodes, and when it has stopped improving."""

from __future__ import annotations

from typing import Any

import jax

from fidec import rng
from fidec.algos import Algorithm
from fidec.data.batches import Sampling, gather_batch, host_source, row_numbers
from fidec.data.dataset import OfflineDataset

ROWS = 4096  # at most; always the same ones, with the same noise, so that values can be compared
PREFIX = "validation/"


class Validation:
    """Held-out transitions. A call gives the losses of a state on them; the first one decides when to stop."""

    def __init__(self, algorithm: Algorithm, dataset: OfflineDataset, sampling: Sampling):
        assert algorithm.validate is not None  # `check_method` refuses other methods
        self._key = rng.stream(0, "validate")
        numbers = row_numbers(self._key, min(ROWS, dataset.size), dataset.size)
        self._batch = gather_batch(host_source(dataset, sampling), jax.device_get(numbers), sampling)
        self._validate = jax.jit(algorithm.validate)
        self.losses: list[float] = []

    def __call__(self, state: Any) -> dict[str, Any]:
        """The losses, as rows of the log."""
        values = {
            PREFIX + name: float(value) for name, value in self._validate(state, self._batch, self._key).items()
        }
        self._add(values)
        return values

    def restore(self, rows: list[dict[str, Any]]) -> None:
        """Take the losses of a resumed run from its log."""
        for row in rows:
            self._add(row)

    def _add(self, row: dict[str, Any]) -> None:
        self.losses += [value for name, value in row.items() if name.startswith(PREFIX)][:1]

    def stopped(self, patience: int) -> bool:
        """Whether the last `patience` losses are all above the lowest one before them."""
        return 0 < patience < len(self.losses) and min(self.losses[-patience:]) >= min(self.losses[:-patience])

    def sentence(self) -> str:
        """When the loss was lowest."""
        best = self.losses.index(min(self.losses))
        later = len(self.losses) - 1 - best
        return f"the loss on held-out episodes was lowest ({self.losses[best]:.4f}) {later} log intervals ago"
