"""Exact numbers of Gaussians."""

from __future__ import annotations

import numpy as np


def gaussian_kl(
    mean: np.ndarray, covariance: np.ndarray, base_mean: np.ndarray, base_covariance: np.ndarray
) -> float:
    """KL(N(m, S) || N(m_0, S_0)) = 1/2 [tr(S_0^-1 S) - d + (m - m_0)^T S_0^-1 (m - m_0) - log det(S_0^-1 S)]."""
    ratio = np.linalg.solve(base_covariance, covariance)
    difference = mean - base_mean
    square = difference @ np.linalg.solve(base_covariance, difference)
    return float(0.5 * (np.trace(ratio) - len(mean) + square - np.linalg.slogdet(ratio)[1]))
