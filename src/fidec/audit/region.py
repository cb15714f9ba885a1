"""What the log of a run says about its trust region, in one paragraph at the end of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fidec.audit.sentences import follows, number
from fidec.store.rundir import RunDirectory
from fidec.train.stored import read_config


def end_of_training(directory: Path) -> str | None:
    """How the penalty of a run ended, and what follows. None if the method has no budget with a multiplier."""
    run = RunDirectory.open(directory, read_only=True)
    config = read_config(run)
    rows = [row for row in run.read_jsonl("train") if {"training/penalty", "training/multiplier"} <= row.keys()]
    if not rows or not hasattr(config.options, "trust_region"):
        return None
    # While the budget grows, the penalty is below it on purpose.
    rows = [row for row in rows if row["step"] > getattr(config.options, "warmup", 0)] or rows[-1:]
    penalties, multipliers = ([row[f"training/{name}"] for row in rows] for name in ("penalty", "multiplier"))
    controlled = getattr(config.options, "multiplier", None) == "controlled"
    how = {"playable": config.env_name is not None, "controlled": controlled}
    text = describe(penalties, multipliers, *config.options.trust_region(), **how)
    return text.replace("RUN", str(directory))


def describe(
    penalties: Sequence[float],
    multipliers: Sequence[float],
    budget: float,
    unit: str,
    playable: bool = False,
    controlled: bool = False,
) -> str:
    """The penalty against its budget. Both lists have a mean for each row of the log.

    In nats the distance comes first, and the last sentence says how the policy can be compared with the clone; with
    an environment (`playable`) it can be played. A `controlled` multiplier finds its scale from any start.
    """
    penalty, first, last = penalties[-1], multipliers[0], multipliers[-1]
    near = sum(budget / 2 <= each <= 2 * budget for each in penalties) / len(penalties)
    log = f"in {100 * near:.0f} % of the log; multiplier {number(first)} at first, {number(last)} at the end."
    advice = "train longer." if controlled else "train longer, or {} --algo.multiplier-init."
    if penalty > 2 * budget:
        log += f" The penalty exceeds its budget and the multiplier rises: {advice.format('raise')}"
    elif penalty < budget / 2 and last > 0:
        log += f" The penalty is far below its budget and the multiplier falls: {advice.format('lower')}"
    elif penalty < budget / 2:
        log += " The multiplier is 0: the constraint does not limit the displacement."
    if unit != "nats":
        return (
            f"trust region: penalty {number(penalty)} at the end, budget {number(budget)} (not in nats), within a "
            f"factor of 2 of it {log} `fidec audit RUN` measures the KL in nats."
        )
    return (
        f"moved {number(penalty)} nats from the clone (budget {number(budget)}). {follows(penalty)} The penalty was "
        f"within a factor of 2 of its budget {log} The distance is training's estimate: `fidec audit RUN` measures "
        f"the KL. {_next(playable)}"
    )


def _next(playable: bool) -> str:
    if playable:
        return "`fidec select RUN` plays clone and policy with a few episodes."
    play = "play `fidec select RUN --env ID` with a few episodes to be sure"
    return f"`fidec audit RUN --values` estimates values; {play}."
