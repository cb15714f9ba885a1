"""What a choice among a behaviour's own actions costs, in nats, and which actions it takes.

A policy draws N actions of a behaviour b, scores each and plays the best. For scores without ties

    KL(b_N || b) = log N - (N - 1)/N,

whatever the scores are: a choice never leaves the behaviour's support, so its cost does not depend on how good the
chosen actions are. Ties make it cheaper. If each action is moved by a map T before it is scored, the two costs add:

    KL(T#b_N || b) = KL(b_N || b) + E_{b_N}[log b(a) - log b(T a) - log|det grad T|]
"""

from __future__ import annotations

import math

import numpy as np


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
