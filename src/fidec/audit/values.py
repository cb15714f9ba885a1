"""What fitted Q evaluation says about a policy and its base policy. It describes a run and never chooses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fidec import stats
from fidec.audit.fitted_q import ACTIONS, HEADS, SETTLED, Draw, fit
from fidec.audit.sentences import number
from fidec.data import OfflineDataset
from fidec.errors import ConfigError
from fidec.train.acting import ActOptions
from fidec.train.policy import Policy

UPDATES = 10_000
DISCOUNT = 0.99  # for methods without one
NOTE = (
    "This is a diagnostic. Do not choose by it: on door-expert fitted Q evaluation ranked four policies in exactly "
    "the wrong order, with small intervals (1,074 for a policy that scores 0, 1,059 for one that scores 81). "
    "`fidec select RUN` chooses with a few real episodes."
)


def estimate_values(
    policy: Policy,
    dataset: OfflineDataset,
    *,
    discount: float | None = None,
    updates: int = UPDATES,
    candidates: int = 1,
    seed: int = 0,
    quiet: bool = True,
    **networks: Any,
) -> dict[str, Any]:
    """Estimate the values of a policy and of its base policy at the start of the data's episodes.

    By default the discount is the method's, or 0.99 if it has none. With `candidates` > 1 the policy chooses among so
    many actions; the base policy is a single draw. `networks` are options of `fidec.audit.fitted_q.fit`. The same
    seed gives the same numbers. docs/audit.md explains the keys of the result.
    """
    discount = check_values(policy, dataset, discount=discount, updates=updates)
    fitted = fit(
        draw_of(policy, candidates),
        policy.state,
        dataset,
        policy.spec,
        discount=discount,
        updates=updates,
        seed=seed,
        quiet=quiet,
        **networks,
    )
    logged = dataset.returns(discount)[dataset.episodes[:, 0]]
    ends = dataset.rewards.min(), dataset.rewards.max(), 0.0 if (dataset.masks == 0).any() else dataset.rewards.max()
    result = {
        "method": "fitted Q evaluation",
        "note": NOTE,
        "discount": discount,
        "updates": updates,
        "heads": HEADS,
        "actions": ACTIONS,
        "candidates": candidates,
        "episodes": len(dataset.episodes),
        "target_rate": fitted.target_rate,
        "time_constant": fitted.time_constant,
        "returns_of_data": float(logged.mean(dtype=np.float64)),
        "possible": [float(min(ends)) / (1 - discount), float(max(ends)) / (1 - discount)],
        **{name: _summary(heads) for name, heads in fitted.heads.items()},
    }
    if "base" in fitted.heads:
        result["difference"] = _difference(fitted.heads["base"], fitted.heads["refined"])
    if policy.spec.chunk > 1:
        result |= {"chunk": policy.spec.chunk, "replan": policy.spec.replan}
    return result


def check_values(
    policy: Policy, dataset: OfflineDataset, *, discount: float | None = None, updates: int = UPDATES
) -> float:
    """The discount. Raises `ConfigError` if values cannot be estimated."""
    if not dataset.has_rewards:
        raise ConfigError(
            f"{dataset.source}: the data has no rewards, so values cannot be estimated from it. Name data with the "
            "key 'rewards' with --data, or leave out --values."
        )
    if updates < 1:
        raise ConfigError(f"--updates must be at least 1, not {updates}")
    if discount is None:
        discount = float(getattr(policy.options, "discount", DISCOUNT))
    if not 0 <= discount < 1:
        raise ConfigError(f"--discount must lie in [0, 1), not {discount}")
    return discount


def draw_of(policy: Policy, candidates: int = 1) -> Draw:
    """The actions of the policy and of its base policy, from the same noise."""
    act, with_base = ActOptions(candidates).function(policy.algorithm), policy.algorithm.act_with_base

    def draw(state: Any, observations: Any, key: Any) -> dict[str, Any]:
        if with_base is None:
            return {"policy": act(state, observations, key)}
        refined, base = with_base(state, observations, key)
        # The base policy is a single draw, as in `fidec eval --base`.
        return {"base": base, "refined": refined if candidates == 1 else act(state, observations, key)}

    return draw


def _summary(heads: np.ndarray) -> dict[str, Any]:
    low, high = stats.replicates(heads)
    return {"mean": float(heads.mean()), "low": low, "high": high, "of_each_head": heads}


def _difference(base: np.ndarray, refined: np.ndarray) -> dict[str, Any]:
    """Head by head, and in percent of the base's value unless that may be zero."""
    difference, level = _summary(refined - base), _summary(base)
    size = abs(level["mean"])
    known = level["low"] > 0 or level["high"] < 0
    percent = {name: 100 * difference[name] / size for name in ("mean", "low", "high")} if known else None
    return {**difference, "percent": percent}


def value_sentences(result: dict[str, Any]) -> list[str]:
    """What the numbers of `estimate_values` say."""
    shown = {name: _interval(result[name]) for name in ("refined", "base", "policy") if name in result}
    where = f"at the start of episodes (discount {result['discount']:g})"
    if "difference" in result:
        gain = result["difference"]
        change = f"{gain['mean']:+.3g} [{gain['low']:+.3g}, {gain['high']:+.3g}]"
        if gain["percent"] is not None:
            mean, low, high = (_signed(gain["percent"][name]) for name in ("mean", "low", "high"))
            change = f"{mean} % [{low}, {high}]"
        first = f"values estimated {change}: refined {shown['refined']}, base {shown['base']} {where}."
    else:
        first = f"value estimated {shown['policy']} {where}; the method has no base policy to compare with."
    text = [first, result["note"]]
    text.append(
        f"The logged episodes have a discounted return of {number(result['returns_of_data'])} on average. Brackets "
        f"are 95 % intervals from {result['heads']} heads, each on its own bootstrap of {result['episodes']} "
        "episodes; they do not contain the error of Q at actions that the data does not have."
    )
    low, high = result["possible"]
    if any(not low <= result[name]["mean"] <= high for name in shown):
        text.append(
            f"WARNING: with these rewards the value of any policy lies in [{number(low)}, {number(high)}]. "
            "The evaluation has diverged; do not rely on it."
        )
    settled = result["updates"] / result["time_constant"]
    if settled < 0.999 * SETTLED:
        needed = math.ceil(SETTLED * result["time_constant"] / 100) * 100
        text.append(
            f"WARNING: {result['updates']} updates are {settled:.1f} time constants of the mean value: it is still "
            f"near its start, the data's mean return. Take --updates {needed}, or a lower --discount."
        )
    if result["episodes"] == 1:
        text.append("WARNING: the data has one episode, so the intervals contain only the chance of initial weights.")
    if result.get("replan", 1) != result.get("chunk", 1):
        text.append(
            f"The values are those of whole chunks of {result['chunk']} steps; the policy plays {result['replan']} "
            "of them before it chooses again."
        )
    return text


def _interval(row: dict[str, Any]) -> str:
    return f"{row['mean']:.4g} [{row['low']:.4g}, {row['high']:.4g}]"


def _signed(percent: float) -> str:
    return f"{percent:+.0f}" if abs(percent) >= 10 else f"{percent:+.2g}"
