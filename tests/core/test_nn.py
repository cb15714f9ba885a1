"""The networks: shapes, initialisers, and a forward pass written out in NumPy."""

from __future__ import annotations

import re
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import nn

HIDDEN = (16, 8)
OBS, ACT = 5, 3


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def normalise(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)


def forward(layers, x, layer_norm):
    """Dense -> GELU -> (LayerNorm) for each hidden layer, then a linear layer. LayerNorm is at its initial 1, 0."""
    *hidden, last = layers
    for kernel, bias in hidden:
        x = gelu(x @ kernel + bias)
        x = normalise(x) if layer_norm else x
    return x @ last[0] + last[1]


def dense_layers(params, head=None):
    found = sorted((name, value) for name, value in params.items() if name.startswith("Dense"))
    pick = (lambda a: np.asarray(a, np.float64)) if head is None else (lambda a: np.asarray(a[head], np.float64))
    return [(pick(value["kernel"]), pick(value["bias"])) for _, value in found]


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    return tuple(rng.normal(size=(7, n)).astype(np.float32) for n in (OBS, ACT, 1))


@pytest.fixture(scope="module")
def networks(inputs):
    obs, act, t = inputs
    made = {
        "critic": (nn.Critic(HIDDEN), (obs, act)),
        "flow": (nn.VelocityField(HIDDEN, ACT), (obs, act, t)),
        "residual": (nn.ResidualMap(HIDDEN, ACT), (obs, act)),
    }
    return {
        name: (network, jax.jit(network.init)(jax.random.key(3), *args), args)
        for name, (network, args) in made.items()
    }


@pytest.mark.parametrize(("name", "width"), [("flow", OBS + ACT + 1), ("residual", OBS + ACT)])
def test_vector_fields(networks, name, width):
    network, params, args = networks[name]
    inner = params["params"]["MLP_0"]
    assert set(inner) == {"Dense_0", "Dense_1", "Dense_2"}  # no LayerNorm
    shapes = [value["kernel"].shape for _, value in sorted(inner.items())]
    assert shapes == [(width, 16), (16, 8), (8, ACT)]
    out = jax.jit(network.apply)(params, *args)
    assert out.shape == (7, ACT)
    expected = forward(dense_layers(inner), np.concatenate(args, -1).astype(np.float64), layer_norm=False)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


def test_critic_is_two_independent_heads_with_layer_norm_after_the_activation(networks):
    network, params, args = networks["critic"]
    (inner,) = params["params"].values()
    assert set(inner) == {"Dense_0", "Dense_1", "Dense_2", "LayerNorm_0", "LayerNorm_1"}
    assert inner["Dense_0"]["kernel"].shape == (2, OBS + ACT, 16)
    assert inner["Dense_2"]["kernel"].shape == (2, 8, 1)
    out = jax.jit(network.apply)(params, *args)
    assert out.shape == (2, 7)
    x = np.concatenate(args, -1).astype(np.float64)
    for head in range(2):
        expected = forward(dense_layers(inner, head), x, layer_norm=True)[:, 0]
        np.testing.assert_allclose(out[head], expected, rtol=1e-4, atol=1e-5)
    for layer in ("Dense_0", "Dense_1", "Dense_2"):
        first, second = inner[layer]["kernel"]
        assert abs(np.corrcoef(np.ravel(first), np.ravel(second))[0, 1]) < 0.8
        assert not np.array_equal(first, second)


def test_glorot_bounds_and_zero_biases(networks):
    for _, params, _ in networks.values():
        for path, leaf in jax.tree_util.tree_leaves_with_path(params):
            name = path[-1].key
            if name == "bias":
                np.testing.assert_array_equal(leaf, np.zeros_like(leaf))
            if name == "kernel":
                bound = np.sqrt(6 / sum(leaf.shape[-2:]))
                assert np.abs(leaf).max() <= bound
                assert np.abs(leaf).max() > 0.6 * bound
                if leaf.size > 100:
                    assert float(np.std(leaf)) == pytest.approx(bound / np.sqrt(3), rel=0.15)


def test_output_scale_multiplies_the_variance_of_the_last_layer_only(inputs):
    mlp: Any = nn.MLP
    plain, small = (
        mlp(HIDDEN, ACT, output_scale=scale).init(jax.random.key(0), jnp.asarray(inputs[0]))["params"]
        for scale in (1.0, 0.01)
    )
    np.testing.assert_allclose(small["Dense_2"]["kernel"], 0.1 * plain["Dense_2"]["kernel"], rtol=1e-5)
    np.testing.assert_array_equal(small["Dense_0"]["kernel"], plain["Dense_0"]["kernel"])


def test_leading_axes_are_free(networks):
    """A single observation, a batch, and candidates beside a batch give the same numbers."""
    for network, params, args in networks.values():
        batch = jax.jit(network.apply)(params, *args)
        single = jax.jit(network.apply)(params, *(x[0] for x in args))
        np.testing.assert_allclose(single, batch[..., 0, :] if batch.shape[-1] == ACT else batch[:, 0], atol=1e-6)
        stacked = jax.jit(network.apply)(params, *(jnp.stack([x, x]) for x in args))
        axis = 1 if batch.shape[0] == 2 else 0  # the critic's heads lead
        np.testing.assert_allclose(jnp.take(stacked, 1, axis=axis), batch, atol=1e-6)


def test_the_heads_of_a_critic_are_found_in_any_tree_of_its_parameters():
    critic: Any = nn.Critic((8,), ensemble=3, encoder=nn.Impala((4,), 6))
    params = critic.init(jax.random.key(0), jnp.zeros((2, 8, 8, 3), jnp.uint8), jnp.zeros((2, 2)))
    found = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path({"mu": params})}
    heads = {name for name in found if nn.of_heads([name])}
    assert heads == {name for name in found if "MLP" in name}
    assert len(heads) == 6
    assert {found[name].shape[0] for name in heads} == {3}


def test_orthogonal_heads_are_made_one_by_one():
    """A program with several batched QR decompositions hangs on a CPU. The values are those of a batched one."""
    init, keys = nn.orthogonal_init(), jax.random.split(jax.random.key(0), 2)
    program = jax.jit(jax.vmap(lambda key: init(key, (6, 4)))).lower(keys)
    assert "6x4" in program.as_text()
    assert not re.search(r"custom_call.*2x6x4", program.as_text())
    expected = jax.vmap(lambda key: flax.linen.initializers.orthogonal(2.0**0.5)(key, (6, 4)))(keys)
    np.testing.assert_array_equal(program.compile()(keys), expected)
