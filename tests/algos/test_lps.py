"""Latent policy steering: what the policy can reach, and where it ends for flows and critics that are known.

GELU(x) - GELU(-x) = x, so two hidden units for each dimension are a linear network, exactly.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec import algos, nn
from fidec.algos.lps import MeanFlowPolicy
from fidec.types import Spec
from helpers import some
from helpers.algorithms import assert_close, fast_jit, make_batch, scaled, with_params

D, OBSERVED, HIDDEN = 3, 4, (16,)
SPEC = Spec((OBSERVED,), D)
KEY = jax.random.key(3)
RADIUS = np.sqrt(D)
OBSERVATIONS = make_batch(16, (OBSERVED,), D).observations


@cache
def made(**options):
    algorithm = algos.make("lps", SPEC, **{"hidden": HIDDEN, **options})
    return algorithm, fast_jit(algorithm.init)(jax.random.key(0))


def set_layers(params, **layers):
    """The network with these kernels and biases, the same for all members of an ensemble; the others become zero."""

    def leaf(path, old):
        layer, kind = path[-2].key, path[-1].key
        if layer.startswith("LayerNorm"):
            return old
        new = np.asarray(layers.get(f"{layer}_{kind}", np.zeros(old.shape)), np.float32)
        return jnp.asarray(np.broadcast_to(new, old.shape))

    return jax.tree.map_with_path(leaf, params)


def constant_latent(state, latent):
    return with_params(state, policy=set_layers(state.params["policy"], Dense_1_bias=latent))


def linear_flow(state, matrix, offset: Any = 0.0):
    """mu(s, z) = A z + b for every state."""
    first = np.zeros((OBSERVED + D + 2, HIDDEN[0]))
    first[OBSERVED : OBSERVED + D, : 2 * D] = np.concatenate([np.eye(D), -np.eye(D)], axis=1)
    last = np.zeros((HIDDEN[0], D))
    last[: 2 * D] = np.concatenate([matrix.T, -matrix.T])
    flow = set_layers(state.params["flow"], Dense_0_kernel=first, Dense_1_kernel=last, Dense_1_bias=offset)
    return with_params(state, flow=flow)


def ramp_critic(state, slope):
    """Q(s, a) = f(slope . a), f increasing: beside a large constant the layer normalisation is nearly linear."""
    first = np.zeros((OBSERVED + D, HIDDEN[0]))
    first[OBSERVED:, :2] = np.stack([slope, -slope], axis=1)
    bias = np.zeros(HIDDEN)
    bias[2] = 30.0
    last = np.zeros((HIDDEN[0], 1))
    last[:2, 0] = 10.0, -10.0
    return set_layers(state.params["critic"], Dense_0_kernel=first, Dense_0_bias=bias, Dense_1_kernel=last)


@pytest.mark.parametrize("steps", [1, 3])
def test_a_constant_latent_gives_the_flows_sample_of_that_latent(steps):
    algorithm, state = made(flow_steps=steps)
    latent = np.array([1.0, -2.0, 0.5], np.float32)
    latent *= RADIUS / np.linalg.norm(latent)
    state = constant_latent(state, latent)
    actions = fast_jit(algorithm.act)(state, OBSERVATIONS, KEY)
    noise = jnp.broadcast_to(jnp.asarray(latent), (16, D))
    behaviour = MeanFlowPolicy(HIDDEN, SPEC, steps, 0.25)
    samples = behaviour.sample(state.params["flow"], OBSERVATIONS, noise)
    np.testing.assert_allclose(actions, samples, rtol=1e-4, atol=1e-5)
    if steps == 1:  # one pass through the network
        network: Any = nn.MeanFlow(HIDDEN, D)
        zero, one = jnp.zeros((16, 1)), jnp.ones((16, 1))
        direct = network.apply(state.params["flow"], OBSERVATIONS, noise, zero, one)
        np.testing.assert_allclose(actions, jnp.clip(direct, -1.0, 1.0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [0.01, 1.0, 1000.0])
def test_the_latent_stays_on_the_sphere(size):
    """With the flow mu(s, z) = z / 4 the actions show the latents, whatever the size of the actor's outputs."""
    algorithm, state = made(exploration_noise=2.0)
    state = linear_flow(state, np.eye(D) / 4)
    state = with_params(state, policy=scaled(state.params["policy"], size))
    acted, base = fast_jit(some(algorithm.act_with_base))(state, OBSERVATIONS, KEY)
    explored = fast_jit(some(algorithm.explore))(state, OBSERVATIONS, KEY)
    norms = 4 * np.linalg.norm(jnp.stack([acted, base, explored]), axis=-1)
    assert norms.max() < 1.0001 * RADIUS
    # An actor whose outputs vanish has no direction: the latent goes to zero, not to infinity.
    np.testing.assert_allclose(norms[0 if size >= 1.0 else 1 :], RADIUS, rtol=1e-2)
    nothing = fast_jit(some(algorithm.act_with_base))(state, OBSERVATIONS, KEY, noise=0.0)[1]
    np.testing.assert_allclose(nothing, np.zeros((16, D)), atol=1e-6)


