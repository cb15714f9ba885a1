"""Summarise a measurement: one dictionary of numbers, from which sentences and figures are made."""

from __future__ import annotations

from typing import Any

import numpy as np

from fidec.audit.measure import ABSOLUTE, RELATIVE, SCORE_TIME, Measurement
from fidec.stats import bootstrap_mean

QUANTILES = (5, 25, 50, 75, 95)


def summarise(measured: Measurement, neighbours: dict[str, np.ndarray] | str) -> dict[str, Any]:
    """Every number of the audit. `neighbours` has the distances to data actions, or why there are none."""
    moved = measured.moved
    refined = moved.actions + moved.displacement
    penalty = measured.penalty.mean(axis=1, dtype=np.float64)
    budget = {"budget": measured.budget, "unit": measured.unit, "of_each_state": penalty}
    return {
        "states": moved.actions.shape[0],
        "samples": moved.actions.shape[1],
        "action_dim": moved.actions.shape[2],
        "kl": _kl(measured),
        "penalty": {**_mean(penalty), **budget},
        "solver": _solver(measured),
        "displacement": _displacement(moved.displacement),
        "direction": _direction(moved.displacement, measured.score),
        "outside": {
            "base": _outside(moved.actions),
            "refined": _outside(refined),
            "carried_out": float(np.mean((np.abs(moved.actions) <= 1) & (np.abs(refined) > 1))),
        },
        "neighbours": {"skipped": neighbours} if isinstance(neighbours, str) else _distances(neighbours),
    }


def state_kl(measured: Measurement) -> tuple[np.ndarray, np.ndarray]:
    """KL of each state, and its standard error from the sampling of actions."""
    ratio = measured.moved.log_ratio.astype(np.float64)
    with np.errstate(invalid="ignore"):  # a state whose solution is not finite is counted later
        spread = ratio.std(axis=1, ddof=1) if ratio.shape[1] > 1 else np.full(len(ratio), np.nan)
        return ratio.mean(axis=1), spread / np.sqrt(ratio.shape[1])


def _kl(measured: Measurement) -> dict[str, Any]:
    kl, error = state_kl(measured)
    folded = measured.moved.determinant <= 0
    finite = np.isfinite(kl)
    some, noise = kl[finite], error[finite]
    with np.errstate(divide="ignore"):  # a determinant of zero is in no finite state
        contraction = -np.log(np.abs(measured.moved.determinant.astype(np.float64))).mean(axis=1)[finite]
    # The variance over states includes the sampling noise of each estimate: subtract it.
    variance = some.var(ddof=1) - np.mean(noise**2) if len(some) > 1 else np.nan
    limits = [2 * measured.budget, 4 * measured.budget] if measured.unit == "nats" else [1.0, 2.0, 5.0]
    return {
        "unit": "nats",
        **_mean(some),
        "contraction": float(contraction.mean()) if len(some) else None,
        "standard_error_of_a_state": float(np.median(noise)) if len(noise) else None,
        "spread_over_states": float(np.sqrt(max(variance, 0.0))) if np.isfinite(variance) else None,
        "above": [
            {
                "nats": limit,
                "share": float(np.mean(some > limit)) if len(some) else None,
                "share_by_two_errors": float(np.mean(some - 2 * noise > limit)) if len(some) else None,
            }
            for limit in limits
        ],
        "not_finite_states": int((~finite).sum()),
        "folded_actions": float(folded.mean()),
        "folded_states": float(folded.any(axis=1).mean()),
        "of_each_state": kl,
        "standard_errors": error,
    }


def _solver(measured: Measurement) -> dict[str, Any]:
    moved = measured.moved
    finite = moved.change[np.isfinite(moved.change)]
    steps, counts = np.unique(moved.steps, return_counts=True)
    gap = np.clip(moved.actions, -1, 1) - np.clip(measured.drawn, -1, 1)
    return {
        "method": "RK4",
        "tolerance_share": RELATIVE,
        "tolerance_nats": ABSOLUTE,
        "most_steps": int(moved.steps.max()),
        "states_by_steps": {str(step): int(count) for step, count in zip(steps, counts, strict=True)},
        "unsettled_states": int((~moved.settled).sum()),
        "change_of_mean": float(finite.mean()) if len(finite) else None,
        "mean_change_of_a_state": float(np.abs(finite).mean()) if len(finite) else None,
        "distance_to_drawn_actions": float(np.sqrt(np.mean(np.sum(gap**2, axis=-1)))),
    }


def _displacement(delta: np.ndarray) -> dict[str, Any]:
    square = delta.astype(np.float64) ** 2
    return {
        "rms": float(np.sqrt(np.mean(np.sum(square, axis=-1)))),
        "rms_of_each_dimension": np.sqrt(np.mean(square, axis=(0, 1))),
        "quantiles": _quantiles(np.sqrt(np.sum(square, axis=-1))),
    }


def _direction(delta: np.ndarray, score: np.ndarray) -> dict[str, Any]:
    """The share of |delta|^2 along the score; without a preferred direction it would be 1/d."""
    delta, score = delta.astype(np.float64), score.astype(np.float64)
    square = np.sum(delta**2, axis=-1)
    lengths = np.sqrt(square) * np.linalg.norm(score, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.where(lengths > 0, np.sum(delta * score, axis=-1) / lengths, np.nan)
    used = np.isfinite(cosine)
    weight = square[used].sum()
    return {
        "score_time": SCORE_TIME,
        "mean_cosine": float(cosine[used].mean()) if used.any() else None,
        "share_along_score": float((square[used] * cosine[used] ** 2).sum() / weight) if weight > 0 else None,
        "share_if_isotropic": 1.0 / delta.shape[-1],
        "cosine_histogram": np.histogram(cosine[used].clip(-1, 1), bins=40, range=(-1, 1))[0],
    }


def _outside(actions: np.ndarray) -> dict[str, float]:
    out = np.abs(actions) > 1
    return {"components": float(out.mean()), "actions": float(out.any(axis=-1).mean())}


def _distances(neighbours: dict[str, np.ndarray]) -> dict[str, Any]:
    return {
        name: {
            "median": float(np.median(values)),
            "quantile_90": float(np.quantile(values, 0.9)),
            "percentiles": np.percentile(values, np.arange(101)),
        }
        for name, values in neighbours.items()
    }


def _mean(values: np.ndarray) -> dict[str, Any]:
    """Mean over states with its bootstrap interval, and quantiles."""
    values = values[np.isfinite(values)]
    if not len(values):
        return {"mean": None, "low": None, "high": None, "quantiles": None}
    low, high = bootstrap_mean(values)
    return {"mean": float(values.mean()), "low": low, "high": high, "quantiles": _quantiles(values)}


def _quantiles(values: np.ndarray) -> dict[str, float]:
    values = values[np.isfinite(values)]
    return {str(q): float(np.percentile(values, q)) for q in QUANTILES} if len(values) else {}
