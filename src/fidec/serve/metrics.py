"""Counters and histograms in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

import bisect
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from fidec.serve.errors import STATUS

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
LAST = 1024  # requests whose latency the page shows


class Histogram:
    """Counts of values up to each bound."""

    def __init__(self, bounds: Sequence[float]):
        self.bounds, self.total = tuple(bounds), 0.0
        self.counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterator[str]:
        reached = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            reached += count
            yield f'{name}_bucket{{le="{bound}"}} {reached}'
        yield f"{name}_sum {self.total!r}"
        yield f"{name}_count {reached}"


class Metrics:
    """What the server has done since its start."""

    def __init__(self, sizes: Sequence[int]):
        self.requests: Counter[str] = Counter({"websocket": 0, "http": 0})
        self.errors: Counter[str] = Counter(dict.fromkeys(STATUS, 0))
        self.seconds, self.batches = Histogram(SECONDS), Histogram(sizes)
        self._last: deque[float] = deque(maxlen=LAST)

    def answered(self, way: str, seconds: float) -> None:
        """A request got its actions."""
        self.requests[way] += 1
        self.seconds.add(seconds)
        self._last.append(seconds)

    def latency(self) -> dict[str, float]:
        """Milliseconds from a message to its answer, of the last requests."""
        if not self._last:
            return {"requests": 0}
        p50, p99 = np.quantile(np.array(self._last) * 1e3, (0.5, 0.99)).tolist()
        return {"requests": len(self._last), "p50": p50, "p99": p99}

    def text(self, gauges: Mapping[str, tuple[float, str]], info: Mapping[str, object]) -> str:
        """All of them, with `gauges` (name: value, meaning) and one line with facts as labels."""
        parts = [
            _head("fidec_info", "gauge", "What is served."),
            f"fidec_info{{{_labels(info)}}} 1",
            _head("fidec_requests_total", "counter", "Requests that got their actions."),
            *(f'fidec_requests_total{{way="{way}"}} {count}' for way, count in self.requests.items()),
            _head("fidec_errors_total", "counter", "Requests that were refused or failed, by reason."),
            *(f'fidec_errors_total{{reason="{reason}"}} {count}' for reason, count in self.errors.items()),
            _head("fidec_request_seconds", "histogram", "Time from a message to its answer, inside the server."),
            *self.seconds.lines("fidec_request_seconds"),
            _head("fidec_batch_size", "histogram", "Requests that were computed together."),
            *self.batches.lines("fidec_batch_size"),
        ]
        for name, (value, meaning) in gauges.items():
            parts += [_head(name, "gauge", meaning), f"{name} {value!r}"]
        return "\n".join(parts) + "\n"


def _head(name: str, kind: str, meaning: str) -> str:
    return f"# HELP {name} {meaning}\n# TYPE {name} {kind}"


def _labels(facts: Mapping[str, object]) -> str:
    return ",".join(f'{name}="{_escape(str(value))}"' for name, value in facts.items())


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
