"""D4RL's normalised scores: 0 is a random policy, 100 is D4RL's reference policy."""

from __future__ import annotations

import re

# (random, reference) mean returns, as published in D4RL's infos.py; the same for all data sets of a task.
REFERENCE = {
    "antmaze": (0.0, 1.0),
    "pen": (96.262799, 3076.8331017826877),
    "hammer": (-274.856578, 12794.134825156867),
    "relocate": (-6.425911, 4233.877797728884),
    "door": (-56.512833, 2880.5693087298737),
}
_ID = re.compile(
    r"(?:d4rl:)?(?:(antmaze)-(?:umaze(?:-diverse)?|(?:medium|large)-(?:play|diverse))-v2"
    r"|(pen|hammer|relocate|door)-(?:human|cloned|expert)-v1)"
)


def normalise(task: str, mean_return: float) -> float | None:
    """D4RL's score in percent of a mean return, None for a task that has none (OGBench counts successes).

    An antmaze's return is the environment's own 0 or 1, not the shifted reward of the training data.
    """
    found = _ID.fullmatch(task)
    if found is None:
        return None
    low, high = REFERENCE[found[1] or found[2]]
    return 100.0 * (mean_return - low) / (high - low)
