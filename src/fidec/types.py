"""The types that all packages share. This module does not import JAX."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Key

from fidec.errors import ConfigError

# A JAX or NumPy array: the same Batch carries data on the host and on the device.
ArrayLike = Any
PRNGKey = Key[Any, ""]  # a JAX array; `Any` because naming its type would import JAX
Metrics = dict[str, Float[Any, ""]]
Params = Any  # a pytree of arrays, as flax gives it


class Batch(NamedTuple):
    """Transitions (s, a, r, m, s', a'), stacked along the leading axis.

    `masks` is 1 where the value of s' may be bootstrapped and 0 where the task ended there. `next_actions`
    is the data's action at s'; at the end of a trajectory, where there is none, it repeats `actions`. `returns`,
    the discounted return from s on, is given to methods that ask for it (`Method.needs_returns`). `proposals` is what
    a frozen behaviour flow proposes at s' (`Algorithm.frozen`).

    With windows of several steps (`fidec.data.windows`), an action is a chunk of h steps, side by side, and `masks`
    includes the discount between the steps. `valid` (rows, h) is then 1 for steps inside the trajectory.
    """

    observations: ArrayLike
    actions: ArrayLike
    rewards: ArrayLike
    masks: ArrayLike
    next_observations: ArrayLike
    next_actions: ArrayLike
    returns: ArrayLike | None = None
    proposals: Any = None
    valid: ArrayLike | None = None

    @property
    def action_weights(self) -> ArrayLike | None:
        """(rows, d): 1 for the action components that the data has, else 0; None if it has all of them."""
        return None if self.valid is None else self.valid.repeat(self.actions.shape[-1] // self.valid.shape[-1], -1)

    @property
    def value_weights(self) -> ArrayLike | None:
        """(rows,): 1 for actions whose value can be learned, else 0; None if that is all of them.

        What is done after the end of the task does not matter. After a trajectory that was cut, it is not known.
        """
        return None if self.valid is None else (self.valid[:, -1] + (self.masks == 0)).clip(0, 1)


@dataclass(frozen=True)
class Spec:
    """What a method knows about the data: shapes, and the user's own action units.

    Inside fidec actions lie in [-1, 1]. `action_low` and `action_high` are the bounds that -1 and 1 stand
    for; None means that the data was in [-1, 1] already. For images `observation_shape` is what a method gets,
    (height, width, channels) of `frame_stack` frames; the specification of a data set is that of single frames.
    With `observation_mean` and `observation_std` a method gets normalised observations (`Method.build`).

    An action of a method is a chunk of `chunk` steps, side by side; `action_dim` is the dimension of the chunk. A
    policy plays the first `replan` steps of a chunk before it chooses the next one. With `ensemble`, the action of a
    step is a mean over all chunks that have the step (`fidec.train.chunks`).
    """

    observation_shape: tuple[int, ...]
    action_dim: int
    observation_dtype: str = "float32"
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    frame_stack: int = 1
    observation_mean: tuple[float, ...] | None = None
    observation_std: tuple[float, ...] | None = None
    chunk: int = 1
    replan: int = 1
    ensemble: float | None = None

    @property
    def step_dim(self) -> int:
        """Dimensions of the action of one step."""
        return self.action_dim // self.chunk

    @property
    def images(self) -> bool:
        """Whether observations are images."""
        return len(self.observation_shape) == 3

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The lowest and the highest actions of a step, in the units that the data came in."""
        return self.action_low or (-1.0,) * self.step_dim, self.action_high or (1.0,) * self.step_dim

    def normalise(self, observations: ArrayLike) -> ArrayLike:
        """(o - mean) / std, or the observations as they are if the specification has no statistics."""
        if self.observation_mean is None:
            return observations
        mean, std = (np.asarray(each, np.float32) for each in (self.observation_mean, self.observation_std))
        return (observations - mean) / std

    def stacked(self, count: int) -> Spec:
        """What a method sees of this data if `count` frames make an observation; vectors stay as they are."""
        if not self.images:
            return self
        *size, channels = self.observation_shape
        return replace(self, observation_shape=(*size, count * channels), frame_stack=count)

    def chunked(self, chunk: int, replan: int | None = None, ensemble: float | None = None) -> Spec:
        """What a method sees of this data if the actions of `chunk` steps are chosen together."""
        replan = chunk if replan is None else replan
        if not 1 <= replan <= chunk:
            raise ConfigError(f"replan must lie between 1 and chunk, {chunk}, not {replan}")
        if ensemble is not None and not (replan < chunk and abs(ensemble) < float("inf")):
            raise ConfigError(
                f"ensemble {ensemble} needs a finite number, and chunks that overlap: replan {replan} has to be less "
                f"than chunk {chunk}"
            )
        return replace(self, action_dim=chunk * self.step_dim, chunk=chunk, replan=replan, ensemble=ensemble)

    def played(self, replan: int | None = None, ensemble: float | None = None) -> Spec:
        """The same policy, with other choices for how its chunks are played; None keeps its own."""
        return self.chunked(
            self.chunk,
            self.replan if replan is None else replan,
            self.ensemble if ensemble is None else ensemble,
        )

    def steps_of(self, actions: np.ndarray) -> np.ndarray:
        """Chunks (..., action_dim) as the actions of their steps, (..., chunk, step_dim)."""
        return actions.reshape(*actions.shape[:-1], self.chunk, self.step_dim)

    def to_user_units(self, actions: np.ndarray) -> np.ndarray:
        """Map actions of single steps from [-1, 1] to the units that the data came in."""
        if self.action_low is None or self.action_high is None:
            return actions
        low, high = np.asarray(self.action_low), np.asarray(self.action_high)
        return (low + (np.asarray(actions) + 1.0) * 0.5 * (high - low)).astype(np.float32)
