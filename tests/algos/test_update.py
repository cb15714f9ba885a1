"""An update of DeFlow and of FiDec against a second implementation without any function of fidec."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fidec import algos, nn
from fidec.types import Spec
from helpers.algorithms import fast_jit, make_batch

OBS, ACT, ROWS = 4, 2, 16
SPEC = Spec((OBS,), ACT)
SMALL = {"hidden": (16,), "flow_steps": 2, "budget": 0.01}
CLIP = 5.0


def run(update, state, steps=5):
    update = fast_jit(update)
    history = []
    for step in range(steps):
        state, metrics = update(state, make_batch(ROWS, (OBS,), ACT, seed=step), jax.random.key(100 + step))
        history.append(metrics)
    return state, history


def reference(method):
    """One update as a single jax.grad of the sum of four losses with explicit stop-gradients, one Adam for all.

    Written without any function of fidec.ops or fidec.algos; only the random draws follow their order.
    """
    sg, t_width = jax.lax.stop_gradient, 0.05
    critic: Any = nn.Critic(SMALL["hidden"])
    residual: Any = nn.ResidualMap(SMALL["hidden"], ACT)
    field: Any = nn.VelocityField(SMALL["hidden"], ACT)
    adam = optax.adam(3e-4)

    def solve(params, s, x):
        for i in range(SMALL["flow_steps"]):
            t = jnp.full((*x.shape[:-1], 1), i / SMALL["flow_steps"])
            x = x + field.apply(params, s, x, t) / SMALL["flow_steps"]
        return jnp.clip(x, -1, 1)

    def distance(params, s, base, delta, key):
        if method == "deflow":
            return jnp.mean(delta**2)
        samples = 4 if method == "renoised" else 8
        s = jnp.broadcast_to(s, (samples, ROWS, OBS))
        if method == "renoised":
            noise_key, time_key = jax.random.split(key)
            actions = jnp.broadcast_to(base, (samples, ROWS, ACT))
            t = jnp.full((samples, ROWS, 1), 0.8)
        else:
            fresh_key, key = jax.random.split(key)
            noise_key, time_key = jax.random.split(key)
            actions = solve(params, s, jax.random.normal(fresh_key, (samples, ROWS, ACT)))
            t = jax.random.uniform(time_key, (samples, ROWS, 1), minval=0.9 - t_width, maxval=0.9)
        x = (1 - t) * jax.random.normal(noise_key, actions.shape) + t * actions
        v = field.apply(params, s, x, t)
        scores = (t * v - x) / (1 - t) if method == "renoised" else v / (1 - t)
        fisher = jnp.einsum("kbi,kbj->bij", scores, scores) / samples + 1e-3 * jnp.eye(ACT)
        fisher = sg(fisher / jnp.trace(fisher, axis1=1, axis2=2)[:, None, None])
        return jnp.mean(jnp.einsum("bi,bij,bj->b", delta, fisher, delta))

    def loss(params, target, batch, key):
        noise_key, flow_key, penalty_key = jax.random.split(key, 3)
        noise = jax.random.normal(noise_key, (2 * ROWS, ACT))
        base = sg(solve(params["flow"], batch.observations, noise[:ROWS]))
        next_base = sg(solve(params["flow"], batch.next_observations, noise[ROWS:]))

        move = residual.apply(params["residual"], batch.next_observations, next_base)
        next_q = critic.apply(target, batch.next_observations, jnp.clip(next_base + move, -1, 1)).mean(0)
        y = sg(batch.rewards + 0.99 * batch.masks * next_q)
        critic_loss = jnp.mean((critic.apply(params["critic"], batch.observations, batch.actions) - y) ** 2)

        z_key, t_key = jax.random.split(flow_key)
        z, t = jax.random.normal(z_key, (ROWS, ACT)), jax.random.uniform(t_key, (ROWS, 1))
        v = field.apply(params["flow"], batch.observations, (1 - t) * z + t * batch.actions, t)
        flow_loss = jnp.mean((v - (batch.actions - z)) ** 2)

        delta = residual.apply(params["residual"], batch.observations, base)
        actions = jnp.clip(base + delta, -1, 1)
        q = critic.apply(sg(params["critic"]), batch.observations, actions).mean(0)
        q_term = q.mean() if method == "released" else q.mean() / sg(jnp.abs(q).mean())
        d = distance(sg(params["flow"]), batch.observations, base, delta, penalty_key)
        residual_loss = sg(jnp.exp(params["multiplier"])) * d - q_term
        dual_loss = -params["multiplier"] * (sg(d) - SMALL["budget"])
        return critic_loss + flow_loss + residual_loss + dual_loss

    def update(state, batch, key):
        params, target, optimiser = state
        grads = jax.grad(loss)(params, target, batch, key)
        if method == "released":
            norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads)))
            grads = jax.tree.map(lambda g: g * jnp.minimum(1.0, CLIP / (norm + 1e-6)), grads)
        updates, optimiser = adam.update(grads, optimiser)
        target = jax.tree.map(lambda old, t: 0.005 * old + 0.995 * t, params["critic"], target)
        return (optax.apply_updates(params, updates), target, optimiser), {}

    return update, adam


# FiDec with the isotropic constraint is the same program as DeFlow (test_fidec.py).
@pytest.mark.parametrize("method", [pytest.param("deflow", marks=pytest.mark.slow), "renoised", "released"])
def test_update_agrees_with_a_plain_reference(method):
    ours = {
        "deflow": lambda: algos.make("deflow", SPEC, **SMALL),
        "renoised": lambda: algos.make("fidec", SPEC, t_eps=0.8, samples=4, **SMALL),
        "released": lambda: algos.make("fidec", SPEC, preset="released", **SMALL),
    }[method]()
    state = fast_jit(ours.init)(jax.random.key(0))
    # A larger critic makes the gradient exceed the limit of 5, so that the clipping is seen.
    params = {**state.params, "critic": jax.tree.map(lambda p: 3 * p, state.params["critic"])}
    state = state._replace(params=params, target={"critic": jax.tree.map(jnp.copy, params["critic"])})
    update, adam = reference(method)
    plain = (params, params["critic"], adam.init(params))
    (got, history), ((expected, target, _), _) = run(ours.update, state), run(update, plain)
    if method == "released":
        assert float(history[0]["grad_norm/critic"]) > CLIP
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)  # noqa: E731
    jax.tree.map(close, got.params, expected)
    jax.tree.map(close, got.target["critic"], target)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), got.params, params)
    assert all(m > 1e-4 for m in jax.tree.leaves(moved) if m > 0)
    assert max(jax.tree.leaves(moved)) > 1e-3
