"""All neural networks of the package, as stateless flax.linen modules.

The sizes and initialisers are those of the FQL backbone that the benchmark's methods share: Dense -> GELU ->
(LayerNorm), Glorot-uniform kernels, zero biases, time as one raw scalar.

A network with observations as input may have its own encoder, for images. It encodes each observation once and
repeats the features for all its actions. To call a network several times for the same observations (a flow's Euler
steps), encode first, `features = network.apply(params, observations, method="encode")`, and pass the features with
`encoded=True`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Float, PyTree, Shaped

from fidec.types import ArrayLike as Array


def kernel_init(scale: float = 1.0):
    """Glorot-uniform initialisation; `scale` multiplies the variance. 0 gives zeros."""
    return nn.initializers.variance_scaling(scale, "fan_avg", "uniform") if scale else nn.initializers.zeros


def orthogonal_init(scale: float = 2.0**0.5):
    """Orthogonal initialisation; `scale` multiplies the weights. The default is for hidden ReLU layers.

    The heads of an ensemble are made one after the other: on a CPU, several batched QR decompositions in one program
    wait for each other for ever (jaxlib 0.10, matrices of 128 x 128). The values are the same.
    """
    one = nn.initializers.orthogonal(scale)

    def init(key: Array, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
        return jax.custom_batching.sequential_vmap(lambda key: one(key, shape, dtype))(key)

    return init


class MLP(nn.Module):
    """Hidden layers of Dense -> activation -> (LayerNorm), then a linear output layer with neither.

    `kernel()` initialises hidden layers, `kernel(output_scale)` the output layer.
    """

    hidden: Sequence[int]
    features: int
    layer_norm: bool = False
    output_scale: float = 1.0
    activation: Callable = nn.gelu
    kernel: Callable = kernel_init

    @nn.compact
    def __call__(self, x: Float[Array, "*batch n"]) -> Float[Array, "*batch m"]:
        for width in self.hidden:
            x = self.activation(nn.Dense(width, kernel_init=self.kernel())(x))
            if self.layer_norm:
                x = nn.LayerNorm()(x)
        return nn.Dense(self.features, kernel_init=self.kernel(self.output_scale))(x)


class Impala(nn.Module):
    """Image encoder: stacks of convolution, pooling and one residual block. The benchmark's `impala_small`."""

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


class Parts(nn.Module):
    """Encoder of observations of several parts: features of each camera beside the vectors, in the order of names.

    Each camera has an encoder of its own, so images may have different sizes.
    """

    cameras: tuple[str, ...]

    @nn.compact
    def __call__(self, parts: Mapping[str, Shaped[Array, "..."]]) -> Float[Array, "*batch m"]:
        features = [
            Impala(name=f"encoder_{name}")(parts[name]) if name in self.cameras else parts[name]
            for name in sorted(parts)
        ]
        return jnp.concatenate(features, axis=-1)


def beside(features: Float[Array, "*batch n"], x: Float[Array, "*more d"]) -> Float[Array, "*more n"]:
    """Features, repeated along the additional leading axes of x."""
    return jnp.broadcast_to(features, (*x.shape[:-1], features.shape[-1]))


class Observer(nn.Module):
    """A network with observations as input, encoded by its `encoder` if it has one."""

    def encode(self, observations: PyTree[Shaped[Array, "..."]]) -> Array:
        """Features of images; vectors are returned unchanged."""
        encoder = getattr(self, "encoder", None)
        return observations if encoder is None else encoder(observations)


class Critic(Observer):
    """An ensemble of Q functions with independent parameters; the ensemble is the leading axis.

    The heads share the encoder. A critic of return distributions takes noise as a third input.
    """

    hidden: Sequence[int]
    layer_norm: bool = True
    ensemble: int = 2
    activation: Callable = nn.gelu
    encoder: nn.Module | None = None
    output_scale: float = 1.0
    kernel: Callable = kernel_init

    @nn.compact
    def __call__(
        self,
        observations: PyTree[Shaped[Array, "..."]],
        actions: Float[Array, "*batch d"],
        *noise: Float[Array, "*batch _"],
    ) -> Float[Array, "ensemble *batch"]:
        heads = nn.vmap(
            MLP,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=None,  # type: ignore[arg-type]
            out_axes=0,
            axis_size=self.ensemble,
        )
        x = jnp.concatenate([beside(self.encode(observations), actions), actions, *noise], axis=-1)
        mlp = heads(self.hidden, 1, self.layer_norm, self.output_scale, self.activation, self.kernel)
        return mlp(x).squeeze(-1)


