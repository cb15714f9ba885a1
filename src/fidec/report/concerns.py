"""What a reader of a run's results has to know, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fidec.report.charts import number
from fidec.report.runs import RunResults

_WIDE = 0.3  # of an interval of the success rate: two policies that differ by less cannot be told apart
_GROWN = 10.0  # times the critic's usual loss


class Concern(NamedTuple):
    severity: str
    """`warning`, or `bad` for results that should not be used."""
    text: str


def concerns(run: RunResults) -> list[Concern]:
    """All that applies to the run."""
    checks = (_state, _collapse, _critic, _region, _audit, _base, _episodes)
    of_data = (run.environment.get("dataset") or {}).get("findings") or []
    return [
        *(concern for check in checks for concern in check(run)),
        *(Concern("warning", text) for text in of_data if isinstance(text, str)),
    ]


def _state(run: RunResults) -> Iterator[Concern]:
    if run.state == "done":
        return
    reason = f" ({run.reason})" if run.reason else ""
    severity = "bad" if run.state == "failed" else "warning"
    yield Concern(
        severity, f"The run is not finished: {run.state} at step {run.step:,} of {run.config.total:,}{reason}."
    )


def _collapse(run: RunResults) -> Iterator[Concern]:
    """The last evaluation is below the best one by more than the episodes' chance."""
    key, name = run.measure
    rows = [row for row in run.evaluations if row.get(f"evaluation/{key}_low") is not None]
    if len(rows) < 2:
        return
    best, last = max(rows, key=lambda row: row[f"evaluation/{key}"]), rows[-1]
    if last[f"evaluation/{key}_high"] < best[f"evaluation/{key}_low"]:
        yield Concern(
            "bad",
            f"The policy collapsed: the last {name} is {_value(last, key)}, and it was {_value(best, key)} at step "
            f"{best['step']:,}. The best of several evaluations is biased upwards, but the intervals do not overlap.",
        )


def _value(row: dict[str, Any], key: str) -> str:
    mean, low, high = (row[f"evaluation/{key}{end}"] for end in ("", "_low", "_high"))
    return f"{number(mean)} [{number(low)}, {number(high)}]"


def _critic(run: RunResults) -> Iterator[Concern]:
    loss = np.array(run.column("training/critic_loss"))
    known = np.array(["training/critic_loss" in row for row in run.train], bool)
    if known.any() and not np.isfinite(loss[known]).all():
        yield Concern("bad", "The critic diverged: its loss is not finite in some rows of the log.")
        return
    loss = loss[known]
    if len(loss) < 8:
        return
    usual, end = float(np.median(loss)), float(np.median(loss[-max(2, len(loss) // 10) :]))
    if end > _GROWN * usual:
        yield Concern(
            "bad", f"The critic diverges: its loss is {number(end)} at the end, and {number(usual)} usually."
        )
    data, policy = (np.array(run.column(f"training/{name}"))[-3:] for name in ("q_data", "q_policy"))
    spread = float(np.nanstd(run.column("training/q_data"))) if np.isfinite(data).any() else math.nan
    gap = float(np.nanmean(policy) - np.nanmean(data)) if np.isfinite(policy).any() else math.nan
    if gap > max(abs(float(np.nanmean(data))), 3 * spread, 1e-9):
        yield Concern(
            "warning",
            f"The critic is optimistic: it gives the policy's actions {number(float(np.nanmean(policy)))} and the "
            f"data's {number(float(np.nanmean(data)))}. The policy may exploit its errors.",
        )


def _region(run: RunResults) -> Iterator[Concern]:
    if run.budget is None:
        return
    budget, unit = run.budget
    warmup = getattr(run.config.options, "warmup", 0)
    rows = [row["training/penalty"] for row in run.train if row["step"] > warmup and row.get("training/penalty")]
    if len(rows) < 3 or budget <= 0:
        return
    over = float(np.mean([value > 2 * budget for value in rows]))
    words = "" if unit == "nats" else " (in the unit of the penalty)"
    if rows[-1] > 2 * budget:
        yield Concern(
            "warning",
            f"The trust region never closed: the penalty ends at {number(rows[-1])} with a budget of "
            f"{number(budget)}{words}, and was above twice the budget in {100 * over:.0f} % of the log.",
        )


def _audit(run: RunResults) -> Iterator[Concern]:
    if run.audit is None or run.budget is None or run.budget[1] != "nats" or run.audit["kl"]["low"] is None:
        return
    budget, kl = run.budget[0], run.audit["kl"]
    if kl["low"] > 1.5 * budget:
        yield Concern(
            "warning",
            f"The policy moved further than its budget says: the audit measures {number(kl['mean'])} "
            f"[{number(kl['low'])}, {number(kl['high'])}] nats, the budget is {number(budget)}.",
        )


def _base(run: RunResults) -> Iterator[Concern]:
    gain = (run.comparison or {}).get("gain")
    if gain and gain["high"] is not None and gain["high"] < 0:
        yield Concern(
            "bad",
            f"The refined policy is worse than its base policy: {gain['of']} {number(gain['mean'])} "
            f"[{number(gain['low'])}, {number(gain['high'])}] on the same {gain['n']} episodes.",
        )


def _episodes(run: RunResults) -> Iterator[Concern]:
    if not run.evaluations:
        if run.config.env_name is None:
            yield Concern("warning", "Nothing was evaluated: the run has no environment.")
        return
    last = run.evaluations[-1]
    low, high = last.get("evaluation/success_low"), last.get("evaluation/success_high")
    if low is not None and high is not None and high - low > _WIDE:
        yield Concern(
            "warning",
            f"There are too few episodes to tell: {last['evaluation/n']} episodes leave the success rate between "
            f"{low:.2f} and {high:.2f}. `fidec eval {run.directory} --episodes 200` narrows it.",
        )
    if last.get("evaluation/n_failed"):
        yield Concern(
            "warning", f"{last['evaluation/n_failed']} episodes of the last evaluation failed and are in no average."
        )
