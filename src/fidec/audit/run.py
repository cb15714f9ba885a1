"""Audit a trained policy at states of its data, and summarise what was measured as one dictionary of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from fidec import rng
from fidec.audit.measure import ABSOLUTE, RELATIVE, SCORE_TIME, Measurement, Report, measure
from fidec.data import OfflineDataset
from fidec.data.windows import last_rows, steps_from
from fidec.errors import ConfigError
from fidec.ops import account
from fidec.parts import arrays_of
from fidec.stats import bootstrap_mean
from fidec.store import versions
from fidec.train.acting import AS_TRAINED, ActOptions
from fidec.train.policy import Policy
from fidec.train.training_data import check_fits, observations_at

QUANTILES = (5, 25, 50, 75, 95)
NEIGHBOURS = 32
POOL = 50_000  # rows among which neighbours are searched
CHUNK = 64  # states whose distances to the pool are computed at once


def audit(
    policy: Policy,
    dataset: OfflineDataset,
    *,
    states: int = 256,
    samples: int = 64,
    seed: int = 0,
    act: ActOptions = AS_TRAINED,
    report: Report | None = None,
) -> dict[str, Any]:
    """Measure how far the policy has moved from its behaviour flow, at `states` random rows of the data.

    Each state gets `samples` base actions. `act` says how the policy draws and chooses them, by default as it acts:
    the account is measured like that, all else with the whole noise and without a choice. The same seed gives the
    same numbers. `report` is called with the number of finished states and a text. The result has plain numbers and
    NumPy arrays; docs/audit.md explains its keys.
    """
    check_transport(policy)
    check_fits(policy, dataset)
    options = act.resolved(policy.act)
    transport = policy.algorithm.transport
    assert transport is not None  # checked
    generator = np.random.default_rng([seed, 0])
    rows = np.sort(generator.choice(dataset.size, min(states, dataset.size), replace=False))

    def measured_with(noise: float) -> Measurement:
        return measure(
            transport,
            policy.state,
            observations_at(dataset, rows, policy.spec),
            samples=samples,
            action_dim=policy.spec.action_dim,
            key=rng.stream(seed, "evaluate"),
            noise_factor=noise,
            report=report,
        )

    measured = measured_with(1.0)
    candidates, noise = options.candidates or 1, 1.0 if options.noise is None else options.noise
    played = account_of(measured if noise == 1 else measured_with(noise), candidates, noise)
    if policy.spec.images:
        near = "observations are images, and distances between pixels do not tell which states are similar"
    elif dataset.size < 2:
        near = "the data has one row"
    else:
        moved = measured.moved
        moves = (moved.actions, moved.actions + moved.displacement)
        near = neighbour_distances(dataset, rows, *moves, seed, policy.spec.chunk)
    return {
        "algo": policy.algo,
        "step": policy.info.get("step"),
        "seed": seed,
        "chunk": policy.spec.chunk,
        "data": {"name": dataset.name, "source": dataset.source, "sha256": dataset.sha256, "rows": rows},
        "packages": {name: versions.version(name) for name in versions.PACKAGES},
        **summarise(measured, near),
        "account": played,
    }


def check_transport(policy: Policy) -> None:
    """Raise `ConfigError` if the policy has no residual map."""
    if policy.algorithm.transport is None:
        raise ConfigError(
            f"this is a policy of {policy.algo}, which has no residual map to audit; "
            "methods with a residual map are fidec and deflow"
        )


# --- distances to the data's actions in similar states ------------------------------------------------------------


def nearest_states(dataset: OfflineDataset, rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """(n, m) rows of the data whose standardised observations are nearest to those of `rows`.

    They come from other trajectories, because the steps just before and after a state would only repeat its action.
    If the other trajectories have too few states, only the state itself is left out.
    """
    pool = np.arange(dataset.size)
    if dataset.size > POOL:
        pool = np.sort(generator.choice(dataset.size, POOL, replace=False))
    observed = _vectors(dataset, pool)
    centre, spread = observed.mean(axis=0), observed.std(axis=0)
    weight = np.where(spread > 1e-8, 1.0 / np.maximum(spread, 1e-8), 0.0)  # constant components get no weight
    observed = (observed - centre) * weight
    squares = (observed**2).sum(axis=1)
    episode = np.searchsorted(dataset.episodes[:, 0], pool, side="right")
    nearest = []
    for first in range(0, len(rows), CHUNK):
        chunk = rows[first : first + CHUNK]
        query = (_vectors(dataset, chunk) - centre) * weight
        distance = squares - 2.0 * query @ observed.T  # without |query|^2, which does not change the order
        left_out = np.searchsorted(dataset.episodes[:, 0], chunk, side="right")[:, None] == episode
        few = (~left_out).sum(axis=1) < NEIGHBOURS
        left_out[few] = pool == chunk[few, None]
        distance[left_out] = np.inf
        m = min(NEIGHBOURS, len(pool) - 1)
        nearest.append(pool[np.argpartition(distance, m - 1, axis=1)[:, :m]])
    return np.concatenate(nearest)


def _vectors(dataset: OfflineDataset, rows: np.ndarray) -> np.ndarray:
    """The observations of these rows; several vectors side by side."""
    return np.concatenate([array[rows] for array in arrays_of(dataset.observations)], axis=1).astype(np.float64)


def closest(actions: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Distance of each action (n, k, d) to the closest of its state's others (n, m, d): (n, k)."""
    pairs = zip(actions, others, strict=True)
    return np.stack([np.linalg.norm(a[:, None] - b, axis=-1).min(axis=1) for a, b in pairs])


