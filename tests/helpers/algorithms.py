"""What tests of methods share."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fidec.types import Batch

# Most of a test's time is compilation, and LLVM's optimisation is most of that.
fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def make_batch(rows=8, observations=(4,), actions=2, seed=0, **columns) -> Batch:
    """Random transitions with every column; `columns` replaces some of them. Images if `observations` has 3 axes."""
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.uniform(-0.9, 0.9, (rows, *shape))  # noqa: E731
    batch = Batch(
        observations=draw(*observations),
        actions=draw(actions),
        rewards=draw(),
        masks=np.arange(rows) % 4 > 0,
        next_observations=draw(*observations),
        next_actions=draw(actions),
        returns=draw(),
    )
    batch = batch._replace(**columns)
    # Without the weak types of Python's numbers, for which an update would be compiled again.
    batch = jax.tree.map(lambda column: jnp.asarray(column, jnp.float32), batch)
    if len(observations) == 3:
        images = rng.integers(0, 256, (2, rows, *observations), dtype=np.uint8)
        batch = batch._replace(observations=jnp.asarray(images[0]), next_observations=jnp.asarray(images[1]))
    return batch


def equal(a, b) -> bool:
    """Whether all leaves are equal bit for bit."""
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def assert_close(a, b, **tolerance) -> None:
    """The same structure, and leaves within the tolerance of `numpy.testing.assert_allclose`."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    jax.tree.map(partial(np.testing.assert_allclose, **tolerance), a, b)


def with_params(state, **modules):
    """The state with some of its modules replaced."""
    return state._replace(params={**state.params, **modules})


def scaled(tree, factor):
    """Every leaf multiplied by `factor`, with its own type."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor * leaf, leaf.dtype), tree)
