"""Value targets, and the optimiser's small parts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fidec.ops import values
from fidec.optim import clip_gradients, polyak


def test_target_bootstraps_only_where_the_mask_says():
    target = values.td_target(
        jnp.array([1.0, 2.0, -1.0]), jnp.array([1.0, 0.0, 0.5]), jnp.array([10.0, 1e6, 4.0]), 0.9
    )
    np.testing.assert_allclose(target, [10.0, 2.0, 0.8], rtol=1e-6)


def test_target_and_scale_carry_no_gradient():
    ones = jnp.ones(3)
    for function in (
        lambda v: values.td_target(ones, ones, v, 0.9).sum(),
        lambda v: values.td_target(v, ones, ones, 0.9).sum(),
        values.value_scale,
    ):
        np.testing.assert_array_equal(jax.grad(function)(2 * ones), np.zeros(3))


def test_aggregate():
    q = jnp.array([[1.0, 5.0, -2.0], [3.0, 1.0, -4.0]])
    np.testing.assert_allclose(values.aggregate(q, "mean"), [2.0, 3.0, -3.0])
    np.testing.assert_allclose(values.aggregate(q, "min"), [1.0, 1.0, -4.0])


def test_td_loss_is_the_mean_over_heads_and_batch():
    q, target = jnp.array([[1.0, 2.0], [3.0, 6.0]]), jnp.array([0.0, 2.0])
    np.testing.assert_allclose(values.td_loss(q, target), (1 + 0 + 9 + 16) / 4)
    own = jnp.stack([target, q[1]])  # targets and weights of each head
    np.testing.assert_allclose(values.td_loss(q, own, jnp.array([[2.0, 1.0], [1.0, 1.0]])), 2 / 4)


def test_value_scale():
    """The scale makes an objective independent of the reward's units; a zero critic does not divide by zero."""
    q = jnp.array([1.0, -3.0, 2.0])
    np.testing.assert_allclose(values.value_scale(q), 0.5)
    np.testing.assert_allclose(values.value_scale(100 * q) * 100, values.value_scale(q), rtol=1e-6)
    assert np.isfinite(values.value_scale(jnp.zeros(3)))


def norm(tree):
    return float(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(tree))))


@pytest.fixture
def grads():
    """Norms 13 (in two leaves), 0.5 and 3."""
    return {
        "critic": {"w": jnp.array([3.0, 4.0]), "b": jnp.array([12.0])},
        "flow": {"w": jnp.array([[0.3, 0.4]])},
        "multiplier": jnp.asarray(-3.0),
    }


def test_clip_by_module(grads):
    clipped = clip_gradients(grads, 2.0, "module")
    assert norm(clipped["critic"]) == pytest.approx(2.0, rel=1e-5)
    np.testing.assert_array_equal(clipped["flow"]["w"], grads["flow"]["w"])  # below the limit: untouched
    np.testing.assert_allclose(clipped["multiplier"], -2.0, rtol=1e-5)
    np.testing.assert_allclose(clipped["critic"]["w"][1] / clipped["critic"]["b"][0], 1 / 3, rtol=1e-5)


def test_clip_globally(grads):
    """One large module shrinks the others in the same proportion."""
    clipped = clip_gradients(grads, 2.0, "global")
    assert norm(clipped) == pytest.approx(2.0, rel=1e-5)
    for name in grads:
        assert norm(clipped[name]) / norm(grads[name]) == pytest.approx(2.0 / norm(grads), rel=1e-5)
    untouched = clip_gradients(grads, 100.0, "global")
    jax.tree.map(np.testing.assert_array_equal, untouched, grads)


def test_no_clipping(grads):
    for scope in ("global", "module"):
        jax.tree.map(np.testing.assert_array_equal, clip_gradients(grads, None, scope), grads)


def test_clip_of_zero_gradients_is_zero():
    zero = {"a": jnp.zeros(3)}
    for scope in ("global", "module"):
        np.testing.assert_array_equal(clip_gradients(zero, 1.0, scope)["a"], np.zeros(3))


def test_polyak():
    moved = polyak({"w": jnp.array([1.0, 2.0])}, {"w": jnp.array([0.0, 4.0])}, 0.1)
    np.testing.assert_allclose(moved["w"], [0.1, 3.8], rtol=1e-6)


def test_aggregates_of_an_ensemble():
    q, keys = jnp.array([[1.0, 5.0], [3.0, 1.0], [2.0, 9.0]]), jax.random.split(jax.random.key(0), 64)
    np.testing.assert_allclose(values.aggregate(q, "mean", 0.5), q.mean(axis=0) - 0.5 * q.std(axis=0))
    np.testing.assert_array_equal(values.aggregate(q, "mean", 0.0), q.mean(axis=0))
    pairs = {tuple(values.aggregate(q, "random_pair", key=key).tolist()) for key in keys}
    assert pairs == {(1.0, 1.0), (1.0, 5.0), (2.0, 1.0)}  # the lower of heads (0, 1), (0, 2) and (1, 2)


def test_the_spread_of_values_does_not_see_a_constant():
    q = jnp.asarray([1.0, 2.0, 4.0])
    spread = values.value_scale(q, "spread")
    np.testing.assert_allclose(spread, 1 / np.std([1.0, 2.0, 4.0]), rtol=1e-6)
    np.testing.assert_allclose(values.value_scale(q + 100.0, "spread"), spread, rtol=1e-4)
    np.testing.assert_allclose(values.value_scale(3 * q, "spread"), spread / 3, rtol=1e-6)
