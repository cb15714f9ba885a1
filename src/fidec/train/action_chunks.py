"""Play chunks of actions: a policy that chooses several steps at once is asked again only after some of them.

Every `replan` steps a new chunk is chosen. Step t is then in several chunks, if they are longer than that. Without
`ensemble` the newest one is played. With `ensemble` = m the action is their mean with the weights exp(-m i), i = 0
for the oldest (temporal ensembling, as in ACT): m > 0 prefers old chunks, m < 0 new ones, m = 0 neither.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fidec.parts import Observations, arrays_of, map_parts
from fidec.types import Spec


def weights(spec: Spec, steps: np.ndarray) -> np.ndarray:
    """(lanes, kept): the weight of each kept chunk at these steps of an episode, the newest chunk first."""
    ages = np.arange(kept(spec))
    usable = (ages <= steps[:, None] // spec.replan) & (
        steps[:, None] % spec.replan + ages * spec.replan < spec.chunk
    )
    number = usable.sum(axis=1, keepdims=True)  # i of the newest is number - 1
    exponents = np.where(usable, -(spec.ensemble or 0.0) * (number - 1 - ages), -np.inf)
    raw = np.exp(exponents - exponents.max(axis=1, keepdims=True))  # relative to the largest, so that no m overflows
    return raw / raw.sum(axis=1, keepdims=True)


def kept(spec: Spec) -> int:
    """The number of chunks that have the same step."""
    return 1 if spec.ensemble is None else -(-spec.chunk // spec.replan)


def mix(spec: Spec, chunks: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """(lanes, step_dim): the actions of these steps, from the last chunks (lanes, kept, action_dim) of each lane."""
    at = (steps % spec.replan)[:, None] + spec.replan * np.arange(kept(spec))
    rows, ages = np.arange(len(at))[:, None], np.arange(kept(spec))
    actions = spec.steps_of(chunks)[rows, ages, np.minimum(at, spec.chunk - 1)]
    if spec.ensemble is None:
        return actions[:, 0]
    return np.einsum("lk,lkd->ld", weights(spec, steps), actions).astype(np.float32)


class ChunkExecutor:
    """The actions of several lanes, each from its lane's last chunks. Every `replan` steps a new chunk is chosen.

    An action depends only on its own lane: on its observations at the steps where its chunks were chosen.
    """

    def __init__(self, spec: Spec, lanes: int):
        self._spec = spec
        self._chunks = np.zeros((lanes, kept(spec), spec.action_dim), np.float32)  # the newest first
        self._chosen = np.full((lanes, 2), -1)  # the episode and the step at which each newest chunk was chosen
        self._seen: Observations = None  # and the observation: that of a lane that has not answered yet is old

    def position(self) -> list[Any]:
        """The chunks that are played, for a checkpoint."""
        return [self._chunks.tolist(), self._chosen.tolist()]

    def restore(self, position: list[Any]) -> None:
        chunks, chosen = position
        self._chunks, self._chosen = np.array(chunks, np.float32).reshape(self._chunks.shape), np.array(chosen)

    def __call__(
        self, choose: Callable[[], Any], observations: Observations, episodes: np.ndarray, steps: np.ndarray
    ) -> np.ndarray:
        """The actions of this step; `choose()` gives chunks for all lanes, and is called if one needs a new one."""
        places = np.stack([episodes, steps], axis=1)
        here = (self._chosen == places).all(axis=1)
        known = here.copy()
        if self._seen is not None:
            for old, new in zip(arrays_of(self._seen), arrays_of(observations), strict=True):
                known &= (old == new).reshape(len(known), -1).all(axis=1)
        due = (steps % self._spec.replan == 0) & ~known
        if due.any():
            older = due & ~here  # a chunk that was chosen at this place from an old observation is replaced
            self._chunks[older, 1:] = self._chunks[older, :-1]
            self._chunks[due, 0] = np.asarray(choose())[due]
            self._chosen[due], self._seen = places[due], map_parts(np.copy, observations)
        return mix(self._spec, self._chunks, steps)


class Player:
    """A policy in a control loop: `player(observation)` gives the action of one step.

    It asks the policy for a new chunk every `replan` steps, and does not look at the observations between.
    `player.reset()` begins an episode.
    """

    def __init__(self, policy: Callable[[Any], np.ndarray], spec: Spec):
        self._policy, self._spec = policy, spec
        self.reset()

    def reset(self) -> None:
        self._chunks: list[np.ndarray] = []  # the newest first, (..., chunk, step_dim)
        self._step = 0

    def __call__(self, observation: Observations) -> np.ndarray:
        spec = self._spec
        if self._step % spec.replan == 0:
            self._chunks = [self._policy(observation), *self._chunks][: kept(spec)]
        if spec.chunk == 1:
            action = self._chunks[0]
        else:
            leading = self._chunks[0].shape[:-2]
            missing = [self._chunks[0]] * (kept(spec) - len(self._chunks))  # without weight
            last = np.stack([chunk.reshape(-1, spec.action_dim) for chunk in [*self._chunks, *missing]], axis=1)
            action = mix(spec, last, np.full(len(last), self._step)).reshape(*leading, spec.step_dim)
        self._step += 1
        return action
