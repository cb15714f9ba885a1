"""Every neural network of the package, as stateless flax.linen modules.

The sizes and initialisers are those of the FQL backbone that the benchmark's methods share: Dense -> GELU ->
(LayerNorm), Glorot-uniform kernels, zero biases, time as one raw scalar.

A network that looks at observations may have an encoder of its own, for images. It encodes each observation once
and lays the features beside as many actions as it is given; who calls a network often for the same observations
(a flow's Euler steps) encodes first, `features = network.apply(params, observations, method="encode")`, and then
passes the features with `encoded=True`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped


def kernel_init(scale: float = 1.0):
    """Glorot-uniform initialisation; `scale` multiplies the variance."""
    return nn.initializers.variance_scaling(scale, "fan_avg", "uniform")


class MLP(nn.Module):
    """Hidden layers of Dense -> activation -> (LayerNorm), then a linear output layer with neither."""

    hidden: Sequence[int]
    features: int
    layer_norm: bool = False
    output_scale: float = 1.0
    activation: Callable = nn.gelu

    @nn.compact
    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        for width in self.hidden:
            x = self.activation(nn.Dense(width, kernel_init=kernel_init())(x))
            if self.layer_norm:
                x = nn.LayerNorm()(x)
        return nn.Dense(self.features, kernel_init=kernel_init(self.output_scale))(x)


class Impala(nn.Module):
    """Images to features: stacks of convolution, pooling and one residual block. The benchmark's `impala_small`."""

    channels: Sequence[int] = (16, 32, 32)
    features: int = 512

    @nn.compact
    def __call__(self, images: Shaped[Array, "*batch h w c"]) -> Float[Array, "*batch m"]:
        def conv(x, width):
            return nn.Conv(width, (3, 3), kernel_init=kernel_init())(x)

        x = images.astype(jnp.float32) / 255.0
        for width in self.channels:
            x = nn.max_pool(conv(x, width), (3, 3), (2, 2), "SAME")
            x = x + conv(nn.relu(conv(nn.relu(x), width)), width)
        x = nn.relu(x).reshape(*x.shape[:-3], -1)
        return nn.gelu(nn.Dense(self.features, kernel_init=kernel_init())(x))


def beside(features: Float[Array, "*batch n"], x: Float[Array, "*more d"]) -> Float[Array, "*more n"]:
    """Features repeated along the leading axes that x has beyond them."""
    return jnp.broadcast_to(features, (*x.shape[:-1], features.shape[-1]))


class Observer(nn.Module):
    """A network that looks at observations, through its `encoder` if it has one."""

    def encode(self, observations: Array) -> Array:
        """Features of images; vectors are their own."""
        encoder = getattr(self, "encoder", None)
        return observations if encoder is None else encoder(observations)


class Critic(Observer):
    """An ensemble of Q functions with independent parameters; the ensemble is the leading axis.

    The heads share the encoder.
    """

    hidden: Sequence[int]
    layer_norm: bool = True
    ensemble: int = 2
    activation: Callable = nn.gelu
    encoder: nn.Module | None = None

    @nn.compact
    def __call__(
        self, observations: Shaped[Array, "..."], actions: Float[Array, "*batch d"], encoded: bool = False
    ) -> Float[Array, "ensemble *batch"]:
        heads = nn.vmap(
            MLP,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,  # type: ignore[arg-type]
            out_axes=0,
            axis_size=self.ensemble,
        )
        features = observations if encoded else self.encode(observations)
        x = jnp.concatenate([beside(features, actions), actions], axis=-1)
        return heads(self.hidden, 1, layer_norm=self.layer_norm, activation=self.activation)(x).squeeze(-1)


class Value(Observer):
    """V(s): one scalar an observation."""

    hidden: Sequence[int]
    layer_norm: bool = True
    activation: Callable = nn.gelu
    encoder: nn.Module | None = None

    @nn.compact
    def __call__(self, observations: Shaped[Array, "..."]) -> Float[Array, "*batch"]:
        mlp = MLP(self.hidden, 1, layer_norm=self.layer_norm, activation=self.activation)
        return mlp(self.encode(observations)).squeeze(-1)


class Actor(Observer):
    """The mean of a Gaussian policy, or a deterministic action before squashing: a small output layer at first."""

    hidden: Sequence[int]
    action_dim: int
    activation: Callable = nn.gelu
    encoder: nn.Module | None = None

    @nn.compact
    def __call__(self, observations: Shaped[Array, "..."]) -> Float[Array, "*batch d"]:
        mlp = MLP(self.hidden, self.action_dim, output_scale=0.01, activation=self.activation)
        return mlp(self.encode(observations))


class VelocityField(Observer):
    """v(s, x, t): the velocity that carries noise (t = 0) to actions (t = 1)."""

    hidden: Sequence[int]
    action_dim: int
    encoder: nn.Module | None = None

    @nn.compact
    def __call__(
        self,
        observations: Shaped[Array, "..."],
        x: Float[Array, "*batch d"],
        t: Float[Array, "*batch 1"],
        encoded: bool = False,
    ) -> Float[Array, "*batch d"]:
        features = observations if encoded else self.encode(observations)
        return MLP(self.hidden, self.action_dim)(jnp.concatenate([beside(features, x), x, t], axis=-1))


class ResidualMap(Observer):
    """delta(s, a): the displacement of an action, the network of the local transport map a + delta."""

    hidden: Sequence[int]
    action_dim: int
    encoder: nn.Module | None = None

    @nn.compact
    def __call__(
        self, observations: Shaped[Array, "..."], actions: Float[Array, "*batch d"]
    ) -> Float[Array, "*batch d"]:
        features = self.encode(observations)
        return MLP(self.hidden, self.action_dim)(jnp.concatenate([beside(features, actions), actions], axis=-1))