def of_heads(path: Sequence[Any]) -> bool:
    """Whether an array at this path of a tree belongs to the heads of a `Critic`: its first axis is the ensemble."""
    return any("VmapMLP" in str(key) for key in path)  # flax's name for them


def with_output_bias(params: Any, value: float) -> Any:
    """The parameters of a `Critic` or a `Value`, with this value as the bias of the output layer."""
    modules = dict(params["params"])
    (name,) = [name for name in modules if "MLP" in name]  # beside it there may be an encoder
    layers = dict(modules[name])
    last = max((layer for layer in layers if layer.startswith("Dense_")), key=lambda layer: int(layer[6:]))
    layers[last] = {**layers[last], "bias": jnp.full_like(layers[last]["bias"], value)}
    return {**params, "params": {**modules, name: layers}}


class Value(Observer):
    """V(s): one scalar for each observation."""

    hidden: Sequence[int]
    layer_norm: bool = True
    activation: Callable = nn.gelu
    encoder: nn.Module | None = None

    @nn.compact
    def __call__(self, observations: PyTree[Shaped[Array, "..."]]) -> Float[Array, "*batch"]:
        mlp = MLP(self.hidden, 1, layer_norm=self.layer_norm, activation=self.activation)
        return mlp(self.encode(observations)).squeeze(-1)


class Actor(Observer):
    """The mean of a Gaussian policy, or a deterministic action before squashing. The output layer starts small."""

    hidden: Sequence[int]
    action_dim: int
    activation: Callable = nn.gelu
    encoder: nn.Module | None = None
    output_scale: float = 0.01

    @nn.compact
    def __call__(self, observations: PyTree[Shaped[Array, "..."]]) -> Float[Array, "*batch d"]:
        mlp = MLP(self.hidden, self.action_dim, output_scale=self.output_scale, activation=self.activation)
        return mlp(self.encode(observations))


class GaussianActor(nn.Module):
    """Mean and log standard deviation of a Gaussian policy, both functions of the state, from one small output layer.

    With `affine_log_std` the log standard deviation is c_1 raw + c_0, with learned scalars that start at 1 and -1.
    """

    hidden: Sequence[int]
    action_dim: int
    activation: Callable = nn.gelu
    kernel: Callable = kernel_init
    log_std_bounds: tuple[float, float] = (-5.0, 2.0)
    affine_log_std: bool = False

    @nn.compact
    def __call__(
        self, observations: Float[Array, "*batch n"]
    ) -> tuple[Float[Array, "*batch d"], Float[Array, "*batch d"]]:
        mlp = MLP(self.hidden, 2 * self.action_dim, False, 0.01, self.activation, self.kernel)
        mean, log_std = jnp.split(mlp(observations), 2, axis=-1)
        if self.affine_log_std:
            scale = self.param("log_std_scale", nn.initializers.ones, ())
            log_std = scale * log_std + self.param("log_std_offset", nn.initializers.constant(-1.0), ())
        return mean, jnp.clip(log_std, *self.log_std_bounds)


class VelocityField(Observer):
    """v(s, x, t): the velocity of the flow from noise (t = 0) to actions (t = 1)."""

    hidden: Sequence[int]
    action_dim: int
    encoder: nn.Module | None = None

    @nn.compact
    def __call__(
        self,
        observations: PyTree[Shaped[Array, "..."]],
        x: Float[Array, "*batch d"],
        t: Float[Array, "*batch 1"],
        encoded: bool = False,
    ) -> Float[Array, "*batch d"]:
        features = observations if encoded else self.encode(observations)
        return MLP(self.hidden, self.action_dim)(jnp.concatenate([beside(features, x), x, t], axis=-1))


class MeanFlow(Observer):
    """g(s, x, t, r) = x + u(s, x, t, r), u the mean velocity of a flow from time t to time r.

    From noise at t = 0 to r = 1, g is the action.
    """

    hidden: Sequence[int]
    action_dim: int
    encoder: nn.Module | None = None

    @nn.compact
    def __call__(
        self,
        observations: PyTree[Shaped[Array, "..."]],
        x: Float[Array, "*batch d"],
        t: Float[Array, "*batch 1"],
        r: Float[Array, "*batch 1"],
        encoded: bool = False,
    ) -> Float[Array, "*batch d"]:
        features = observations if encoded else self.encode(observations)
        return MLP(self.hidden, self.action_dim)(jnp.concatenate([beside(features, x), x, t, r - t], axis=-1))


