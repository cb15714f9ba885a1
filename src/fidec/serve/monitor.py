"""What a server counts, and how far what its policy sees and does lies from the data it was trained on.

The policy file holds statistics of the data (`fidec.data.statistics`). The distance of an observation is the root
mean square of its z-scores. It is far if it exceeds the distance of 99 % of the data, or if more than a tenth of its
dimensions lies outside the range of the data.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from fidec.data.columns import ACTION_TOLERANCE
from fidec.data.statistics import AT_BOUND, distances, features_of
from fidec.errors import CheckpointError
from fidec.extras import require
from fidec.parts import Observations
from fidec.serve.serialization import STATUS
from fidec.train.policy import Policy

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LAST = 1024  # requests whose latency the page shows
WINDOW = 256  # requests that the figures are about
WARN_SHARE = 0.5  # of the window that is far
OUTSIDE = 0.1  # share of the dimensions
_COLUMNS = ("distance", "outside", "far", "actions outside", "actions at bound")


class Metrics:
    """What the server has done since its start."""

    def __init__(self, sizes: Sequence[int]):
        client = require("prometheus_client", "serve", "fidec serve")
        client.disable_created_metrics()  # when each number began, which doubles the text
        self._client, self._families = client, require("prometheus_client.core", "serve", "fidec serve")
        self.requests: Counter[str] = Counter({"websocket": 0, "http": 0})
        self.errors: Counter[str] = Counter(dict.fromkeys(STATUS, 0))
        seconds, batch = "Time from a message to its answer, inside the server.", "Requests computed together."
        self.seconds = client.Histogram("fidec_request_seconds", seconds, buckets=SECONDS, registry=None)
        self.batches = client.Histogram("fidec_batch_size", batch, buckets=sizes, registry=None)
        self._last: deque[float] = deque(maxlen=LAST)

    def answered(self, way: str, seconds: float) -> None:
        """A request got its actions."""
        self.requests[way] += 1
        self.seconds.observe(seconds)
        self._last.append(seconds)

    def latency(self) -> dict[str, float]:
        """Milliseconds from a message to its answer, of the last requests."""
        if not self._last:
            return {"requests": 0}
        p50, p99 = np.quantile(np.array(self._last) * 1e3, (0.5, 0.99)).tolist()
        return {"requests": len(self._last), "p50": p50, "p99": p99}

    def text(self, gauges: Mapping[str, tuple[float, str]], info: Mapping[str, object]) -> str:
        """All of them in Prometheus' format, with `gauges` (name: value, meaning) and facts as labels of `info`."""
        registry = SimpleNamespace(collect=lambda: self._collect(gauges, info))
        return self._client.generate_latest(registry).decode()

    def _collect(self, gauges: Mapping[str, tuple[float, str]], info: Mapping[str, object]) -> Iterator[Any]:
        counter, gauge = self._families.CounterMetricFamily, self._families.GaugeMetricFamily
        served = gauge("fidec_info", "What is served.", labels=list(info))
        served.add_metric([str(fact) for fact in info.values()], 1)
        requests = counter("fidec_requests", "Requests that got their actions.", labels=["way"])
        errors = counter("fidec_errors", "Requests that were refused or failed, by reason.", labels=["reason"])
        for family, counts in ((requests, self.requests), (errors, self.errors)):
            for label, count in counts.items():
                family.add_metric([label], count)
        yield from (served, requests, errors, *self.seconds.collect(), *self.batches.collect())
        yield from (gauge(name, meaning, value=value) for name, (value, meaning) in gauges.items())


