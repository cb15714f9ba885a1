"""Evaluation of a policy in an environment: seeded episodes, rows, and a summary with intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fidec import algos, rng
from fidec.envs.evaluate import summarise
from fidec.envs.factory import EnvFactory
from fidec.envs.pool import EnvPool, Episode
from fidec.envs.processes import EnvProcesses
from fidec.errors import EnvError
from fidec.train.policy import lane_actor
from fidec.types import Spec


class Evaluator:
    """Environments that wait for policies. They are started by `start` or by the first evaluation."""

    def __init__(
        self,
        env: EnvFactory,
        spec: Spec,
        *,
        envs: int,
        episodes: int,
        seed: int,
        fresh: bool = False,
        timeout: float = 60.0,
    ):
        self.env, self.spec, self.episodes, self.seed, self.fresh = env, spec, episodes, seed, fresh
        self._envs, self._timeout = min(envs, episodes), timeout
        self._pool: EnvPool | None = None

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def start(self) -> EnvPool:
        """Start the environments if they are not running, and check that they fit the data."""
        if self._pool is None:
            make_env = self.env.function(self.spec.frame_stack)
            self._pool = EnvPool(make_env, self._envs, name=self.env.name, step_timeout=self._timeout)
            check_spaces(self.env.name, self._pool, self.spec)
        return self._pool

    def __call__(
        self,
        algorithm: algos.Algorithm,
        state: Any,
        step: int,
        *,
        candidates: int = 1,
        base: bool = False,
        noise: float = 1.0,
        on_step: Callable[[], None] | None = None,
    ) -> tuple[dict[str, Any], list[Episode]]:
        """(summary, episodes). The step enters the policy's random numbers, and the environments' seeds if `fresh`.

        `on_step` is called before every step of the environments. It may raise to stop the evaluation.
        """
        key, choices = rng.at(rng.stream(self.seed, "evaluate"), step), {"candidates": candidates, "base": base}
        actor = lane_actor(algorithm, algorithm.policy(state), key, noise=noise, **choices)
        pool = self.start()

        def act(observations, episodes, steps):
            if on_step is not None:
                on_step()
            return actor(observations, episodes, steps)

        episodes = pool.run(act, self.episodes, self.seed, fresh=step if self.fresh else None)
        summary = summarise(episodes)
        summary["score"] = self.env.score(summary)
        return summary, episodes


def check_spaces(name: str, envs: EnvProcesses, spec: Spec) -> None:
    """Raise an EnvError if the environments' observations or actions are not those of the data."""
    low, high = spec.bounds
    frames = f" ({spec.frame_stack} frames stacked)" if spec.frame_stack > 1 else ""
    pairs = [
        ("observations of shape", tuple(envs.observation_shape), tuple(spec.observation_shape)),
        ("observations of type", envs.observation_dtype, spec.observation_dtype),
        ("actions of dimension", envs.action_dim, spec.action_dim),
    ]
    for what, of_env, of_data in pairs:
        if of_env != of_data:
            raise EnvError(f"the environment {name} has {what} {of_env}, but the data has {of_data}{frames}")
    if not (np.allclose(low, envs.action_low) and np.allclose(high, envs.action_high)):
        raise EnvError(
            f"the environment {name} has actions from {envs.action_low} to {envs.action_high}, but the data has "
            f"actions from {list(low)} to {list(high)}. The bounds must be equal: give the data's with action_low "
            "and action_high (of dataset_from_arrays, or as columns of an npz file), or change the environment's "
            "with gymnasium.wrappers.RescaleAction"
        )
