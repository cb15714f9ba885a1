"""Observations in a batch: stacking those of successive steps, and random shifts of images.

An image is (height, width, channels). Frames are stacked along the channels, vectors side by side, the oldest first.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Int, Shaped

from fidec.types import ArrayLike, PRNGKey

PADDING = 3  # pixels on each side; the largest shift


def stack(
    frames: Shaped[ArrayLike, "n *size c"],
    rows: Int[ArrayLike, "b"],
    starts: Int[ArrayLike, "n"],
    count: int,
    xp: Any = jnp,
) -> Shaped[ArrayLike, "b *size m"]:
    """[o_{t-count+1}, ..., o_t] for each row t; row `starts[t]`, the trajectory's first, is repeated.

    `xp` is jax.numpy, or numpy for frames on the host.
    """
    first = starts[rows]
    return xp.concatenate([frames[xp.maximum(rows - i, first)] for i in reversed(range(count))], axis=-1)


def push(
    stacked: Shaped[ArrayLike, "*b m"], frame: Shaped[ArrayLike, "*b c"], xp: Any = jnp
) -> Shaped[ArrayLike, "*b m"]:
    """The stack one step later: the oldest frame is removed and `frame` is added at the end."""
    return xp.concatenate([stacked[..., frame.shape[-1] :], frame], axis=-1)


def shift(
    images: Shaped[ArrayLike, "b h w c"], offsets: Int[ArrayLike, "b 2"], padding: int = PADDING
) -> Shaped[ArrayLike, "b h w c"]:
    """Each image, padded by its own edge and cropped at the row and column of its offset.

    The offset (padding, padding) changes nothing. Clipped indices repeat the edge, so no padded copy is made.
    """

    def one(image: jax.Array, offset: jax.Array) -> jax.Array:
        rows, columns = (
            jnp.clip(jnp.arange(length) + offset[axis] - padding, 0, length - 1)
            for axis, length in enumerate(image.shape[:2])
        )
        return image[rows][:, columns]

    return jax.vmap(one)(images, offsets)


def random_shift(
    key: PRNGKey, images: tuple[Shaped[ArrayLike, "b h w c"], ...], probability: float, padding: int = PADDING
) -> tuple[Shaped[ArrayLike, "b h w c"], ...]:
    """Shift row i of all `images` by one offset, uniform in {0, ..., 2 padding}^2, with this probability.

    One draw decides for the whole batch.
    """
    if probability <= 0:
        return images
    coin_key, offset_key = jax.random.split(key)
    offsets = jax.random.randint(offset_key, (images[0].shape[0], 2), 0, 2 * padding + 1)
    return jax.lax.cond(
        jax.random.bernoulli(coin_key, probability),
        lambda images: tuple(shift(each, offsets, padding) for each in images),
        lambda images: images,
        images,
    )
