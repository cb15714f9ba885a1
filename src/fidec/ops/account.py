"""The account of a policy in nats: what a choice among a behaviour's own actions, less noise and a move cost.

A policy draws N actions of a behaviour b, scores each and plays the best. For scores without ties

    KL(b_N || b) = log N - (N - 1)/N,

whatever the scores are: a choice never leaves the behaviour's support, so its cost does not depend on how good the
chosen actions are. Ties make it cheaper. If each action is moved by a map T before it is scored, the two costs add:

    KL(T#b_N || b) = KL(b_N || b) + E_{b_N}[log b(a) - log b(T a) - log|det grad T|]
"""

from __future__ import annotations

import math

import numpy as np
from scipy.spatial import KDTree

NEIGHBOUR = 5  # whose distance is taken
MOST_DIMENSIONS = 8  # in which distances between a few dozen samples tell densities apart


def best_of_nats(count: int) -> float:
    """The KL of the best of `count` samples from a sample, without ties."""
    return math.log(count) - (count - 1) / count


def noise_nats(factor: float, dimensions: int) -> float:
    """KL(N(0, factor^2) || N(0, 1)) in so many dimensions: the cost of drawing a flow's noise narrower.

    A flow is one to one, so this is also the KL between the actions. Without any noise it is infinite.
    """
    if factor == 0:
        return math.inf
    return dimensions * (0.5 * (factor**2 - 1.0) - math.log(factor))


def noise_log_ratio(noise: np.ndarray, factor: float) -> np.ndarray:
    """log N(z; 0, factor^2) - log N(z; 0, 1) for noise (..., d) that was drawn with this factor.

    Its mean over all draws is `noise_nats`. A choice prefers some draws, and has its own mean.
    """
    d = noise.shape[-1]
    if factor == 0:
        return np.full(noise.shape[:-1], math.inf)
    square = (noise.astype(np.float64) ** 2).sum(axis=-1)
    return 0.5 * square * (1.0 - 1.0 / factor**2) - d * math.log(factor)


def best_of_weights(values: np.ndarray, count: int) -> np.ndarray:
    """The probability that each of k samples (..., k) is the best of `count` drawn from them, with ties shared.

    With F the share of the samples that are not better, it is (F^N - F_-^N) by the number of equal ones.
    """
    not_better = (values[..., None, :] <= values[..., :, None]).mean(axis=-1)
    worse = (values[..., None, :] < values[..., :, None]).mean(axis=-1)
    equal = (values[..., None, :] == values[..., :, None]).sum(axis=-1)
    return (not_better**count - worse**count) / equal


def weights_nats(weights: np.ndarray) -> np.ndarray:
    """KL of a choice with these probabilities (..., k) from a uniform one: log k - H(w)."""
    k = weights.shape[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(weights > 0, weights * np.log(weights * k), 0.0)
    return terms.sum(axis=-1)


def neighbour_kl(samples: np.ndarray, others: np.ndarray, k: int = NEIGHBOUR) -> float:
    """KL(P || Q) from independent samples (n, d) of P and (m, d) of Q, by distances to the k-th neighbour.

    Wang, Kulkarni and Verdu (2009): d/n sum_i log(nu_i / rho_i) + log(m / (n - 1)), with rho_i the distance of sample
    i to its k-th neighbour among the samples and nu_i among the others. It needs no density and no map. So it also
    sees modes that a map lays on each other.
    """
    (n, d), m = samples.shape, len(others)
    own = KDTree(samples).query(samples, k + 1)[0][:, -1]  # a sample is its own first neighbour
    other = KDTree(others).query(samples, k)[0].reshape(n, -1)[:, -1]
    tiny = np.finfo(np.float64).tiny
    return float(d * np.mean(np.log(np.maximum(other, tiny) / np.maximum(own, tiny))) + math.log(m / (n - 1)))
