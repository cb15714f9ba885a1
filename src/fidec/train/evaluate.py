"""Evaluation of a policy in its task's environment: seeded episodes, rows, and a summary with intervals."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from fidec import algos, rng
from fidec.envs.evaluate import summarise
from fidec.envs.frames import stacked
from fidec.envs.make import make
from fidec.envs.pool import EnvPool, Episode
from fidec.envs.processes import EnvProcesses
from fidec.envs.scores import normalise
from fidec.errors import EnvError
from fidec.train.policy import lane_actor
from fidec.types import Spec


def environment(task: str, spec: Spec, **options: str) -> Callable[[], gymnasium.Env]:
    """How to make the environment of a task, in any process, for a policy of this specification.

    The `options` are those of `fidec.envs.make.make`: `success_timing` and `rendering`.
    """
    single = partial(make, task, **options)
    return single if spec.frame_stack == 1 else partial(stacked, single, spec.frame_stack)


class Evaluator:
    """Environments of one task that wait for policies, from `start` or the first evaluation on.

    `success_timing` is which state OGBench judges, `rendering` how its pictures are drawn (`fidec.envs.make.make`).
    """

    def __init__(
        self,
        task: str,
        spec: Spec,
        *,
        envs: int,
        episodes: int,
        seed: int,
        timeout: float = 60.0,
        success_timing: str = "pre",
        rendering: str = "exact",
    ):
        self.task, self.spec, self.episodes, self.seed = task, spec, episodes, seed
        self._envs, self._timeout = min(envs, episodes), timeout
        self._options = {"success_timing": success_timing, "rendering": rendering}
        self._pool: EnvPool | None = None

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def start(self) -> EnvPool:
        """Start the environments, if they are not there yet, and check that they fit the data."""
        if self._pool is None:
            make_env = environment(self.task, self.spec, **self._options)
            self._pool = EnvPool(make_env, self._envs, step_timeout=self._timeout)
            check_fit(self.task, self._pool, self.spec)
        return self._pool

    def __call__(
        self,
        algorithm: algos.Algorithm,
        state: Any,
        step: int,
        *,
        candidates: int = 1,
        base: bool = False,
        on_step: Callable[[], None] | None = None,
    ) -> tuple[dict[str, Any], list[Episode]]:
        """(summary, episodes). The step enters the policy's random numbers, not the environments' seeds.

        `on_step` is called before every step of the environments and may raise to give up the evaluation.
        """
        pool = self.start()
        key = rng.at(rng.stream(self.seed, "evaluate"), step)
        actor = lane_actor(algorithm, algorithm.policy(state), key, candidates=candidates, base=base)

        def act(observations, episodes, steps):
            if on_step is not None:
                on_step()
            return actor(observations, episodes, steps)

        episodes = pool.run(act, self.episodes, self.seed)
        summary = summarise(episodes)
        summary["score"] = score(self.task, summary)
        return summary, episodes


def score(task: str, summary: dict[str, Any]) -> float | None:
    """The number that a table prints: D4RL's normalised return where there is one, else success in percent.

    An environment without a notion of success is scored by its return.
    """
    success, mean = summary["success"], summary["return"]
    normalised = None if mean is None else normalise(task, mean)
    if normalised is not None:
        return normalised
    return mean if success is None else 100.0 * success


def check_fit(task: str, pool: EnvProcesses, spec: Spec) -> None:
    """Refuse environments whose observations or actions are not those of the data."""
    found = (tuple(pool.observation_shape), pool.action_dim)
    expected = (tuple(spec.observation_shape), spec.action_dim)
    if found != expected:
        raise EnvError(
            f"{task} has observations {found[0]} and {found[1]}-dimensional actions, the data has {expected[0]} "
            f"and {expected[1]}: they do not belong together"
            + (f" (with {spec.frame_stack} frames stacked)" if spec.frame_stack > 1 else "")
        )
    if pool.observation_dtype != spec.observation_dtype:
        raise EnvError(f"{task} has {pool.observation_dtype} observations, the data {spec.observation_dtype} ones")
    low, high = spec.bounds
    if not (np.allclose(low, pool.action_low) and np.allclose(high, pool.action_high)):
        raise EnvError(
            f"{task} takes actions from {pool.action_low} to {pool.action_high}, the data from {list(low)} to "
            f"{list(high)}: the same number would mean another action"
        )