class Monitor:
    """Figures of the last requests, against the data. `warn(text)` is called when most of them become far."""

    def __init__(self, policy: Policy, warn: Callable[[str], None]):
        self.statistics: dict[str, Any] = policy.info["data_statistics"]
        spec = policy.spec
        self._newest = spec.observations(spec.newest)
        features = sum(
            spec.newest(part) * (1 if part.image else int(np.prod(part.shape[:-1]))) for part in spec.inputs
        )
        self._seen = _columns(self.statistics, "observations", features)
        self._acted = _columns(self.statistics, "actions", spec.step_dim)
        self._usual = float(self.statistics["distance"]["p99"])
        low, high = map(np.asarray, spec.bounds)
        self._middle, self._reach = (low + high) / 2, AT_BOUND * (high - low) / 2
        self._slack = ACTION_TOLERANCE * (high - low)  # the data itself was moved inside its bounds by less
        self._rows, self._count = np.zeros((WINDOW, len(_COLUMNS))), 0
        self._warn, self._warned, self._lock = warn, False, threading.Lock()

    def __call__(self, observations: Observations, actions: np.ndarray) -> None:
        """Observations (requests, ...) and actions (requests, chunk, dimensions), in the units of the data."""
        features = features_of(observations, self._newest)
        mean, std, low, high = self._seen
        distance = distances(features, mean, std)
        outside = ((features < low) | (features > high)).mean(axis=1)
        far = (distance > self._usual) | (outside > OUTSIDE)
        acted = actions.astype(np.float64)
        _, _, low, high = self._acted
        beyond = ((acted < low - self._slack) | (acted > high + self._slack)).mean(axis=(1, 2))
        edge = (np.abs(acted - self._middle) > self._reach).mean(axis=(1, 2))
        rows = np.stack([distance, outside, far, beyond, edge], axis=1)
        with self._lock:
            self._rows[(self._count + np.arange(len(rows))) % WINDOW] = rows
            self._count += len(rows)
        self._judge()

    def figures(self) -> dict[str, float]:
        """Of the last requests, at most `WINDOW`."""
        with self._lock:
            rows = self._rows[: min(self._count, WINDOW)].copy()
        if not len(rows):
            return {"requests": 0}
        distance, outside, far, beyond, edge = rows.T
        p50, p99 = np.quantile(distance, (0.5, 0.99)).tolist()
        return {
            "requests": len(rows),
            "observation_distance_p50": p50,
            "observation_distance_p99": p99,
            "observation_dimensions_outside": float(outside.mean()),
            "observations_far": float(far.mean()),
            "action_dimensions_outside": float(beyond.mean()),
            "action_dimensions_at_bound": float(edge.mean()),
        }

    def _judge(self) -> None:
        """Say once that most requests of a full window are far from the data, and once that they no longer are."""
        if self._count < WINDOW:
            return
        share = float(self._rows[:, _COLUMNS.index("far")].mean())
        if not self._warned and share > WARN_SHARE:
            self._warned, figures = True, self.figures()
            self._warn(
                f"warning: {share:.0%} of the last {WINDOW} observations lie far from the training data: distance "
                f"{figures['observation_distance_p50']:.3g} (median), the data's 99 % quantile is {self._usual:.3g}; "
                f"{figures['observation_dimensions_outside']:.0%} of the dimensions are outside the data's range. "
                "Check units, order and calibration of the sensors"
            )
        elif self._warned and share < WARN_SHARE / 2:
            self._warned = False
            self._warn(f"the last {WINDOW} observations lie near the training data again")


def make_monitor(policy: Policy, warn: Callable[[str], None]) -> tuple[Monitor | None, str]:
    """The monitor of a policy, or None and why there is none."""
    if "data_statistics" not in policy.info:
        return None, "off: the policy has no statistics of its data"
    try:
        return Monitor(policy, warn), "on"
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"policy.json: the statistics of the data (info.data_statistics) cannot be used: {error}"
        ) from error


def _columns(statistics: dict[str, Any], name: str, dimensions: int) -> list[np.ndarray]:
    columns = [np.asarray(statistics[name][kind], np.float64) for kind in ("mean", "std", "low", "high")]
    for column in columns:
        if column.shape != (dimensions,) or not np.isfinite(column).all():
            raise ValueError(f"{name} have statistics of shape {column.shape}, expected finite ({dimensions},)")
    if not (columns[1] > 0).all():
        raise ValueError(f"a deviation of the {name} is not positive")
    return columns
