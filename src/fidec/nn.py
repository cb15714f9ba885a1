"""Every neural network of the package, as stateless flax.linen modules.

The sizes and initialisers are those of the FQL backbone that the benchmark's methods share: Dense -> GELU ->
(LayerNorm), Glorot-uniform kernels, zero biases, time as one raw scalar.
"""

from __future__ import annotations

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float


def kernel_init(scale: float = 1.0):
    """Glorot-uniform initialisation; `scale` multiplies the variance."""
    return nn.initializers.variance_scaling(scale, "fan_avg", "uniform")


class MLP(nn.Module):
    """Hidden layers of Dense -> GELU -> (LayerNorm), then a linear output layer with neither."""

    hidden: Sequence[int]
    features: int
    layer_norm: bool = False
    output_scale: float = 1.0

    @nn.compact
    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        for width in self.hidden:
            x = nn.gelu(nn.Dense(width, kernel_init=kernel_init())(x))
            if self.layer_norm:
                x = nn.LayerNorm()(x)
        return nn.Dense(self.features, kernel_init=kernel_init(self.output_scale))(x)


class Critic(nn.Module):
    """An ensemble of Q functions with independent parameters; the ensemble is the leading axis."""

    hidden: Sequence[int]
    layer_norm: bool = True
    ensemble: int = 2

    @nn.compact
    def __call__(
        self, observations: Float[Array, "*batch n"], actions: Float[Array, "*batch d"]
    ) -> Float[Array, "ensemble *batch"]:
        heads = nn.vmap(
            MLP,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,  # type: ignore[arg-type]
            out_axes=0,
            axis_size=self.ensemble,
        )
        x = jnp.concatenate([observations, actions], axis=-1)
        return heads(self.hidden, 1, layer_norm=self.layer_norm)(x).squeeze(-1)


class Value(nn.Module):
    """V(s): one scalar an observation."""

    hidden: Sequence[int]
    layer_norm: bool = True

    @nn.compact
    def __call__(self, observations: Float[Array, "*batch n"]) -> Float[Array, "*batch"]:
        return MLP(self.hidden, 1, layer_norm=self.layer_norm)(observations).squeeze(-1)


class Actor(nn.Module):
    """The mean of a Gaussian policy, or a deterministic action before squashing: a small output layer at first."""

    hidden: Sequence[int]
    action_dim: int

    @nn.compact
    def __call__(self, observations: Float[Array, "*batch n"]) -> Float[Array, "*batch d"]:
        return MLP(self.hidden, self.action_dim, output_scale=0.01)(observations)


class VelocityField(nn.Module):
    """v(s, x, t): the velocity that carries noise (t = 0) to actions (t = 1)."""

    hidden: Sequence[int]
    action_dim: int

    @nn.compact
    def __call__(
        self, observations: Float[Array, "*batch n"], x: Float[Array, "*batch d"], t: Float[Array, "*batch 1"]
    ) -> Float[Array, "*batch d"]:
        inputs = jnp.concatenate([observations, x, t], axis=-1)
        return MLP(self.hidden, self.action_dim)(inputs)


class ResidualMap(nn.Module):
    """delta(s, a): the displacement of an action, the network of the local transport map a + delta."""

    hidden: Sequence[int]
    action_dim: int

    @nn.compact
    def __call__(
        self, observations: Float[Array, "*batch n"], actions: Float[Array, "*batch d"]
    ) -> Float[Array, "*batch d"]:
        inputs = jnp.concatenate([observations, actions], axis=-1)
        return MLP(self.hidden, self.action_dim)(inputs)
