"""The server without its network: it reads messages, asks the policy, counts, and describes itself."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from fidec.parts import map_parts
from fidec.serve.batching import Batcher, ServedPolicy
from fidec.serve.monitor import Metrics, make_monitor
from fidec.serve.requests import NoiseStream, NoiseStreams, Reader, Request
from fidec.serve.serialization import Refused
from fidec.train.acting import OF_A_CALL
from fidec.types import Part

_MEANINGS = {
    "requests": "Requests that the figures of the monitor are about.",
    "observation_distance_p50": "Median distance of observations from the data, in root mean square z-scores.",
    "observation_distance_p99": "99 % quantile of the distance of observations from the data.",
    "observation_dimensions_outside": "Share of observation dimensions outside the range of the data.",
    "observations_far": "Share of observations far from the data.",
    "action_dimensions_outside": "Share of action dimensions outside the range of the data's actions.",
    "action_dimensions_at_bound": "Share of action dimensions at a bound.",
}


class Server:
    """One policy and its clients. `say(text)` writes a line for the operator."""

    def __init__(
        self,
        served: ServedPolicy,
        version: str,
        say: Callable[[str], None],
        queue: int = 256,
    ):
        self.served, self.spec, self.say, self._queue = served, served.spec, say, queue
        self.reader = Reader(self.spec, served.act, served.check)
        self.metrics, self.streams = Metrics(served.sizes), NoiseStreams(self.spec)
        self.monitor, monitoring = make_monitor(served.policy, say)
        self.clients: set[Any] = set()  # open websockets
        self.facts = self._facts(version, monitoring) | {name: getattr(served.act, name) for name in OF_A_CALL}
        # A number of an observation takes up to 25 characters in JSON. Clients may send more than the policy reads.
        self.largest_message = max(2**22, 32 * sum(int(np.prod(part.shape)) for part in self.spec.inputs))

    def start(self) -> None:
        """Start the thread that computes, inside a running event loop."""
        self.batcher = Batcher(self._compute, self.served.sizes[-1], self._queue, self._observe)

    async def answer(self, message: dict[str, Any], stream: NoiseStream | None, client: Hashable) -> dict[str, Any]:
        """The actions for a message, or `Refused`."""
        begin = time.perf_counter()
        self.batcher.check()  # before the stream moves on, so that a refused message can be sent again
        request = self.reader(message, stream)
        try:
            actions = await self.batcher(request, client)
        except Refused:
            raise
        except Exception as error:
            self.say("".join(traceback.format_exception(error)).rstrip())
            raise Refused("internal", f"the policy failed: {type(error).__name__}") from error
        timing = {"infer_ms": 1e3 * (time.perf_counter() - begin)}
        return {"actions": actions, "seed": request.seed, "step": request.step, "server_timing": timing}

    def http_stream(self, message: dict[str, Any]) -> NoiseStream | None:
        """The stream of a client of HTTP; None for a message that names the place of its random numbers."""
        client = message.get("client")
        if client is None:
            return None if {"seed", "step", "reset"} & message.keys() else self.streams[""]
        if not isinstance(client, str) or not 0 < len(client) <= 128:
            raise Refused("field", "`client` has to be a text of 1 to 128 characters")
        return self.streams[client]

    def _compute(self, requests: Sequence[Request]) -> list[Any]:
        self.metrics.batches.observe(len(requests))
        refusal = Refused("policy", "the policy gave an action that is not finite: it must not be used")
        return [chunk if np.isfinite(chunk).all() else refusal for chunk in self.served(requests)]

    def _observe(self, requests: Sequence[Request], results: Sequence[Any]) -> None:
        """Compare what was seen and done with the data."""
        rows = [row for row, result in enumerate(results) if isinstance(result, np.ndarray)]
        if self.monitor is not None and rows:
            seen = map_parts(lambda *arrays: np.stack(arrays), *(requests[row].observation for row in rows))
            self.monitor(seen, np.stack([results[row] for row in rows]))

    def _facts(self, version: str, monitoring: str) -> dict[str, Any]:
        policy, spec, (low, high) = self.served.policy, self.spec, self.spec.bounds
        known = {name: policy.info.get(name) for name in ("step", "task", "env", "dataset")}
        return {
            "server": f"fidec {version}",
            "algo": policy.algo,
            **{name: value for name, value in known.items() if isinstance(value, str | int)},
            "observation": self._observation_facts(),
            "actions": {
                "shape": [spec.chunk, spec.step_dim],
                "low": list(low),
                "high": list(high),
                "replan": spec.replan,
                "ensemble": spec.ensemble,
                "delay": spec.delay,
            },
            "dials": list(self.served.dials),
            "largest_batch": self.served.sizes[-1],
            "monitor": monitoring,
        }

    def _observation_facts(self) -> dict[str, Any]:
        """What a message has to have; of several parts a table by name."""

        def facts(part: Part) -> dict[str, Any]:
            counts = {"frame_stack": self.spec.frame_stack if part.image else 1}
            counts |= {"history": self.spec.history} if self.spec.history > 1 and not part.image else {}
            fields = list(self.reader.fields(part))
            return {"shape": list(part.shape), "dtype": part.dtype, "fields": fields, **counts}

        observation = self.spec.observations(facts)
        return {"parts": observation} if self.spec.parts else observation

    def describe(self) -> dict[str, Any]:
        """For GET /metadata: what is served, and how it goes."""
        live: dict[str, Any] = {
            "clients": len(self.clients),
            "queue": len(self.batcher),
            "requests": dict(self.metrics.requests),
            "errors": {reason: count for reason, count in self.metrics.errors.items() if count},
            "latency_ms": self.metrics.latency(),
        }
        if self.monitor is None:
            return {**self.facts, "live": live}
        live["monitor"] = self.monitor.figures()
        return {**self.facts, "data_statistics": self.monitor.statistics, "live": live}

    def metrics_text(self) -> str:
        """For GET /metrics."""
        gauges: dict[str, tuple[float, str]] = {
            "fidec_queue_length": (len(self.batcher), "Requests that wait."),
            "fidec_clients": (len(self.clients), "Open websockets."),
            "fidec_monitor_on": (int(self.monitor is not None), "Whether the policy has statistics of its data."),
        }
        if self.monitor is not None:
            for name, value in self.monitor.figures().items():
                gauges[f"fidec_monitor_{name}"] = (value, _MEANINGS[name])
            data = self.monitor.statistics
            gauges["fidec_data_observation_distance_p99"] = (
                data["distance"]["p99"],
                "99 % quantile of the distance of the training data itself.",
            )
            gauges["fidec_data_action_dimensions_at_bound"] = (
                data["at_bound"],
                "Share of the training data's action dimensions at a bound.",
            )
        info = {name: self.facts[name] for name in ("server", "algo", "step") if name in self.facts}
        return self.metrics.text(gauges, info)
