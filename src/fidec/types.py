"""The types that all packages share. This module does not import JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
# The fields of a specification that the data decides.
OF_DATA = ("observation_shape", "observation_dtype", "parts", "action_dim", "bounds")


class Batch(NamedTuple):
    """Transitions (s, a, r, m, s', a'), stacked along the leading axis.

    Observations are an array, or a dictionary of arrays by name: a tree, as JAX sees it.
    `masks` is 1 where the value of s' may be bootstrapped and 0 where the task ended there. `next_actions`
    is the data's action at s'; at the end of a trajectory, where there is none, it repeats `actions`. `returns`,
    the discounted return from s on, is given to methods that ask for it (`Method.needs_returns`). `proposals` is what
    a frozen policy proposes at s' (`Algorithm.propose`).

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
class Part:
    """One part of an observation as a method gets it: a vector, or the image of a camera."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def image(self) -> bool:
        """Whether it is an image: (height, width, channels)."""
        return len(self.shape) == 3

    def __str__(self) -> str:
        return f"{self.name} {self.shape} {self.dtype}".strip()

    def normalise(self, values: ArrayLike) -> ArrayLike:
        """(o - mean) / std, or the values as they are if the part has no statistics."""
        if self.mean is None:
            return values
        mean, std = (np.asarray(each, np.float32) for each in (self.mean, self.std))
        return (values - mean) / std

    def stacked(self, count: int) -> Part:
        """This many successive observations side by side, along the last axis."""
        mean, std = (None if each is None else count * each for each in (self.mean, self.std))
        return replace(self, shape=(*self.shape[:-1], count * self.shape[-1]), mean=mean, std=std)


@dataclass(frozen=True)
class Spec:
    """What a method knows about the data: shapes, and the user's own action units.

    Inside fidec actions lie in [-1, 1]. `action_low` and `action_high` are the bounds that -1 and 1 stand
    for; None means that the data was in [-1, 1] already.

    An observation is a single array of `observation_shape`, or a dictionary of arrays: `parts`, sorted by name;
    `observation_shape` is then empty. `inputs` has the parts in both cases. Shapes are those of what a method gets:
    of an image `frame_stack` successive frames along the channels, of a vector the last `history` vectors side by
    side. The specification of a data set has single ones. With a mean and a standard deviation a method gets
    normalised vectors (`Method.build`).

    An action of a method is a chunk of `chunk` steps, side by side; `action_dim` is the dimension of the chunk. A
    policy plays the first `replan` steps of a chunk before it chooses the next one. With `ensemble`, the action of a
    step is a mean over all chunks that have the step (`fidec.train.action_chunks`). With `delay`, an observation is
    that many steps old when its action begins, and contains the actions since then (`fidec.data.transforms`).
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
    history: int = 1
    delay: int = 0
    parts: tuple[Part, ...] = ()

    @property
    def step_dim(self) -> int:
        """Dimensions of the action of one step."""
        return self.action_dim // self.chunk

    @property
    def inputs(self) -> tuple[Part, ...]:
        """The parts of an observation. A single array is one part without a name."""
        mean, std = self.observation_mean, self.observation_std
        return self.parts or (Part("", self.observation_shape, self.observation_dtype, mean, std),)

    @property
    def images(self) -> bool:
        """Whether observations are images, or have a part that is one."""
        return any(part.image for part in self.inputs)

    @property
    def normalised(self) -> bool:
        """Whether a part has statistics."""
        return any(part.mean is not None for part in self.inputs)

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The lowest and the highest actions of a step, in the units that the data came in."""
        return self.action_low or (-1.0,) * self.step_dim, self.action_high or (1.0,) * self.step_dim

    def differences(self, expected: Spec, names: Sequence[str] = OF_DATA) -> list[str]:
        """What differs from another specification, in words such as "action dim 2 instead of 3"."""
        found = []
        for name in names:
            ours, theirs = getattr(self, name), getattr(expected, name)
            if name == "parts":  # without their statistics
                ours, theirs = (", ".join(map(str, parts)) or "none" for parts in (ours, theirs))
            if name == "bounds" and (self.step_dim != expected.step_dim or np.allclose(ours, theirs)):
                continue
            if ours != theirs:
                found.append(f"{name.replace('_', ' ')} {str(ours)[:200]} instead of {str(theirs)[:200]}")
        return found

    def stack_of(self, part: Part) -> int:
        """How many successive observations a part has: frames of images, or vectors."""
        return self.frame_stack if part.image else self.history

    def newest(self, part: Part) -> int:
        """The width of the newest of these along the last axis."""
        return part.shape[-1] // self.stack_of(part)

    def observations(self, function: Callable[[Part], Any]) -> Any:
        """What `function` gives for each part: one value, or a dictionary by name."""
        return {part.name: function(part) for part in self.parts} if self.parts else function(self.inputs[0])

    def zeros(self, *leading: int) -> Any:
        """Observations of zeros, with these leading axes."""
        return self.observations(lambda part: np.zeros((*leading, *part.shape), part.dtype))

    def map(self, function: Callable[[Part, Any], Any], observations: Any) -> Any:
        """`function` of each part and its array."""
        return self.observations(lambda part: function(part, observations[part.name] if self.parts else observations))

    def leading(self, observations: Any) -> tuple[int, ...]:
        """The leading axes of observations: () for a single one."""
        part = self.inputs[0]
        shape = (observations[part.name] if self.parts else observations).shape
        return tuple(shape[: len(shape) - len(part.shape)])

    def normalise(self, observations: Any) -> Any:
        """(o - mean) / std of each part with statistics."""
        return self.map(Part.normalise, observations) if self.normalised else observations

    def replace_inputs(self, parts: Sequence[Part], **others: Any) -> Spec:
        """The specification with other parts, or with another single array."""
        if self.parts:
            return replace(self, parts=tuple(parts), **others)
        (one,) = parts
        single = {"observation_shape": one.shape, "observation_dtype": one.dtype}
        return replace(self, **single, observation_mean=one.mean, observation_std=one.std, **others)

    def stacked(self, frame_stack: int = 1, history: int = 1) -> Spec:
        """What a method sees of this data: so many frames of images, and so many successive vectors."""
        counts = {
            "frame_stack": frame_stack if self.images else 1,
            "history": history if any(not part.image for part in self.inputs) else 1,
        }
        spec = replace(self, **counts)
        return self.replace_inputs([part.stacked(spec.stack_of(part)) for part in self.inputs], **counts)

    @property
    def joined(self) -> Spec:
        """What networks see: several vectors are one, in the order of their names. With images the parts stay."""
        if not self.parts or self.images:
            return self
        width = sum(part.shape[0] for part in self.parts)
        return replace(self, observation_shape=(width,), parts=())

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