def neighbour_distances(
    dataset: OfflineDataset, rows: np.ndarray, base: np.ndarray, refined: np.ndarray, seed: int, chunk: int = 1
) -> dict[str, np.ndarray]:
    """Distance to the closest data action of the nearest states, for base, refined (n, k, d) and logged actions.

    All are clipped to the bounds first, as the policy clips them. Actions may be chunks of several steps.
    """

    def actions_at(rows: np.ndarray) -> np.ndarray:
        steps, _ = steps_from(rows.ravel(), last_rows(dataset.episodes)[rows.ravel()], chunk, np)
        return dataset.actions[steps].reshape(*rows.shape, -1)

    others = actions_at(nearest_states(dataset, rows, np.random.default_rng([seed, 1])))
    return {
        "data": closest(actions_at(rows)[:, None], others)[:, 0],
        "base": closest(np.clip(base, -1.0, 1.0), others),
        "refined": closest(np.clip(refined, -1.0, 1.0), others),
    }


# --- the summary --------------------------------------------------------------------------------------------------


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


def account_of(measured: Measurement, candidates: int, noise: float) -> dict[str, Any]:
    """What less noise, the choice and the move cost, each in nats, as means over states; their sum is the KL.

    `measured` has base actions that were drawn with this factor of the noise. What less noise and the move cost are
    means over the actions that are chosen. A move may be negative where it undoes a part of the narrowing.
    """
    ratio = measured.moved.log_ratio.astype(np.float64)
    finite = np.isfinite(ratio).all(axis=1)
    weights = account.best_of_weights(measured.value[finite], candidates)
    parts = {
        "narrowed": _mean((weights * account.noise_log_ratio(measured.noise[finite], noise)).sum(axis=1))["mean"],
        "chose": _mean(account.weights_nats(weights))["mean"],
        "moved": _mean((weights * ratio[finite]).sum(axis=1))["mean"],
    }
    return {
        **parts,
        "total": sum(parts.values()) if finite.any() else None,
        "candidates": candidates,
        "most_chosen": account.best_of_nats(candidates),
        "noise": noise,
    }


def neighbour_kl(measured: Measurement) -> float | None:
    """The mean KL by distances between samples; None in many dimensions, or with few samples.

    The same estimate without the move is taken off, and with it most of the estimate's bias.
    """
    moved, (_, samples, d) = measured.moved, measured.moved.actions.shape
    finite = np.isfinite(moved.displacement).all(axis=(1, 2)) & np.isfinite(moved.actions).all(axis=(1, 2))
    if d > account.MOST_DIMENSIONS or samples <= 2 * account.NEIGHBOUR or not finite.any():
        return None
    base, others = (array.astype(np.float64)[finite] for array in (moved.actions, measured.fresh))
    costs = [
        account.neighbour_kl(after, other) - account.neighbour_kl(before, other)
        for before, after, other in zip(base, base + moved.displacement[finite], others, strict=True)
    ]
    return float(np.mean(costs))


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
        "by_neighbours": neighbour_kl(measured),
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
