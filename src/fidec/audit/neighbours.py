"""Distances from actions to the data's actions in similar states."""

from __future__ import annotations

import numpy as np

from fidec.data import OfflineDataset
from fidec.data.windows import last_rows, steps_from
from fidec.parts import arrays_of

NEIGHBOURS = 32
POOL = 50_000  # rows among which neighbours are searched
CHUNK = 64  # states whose distances to the pool are computed at once


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
        own = np.searchsorted(dataset.episodes[:, 0], chunk, side="right")[:, None] == episode
        few = (~own).sum(axis=1) < NEIGHBOURS
        own[few] = pool == chunk[few, None]
        distance[own] = np.inf
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


def distances(
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
