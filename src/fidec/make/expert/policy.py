"""The policy of an expert in NumPy: a few small products, quicker for one walker than a call into JAX."""

from __future__ import annotations

from typing import Any

import numpy as np

from fidec.make.expert.features import FEATURES

Layers = list[tuple[np.ndarray, np.ndarray]]  # (kernel, bias) of each layer
_LOG_STD_BOUNDS = (-5.0, 2.0)  # those of nn.GaussianActor


def layers_of(actor: Any) -> Layers:
    """The layers of `nn.GaussianActor`'s parameters."""
    mlp = actor["params"]["MLP_0"]
    return [(np.asarray(mlp[f"Dense_{i}"]["kernel"]), np.asarray(mlp[f"Dense_{i}"]["bias"])) for i in range(len(mlp))]


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(np.float32(0.7978845608028654) * (x + np.float32(0.044715) * x * x * x)))


class Policy:
    """tanh of a Gaussian: `mean` gives the middle, `sample` a draw."""

    def __init__(self, layers: Layers, features: str):
        self.layers = layers
        self._features = FEATURES[features]

    def _heads(self, observations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = self._features(observations)
        for kernel, bias in self.layers[:-1]:
            x = _gelu(x @ kernel + bias)
        kernel, bias = self.layers[-1]
        mean, log_std = np.split(x @ kernel + bias, 2, axis=-1)
        return mean, np.clip(log_std, *_LOG_STD_BOUNDS)

    def mean(self, observations: np.ndarray) -> np.ndarray:
        return np.tanh(self._heads(observations)[0])

    def sample(self, observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        mean, log_std = self._heads(observations)
        return np.tanh(mean + np.exp(log_std) * rng.standard_normal(mean.shape, dtype=np.float32))