@pytest.mark.slow
def test_exploration_goes_from_the_policy_to_the_behaviour():
    observations = jnp.zeros((20_000, OBSERVED))

    def explored(noise):
        algorithm, state = made(exploration_noise=noise)
        state = constant_latent(linear_flow(state, np.eye(D) / 4), [1.0, 1.0, 1.0])
        return 4 * np.asarray(fast_jit(some(algorithm.explore))(state, observations, KEY))

    np.testing.assert_allclose(explored(0.0), np.ones((20_000, D)), rtol=1e-4)
    near, far = explored(0.1), explored(1e4)
    # On the sphere's tangent plane the noise keeps its standard deviation, in each of d - 1 directions.
    assert np.mean(np.sum((near - 1.0) ** 2, axis=-1)) == pytest.approx(0.1**2 * (D - 1), rel=0.05)
    np.testing.assert_allclose(far.mean(axis=0), np.zeros(D), atol=0.03)
    np.testing.assert_allclose(far.T @ far / len(far), np.eye(D), atol=0.03)


MATRIX = np.array([[0.3, 0.1, 0.0], [-0.2, 0.1, 0.1], [0.0, 0.1, 0.2]])
OFFSET = np.array([0.1, -0.05, 0.0])
SLOPE = np.array([0.6, -0.3, 0.7])


@pytest.mark.slow
@pytest.mark.parametrize(("steering", "updates", "share"), [("direct", 1000, 0.999), ("distilled", 2000, 0.9)])
def test_on_a_linear_flow_the_policy_ends_at_the_best_point_of_the_sphere(steering, updates, share):
    """For Q = f(g . a) and mu = A z + b that is z = sqrt(d) A^T g / |A^T g|, which gains sqrt(d) |A^T g| over z = 0.

    Flow and critic are kept as they are. A small latent critic finds most of the gain.
    """
    algorithm, state = made(steering=steering, learning_rate=0.01, train_flow=False)
    state = linear_flow(state, MATRIX, OFFSET)
    known, batch = ramp_critic(state, SLOPE), make_batch(16, (OBSERVED,), D)

    def step(state, key):
        return algorithm.update(with_params(state, critic=known), batch, key)[0], None

    end, _ = jax.jit(lambda state: jax.lax.scan(step, state, jax.random.split(KEY, updates)))(state)
    actions = np.asarray(algorithm.act(end, batch.observations, KEY))
    direction = MATRIX.T @ SLOPE
    best = MATRIX @ (RADIUS * direction / np.linalg.norm(direction)) + OFFSET
    assert np.abs(best).max() < 1.0  # nothing is clipped
    gains = (actions - OFFSET) @ SLOPE / (RADIUS * np.linalg.norm(direction))
    assert share < gains.mean() < 1.0001
    if steering == "direct":
        np.testing.assert_allclose(actions, np.broadcast_to(best, actions.shape), atol=0.03)


def test_the_direct_gradient_is_the_chain_rule():
    """d/dz Q(mu(z)) = A^T grad Q, projected to the sphere's tangent plane, against the policy's last bias."""
    algorithm, state = made(train_flow=False)
    state = linear_flow(state, MATRIX, OFFSET)
    latent = np.array([0.5, 1.0, -1.0])
    state = constant_latent(with_params(state, critic=ramp_critic(state, SLOPE)), latent)
    after, _ = fast_jit(algorithm.update)(state, make_batch(16, (OBSERVED,), D), KEY)
    taken = -np.asarray(after.optimiser["policy"][0].mu["params"]["MLP_0"]["Dense_1"]["bias"])
    unit = latent / np.linalg.norm(latent)
    uphill = MATRIX.T @ SLOPE
    uphill -= unit * (unit @ uphill)
    np.testing.assert_allclose(taken / np.linalg.norm(taken), uphill / np.linalg.norm(uphill), atol=1e-3)


@pytest.mark.slow
def test_the_latent_critic_alone_moves_a_distilled_policy():
    algorithm, state = made(steering="distilled")
    update, batch = fast_jit(algorithm.update), make_batch(16, (OBSERVED,), D)

    def moved(**modules):
        """The modules whose gradients change with these."""
        usual, other = (update(each, batch, KEY)[0].optimiser for each in (state, with_params(state, **modules)))
        different = lambda a, b: any(map(np.any, map(np.not_equal, jax.tree.leaves(a), jax.tree.leaves(b))))  # noqa: E731
        return {name for name in usual if name not in modules and different(usual[name], other[name])}

    shaken = {name: jax.tree.map(lambda leaf: 1.1 * leaf + 0.02, state.params[name]) for name in state.params}
    assert moved(critic=shaken["critic"]) == {"latent_critic"}
    assert moved(flow=shaken["flow"]) == {"critic", "latent_critic"}
    assert moved(policy=shaken["policy"]) == {"critic"}
    assert moved(latent_critic=shaken["latent_critic"]) == {"policy"}


@pytest.mark.slow
def test_the_policy_is_the_same_without_what_only_training_needs():
    algorithm, state = made(steering="distilled")
    small = algorithm.policy(state)
    assert set(small.params) == {"flow", "policy"}
    assert_close(algorithm.act(small, OBSERVATIONS, KEY), algorithm.act(state, OBSERVATIONS, KEY), rtol=0)
