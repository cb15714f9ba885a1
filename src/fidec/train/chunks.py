"""Play chunks of actions: a policy that chooses several steps at once is asked again only after some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fidec.parts import Observations, arrays_of, map_parts
from fidec.types import Spec


class OpenLoop:
    """The actions of several lanes, each from its lane's last chunk. Every `replan` steps a new chunk is chosen.

    An action depends only on its own lane: on its observation at the step where its chunk was chosen.
    """

    def __init__(self, spec: Spec, lanes: int):
        self._spec = spec
        self._chunks = np.zeros((lanes, spec.action_dim), np.float32)
        self._chosen = np.full((lanes, 2), -1)  # the episode and the step at which each chunk was chosen
        self._seen: Observations = None  # and the observation: that of a lane that has not answered yet is old

    def position(self) -> list[Any]:
        """The chunks that are played, for a checkpoint."""
        return [self._chunks.tolist(), self._chosen.tolist()]

    def restore(self, position: list[Any]) -> None:
        chunks, chosen = position
        self._chunks, self._chosen = np.array(chunks, np.float32), np.array(chosen)

    def __call__(
        self, choose: Callable[[], Any], observations: Observations, episodes: np.ndarray, steps: np.ndarray
    ) -> np.ndarray:
        """The actions of this step; `choose()` gives chunks for all lanes, and is called if one needs a new one."""
        at, places = steps % self._spec.replan, np.stack([episodes, steps], axis=1)
        known = (self._chosen == places).all(axis=1)
        if self._seen is not None:
            for old, new in zip(arrays_of(self._seen), arrays_of(observations), strict=True):
                known &= (old == new).reshape(len(known), -1).all(axis=1)
        due = (at == 0) & ~known
        if due.any():
            self._chunks[due] = np.asarray(choose())[due]
            self._chosen[due], self._seen = places[due], map_parts(np.copy, observations)
        return self._spec.steps_of(self._chunks)[np.arange(len(at)), at]


class Player:
    """A policy in a control loop: `player(observation)` gives the action of one step.

    It plays the first `replan` actions of each chunk, without looking at the observations between, and then asks the
    policy again. `player.reset()` begins an episode.
    """

    def __init__(self, policy: Callable[..., np.ndarray], chunk: int, replan: int, **how: Any):
        self._policy, self._chunk, self._replan, self._how = policy, chunk, replan, how
        self.reset()

    def reset(self) -> None:
        self._actions, self._step = np.zeros(0), 0

    def __call__(self, observation: Observations) -> np.ndarray:
        if self._step % self._replan == 0:
            self._actions, self._step = self._policy(observation, **self._how), 0
        action = self._actions[..., self._step, :] if self._chunk > 1 else self._actions
        self._step += 1
        return action
