"""How the benchmark trains and scores: FQL's protocol, which DeFlow and FiDec follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# FQL's authors trained these for longer, in another code base.
LONG = ("idql", "srpo")
# No offline phase: the data fills half of each online batch.
ONLINE_ONLY = ("rlpd",)


@dataclass(frozen=True)
class Protocol:
    """Steps and evaluations of a run, and the evaluations that make its score.

    A score is the mean of the evaluations after the steps `averaged`. Rows of the online setting also report the
    score of the single evaluation after `steps`, before the first online step.
    """

    steps: int
    online_steps: int
    eval_interval: int
    eval_episodes: int
    averaged: tuple[int, ...]
    score: Literal["success", "normalised"]  # percent of episodes, or D4RL's normalised return in percent
    name: str  # where it was published

    @property
    def before(self) -> tuple[int, ...]:
        """The evaluation that is reported before the online phase."""
        return (self.steps,) if self.online_steps and self.steps else ()


def protocol(benchmark: str, *, visual: bool, method: str, setting: str = "offline") -> Protocol:
    """The protocol of a benchmark's tasks for a method."""
    score = "normalised" if benchmark == "d4rl" else "success"
    if setting == "online":
        offline = 0 if method in ONLINE_ONLY else 1_000_000
        end = offline + 1_000_000
        return Protocol(offline, 1_000_000, 100_000, 50, (end,), score, "FQL's offline-to-online protocol")
    if method in LONG:
        last = (3_000_000,) if benchmark == "d4rl" else (2_500_000, 2_750_000, 3_000_000)
        return Protocol(3_000_000, 0, 250_000, 50, last, score, "FQL's protocol for IDQL and SRPO")
    if benchmark == "d4rl":
        return Protocol(500_000, 0, 100_000, 50, (500_000,), score, "D4RL protocol")
    if visual:
        return Protocol(500_000, 0, 100_000, 50, (300_000, 400_000, 500_000), score, "OGBench pixel protocol")
    return Protocol(1_000_000, 0, 100_000, 50, (800_000, 900_000, 1_000_000), score, "OGBench state protocol")