class ResidualMap(Observer):
    """delta(s, a): the displacement of an action; a + delta is the local transport map.

    With `zero_init` the output layer starts at zero, and so does delta.
    """

    hidden: Sequence[int]
    action_dim: int
    encoder: nn.Module | None = None
    zero_init: bool = False

    @nn.compact
    def __call__(
        self, observations: PyTree[Shaped[Array, "..."]], actions: Float[Array, "*batch d"]
    ) -> Float[Array, "*batch d"]:
        features = self.encode(observations)
        mlp = MLP(self.hidden, self.action_dim, output_scale=0.0 if self.zero_init else 1.0)
        return mlp(jnp.concatenate([beside(features, actions), actions], axis=-1))


class EditActor(Observer):
    """Mean and log standard deviation, before the tanh, of a random change of an action; functions of s and a."""

    hidden: Sequence[int]
    action_dim: int
    encoder: nn.Module | None = None
    log_std_bounds: tuple[float, float] = (-20.0, 2.0)

    @nn.compact
    def __call__(
        self, observations: PyTree[Shaped[Array, "..."]], actions: Float[Array, "*batch d"]
    ) -> tuple[Float[Array, "*batch d"], Float[Array, "*batch d"]]:
        features = self.encode(observations)
        inputs = jnp.concatenate([beside(features, actions), actions], axis=-1)
        mean, log_std = jnp.split(MLP(self.hidden, 2 * self.action_dim)(inputs), 2, axis=-1)
        return mean, jnp.clip(log_std, *self.log_std_bounds)


class Denoiser(nn.Module):
    """eps(s, x, k): the noise in an action x that was noised to level k. IDQL's residual network.

    The level is encoded by learnable Fourier features and a small network. k may be one level for all x.
    """

    action_dim: int
    width: int = 256
    blocks: int = 3
    dropout: float = 0.1
    fourier: int = 64  # features of the level, half of them cosines and half sines
    condition: int = 128
    activation: Callable = jax.nn.mish

    @nn.compact
    def __call__(
        self,
        observations: Float[Array, "*rows n"],
        x: Float[Array, "*batch d"],
        k: Float[Array, "*#batch 1"],
        training: bool = False,
    ) -> Float[Array, "*batch d"]:
        def dense(width):
            return nn.Dense(width, kernel_init=kernel_init())

        frequencies = self.param("frequencies", nn.initializers.normal(0.2), (self.fourier // 2,))
        angles = 2.0 * jnp.pi * k * frequencies
        level = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)
        level = MLP((self.condition,), self.condition, activation=self.activation)(level)
        x = dense(self.width)(jnp.concatenate([beside(observations, x), x, beside(level, x)], axis=-1))
        for _ in range(self.blocks):
            inner = nn.LayerNorm()(nn.Dropout(self.dropout, deterministic=not training)(x))
            x = x + dense(self.width)(self.activation(dense(4 * self.width)(inner)))
        return dense(self.action_dim)(self.activation(x))


def sinusoids(x: Float[Array, "*batch 1"], features: int) -> Float[Array, "*batch features"]:
    """Sines and cosines of x at frequencies from 1 down to 1e-4, evenly spaced in their logarithm."""
    frequencies = jnp.logspace(0.0, -4.0, features // 2)
    return jnp.concatenate([jnp.sin(x * frequencies), jnp.cos(x * frequencies)], axis=-1)


class ConsistencyNetwork(nn.Module):
    """F(s, x, sigma) of a consistency model, with Mish. A small network embeds the noise level."""

    hidden: Sequence[int]
    action_dim: int

    @nn.compact
    def __call__(
        self, observations: Float[Array, "*rows n"], x: Float[Array, "*batch d"], sigma: Float[Array, "*batch 1"]
    ) -> Float[Array, "*batch d"]:
        embedding = MLP((32,), 16, activation=jax.nn.mish, name="level")(sinusoids(sigma, 16))
        inputs = jnp.concatenate([x, beside(embedding, x), beside(observations, x)], axis=-1)
        return MLP(self.hidden, self.action_dim, activation=jax.nn.mish)(inputs)
