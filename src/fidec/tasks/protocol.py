"""How the benchmark trains and scores: FQL's protocol, which DeFlow and FiDec follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Trained by FQL's authors in their own code base, for longer.
LONG = ("idql", "srpo")
# Without an offline phase: the data only fills half of each batch.
ONLINE_ONLY = ("rlpd",)


@dataclass(frozen=True)
class Protocol:
    """Steps, evaluations, and which of them make the score.

    A score is the mean of the evaluations after the steps `averaged`. Online rows report a second one: that of the
    single evaluation after `steps`, before the first online step.
    """

    steps: int
    online_steps: int
    eval_interval: int
    eval_episodes: int
    averaged: tuple[int, ...]
    score: Literal["success", "normalised"]  # percent of episodes, or D4RL's normalised return in percent
    name: str  # whose it is

    @property
    def before(self) -> tuple[int, ...]:
        """The evaluation that is reported before the online phase."""
        return (self.steps,) if self.online_steps and self.steps else ()


def protocol(suite: str, *, visual: bool, method: str, setting: str = "offline") -> Protocol:
    """The protocol of a suite's tasks for a method."""
    score = "normalised" if suite == "d4rl" else "success"
    if setting == "online":
        offline = 0 if method in ONLINE_ONLY else 1_000_000
        end = offline + 1_000_000
        return Protocol(offline, 1_000_000, 100_000, 50, (end,), score, "FQL's offline-to-online protocol")
    if method in LONG:
        last = (3_000_000,) if suite == "d4rl" else (2_500_000, 2_750_000, 3_000_000)
        return Protocol(3_000_000, 0, 250_000, 50, last, score, "FQL's protocol for IDQL and SRPO")
    if suite == "d4rl":
        return Protocol(500_000, 0, 100_000, 50, (500_000,), score, "D4RL protocol")
    if visual:
        return Protocol(500_000, 0, 100_000, 50, (300_000, 400_000, 500_000), score, "OGBench pixel protocol")
    return Protocol(1_000_000, 0, 100_000, 50, (800_000, 900_000, 1_000_000), score, "OGBench state protocol")
