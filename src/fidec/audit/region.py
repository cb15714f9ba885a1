"""What the log of a run says about its trust region, in one paragraph at the end of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fidec.audit.sentences import follows, number
from fidec.store.rundir import RunDirectory
from fidec.train.config import read_config


def end_of_training(directory: Path) -> str | None:
    """How the penalty of a run ended, and what follows. None if the method has no budget with a multiplier."""
    run = RunDirectory.open(directory, read_only=True)
    options = read_config(run).options
    rows = [row for row in run.read_jsonl("train") if {"training/penalty", "training/multiplier"} <= row.keys()]
    if not rows or not hasattr(options, "trust_region"):
        return None
    penalties, multipliers = ([row[f"training/{name}"] for row in rows] for name in ("penalty", "multiplier"))
    text = describe(penalties, multipliers, *options.trust_region())
    return text.replace("RUN", str(directory))


def describe(penalties: Sequence[float], multipliers: Sequence[float], budget: float, unit: str) -> str:
    """The penalty against its budget. Both lists have a mean for each row of the log."""
    penalty, first, last = penalties[-1], multipliers[0], multipliers[-1]
    near = sum(budget / 2 <= each <= 2 * budget for each in penalties) / len(penalties)
    kind = "in nats" if unit == "nats" else "not in nats"
    text = (
        f"trust region: penalty {number(penalty)} at the end, budget {number(budget)} ({kind}), within a factor of "
        f"2 of it in {100 * near:.0f} % of the log; multiplier {number(first)} at first, {number(last)} at the end."
    )
    advice = "train longer, or {} --algo.multiplier-init."
    if penalty > 2 * budget:
        text += f" The penalty exceeds its budget and the multiplier rises: {advice.format('raise')}"
    elif penalty < budget / 2 and last > 0:
        text += f" The penalty is far below its budget and the multiplier falls: {advice.format('lower')}"
    elif penalty < budget / 2:
        text += " The multiplier is 0: the constraint does not limit the displacement."
    if unit != "nats":
        return f"{text} `fidec audit RUN` measures the KL in nats."
    return f"{text} {follows(penalty)} This is training's estimate: `fidec audit RUN` measures the KL."
