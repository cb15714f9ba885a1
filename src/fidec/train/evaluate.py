"""Evaluation of a policy in an environment: seeded episodes, rows, and a summary with intervals."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fidec import algos, rng
from fidec.console import Output
from fidec.data.feed import host_device
from fidec.envs.evaluate import summarise
from fidec.envs.factory import EnvFactory
from fidec.envs.pool import EnvPool, Episode
from fidec.envs.processes import EnvProcesses
from fidec.errors import EnvError
from fidec.parts import named
from fidec.train.acting import lane_actor
from fidec.types import Spec


class Interrupted(Exception):
    """A signal arrived during an evaluation, or the evaluator was closed."""


class Evaluation(NamedTuple):
    """A summary, the episodes in it, and the seconds that they took."""

    summary: dict[str, Any]
    episodes: list[Episode]
    seconds: float


class Evaluator:
    """Environments that wait for policies. They are started by `start` or by the first evaluation.

    An evaluation acts on the host's CPU, also if the networks are trained on another device. So it has the same
    results in the background, where that device is busy.
    """

    def __init__(
        self,
        env: EnvFactory,
        spec: Spec,
        *,
        envs: int,
        episodes: int,
        fresh: bool = False,
        timeout: float = 60.0,
    ):
        self.env, self.spec, self.episodes, self.fresh = env, spec, episodes, fresh
        self._envs, self._timeout = min(envs, episodes), timeout
        self._pool: EnvPool | None = None
        self._thread = ThreadPoolExecutor(1, "fidec-evaluation")  # one evaluation at a time
        self._closed = False

    def __enter__(self) -> Evaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True  # ends an evaluation in the background at its next step
        if self._pool is not None:
            self._pool.close()  # also if an environment hangs in that step
        self._thread.shutdown(cancel_futures=True)
        self._pool = None

    def start(self) -> EnvPool:
        """Start the environments if they are not running, and check that they fit the data."""
        if self._pool is None:
            make_env = self.env.function(self.spec)
            self._pool = EnvPool(make_env, self._envs, name=self.env.name, step_timeout=self._timeout)
            check_spaces(self.env.name, self._pool, self.spec)
        return self._pool

    def __call__(
        self,
        algorithm: algos.Algorithm,
        state: Any,
        step: int,
        seed: int,
        *,
        candidates: int = 1,
        base: bool = False,
        noise: float = 1.0,
        strength: float = 1.0,
        first: int = 0,
        on_step: Callable[[], None] = lambda: None,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> Evaluation:
        """Evaluate. The step enters the policy's random numbers, and the environments' seeds if `fresh`.

        `first` is the number of the first episode: episodes 0 to 9 are those of two evaluations of five, at 0 and 5.
        `on_step` is called before every step of the environments. It may raise to stop the evaluation. `on_episode`
        is called with each episode when it ends.
        """
        before, device = time.perf_counter(), host_device()
        key = rng.at(rng.stream(seed, "evaluate"), step)
        policy, key = jax.device_put((algorithm.policy(state), key), device)
        how = {"candidates": candidates, "base": base, "noise": noise, "strength": strength}
        actor = lane_actor(algorithm, policy, key, self.spec, **how)
        pool = self.start()

        def act(observations, episodes, steps):
            on_step()
            if self._closed:
                raise Interrupted
            return actor(observations, episodes, steps)

        fresh = step if self.fresh else None
        episodes = pool.run(act, self.episodes, seed, first=first, fresh=fresh, progress=on_episode)
        summary = summarise(episodes)
        summary["score"] = self.env.score(summary)
        return Evaluation(summary, episodes, time.perf_counter() - before)

    def in_background(
        self, algorithm: algos.Algorithm, state: Any, step: int, seed: int, **how: Any
    ) -> Future[Evaluation]:
        """Evaluate a copy of the policy in a thread, after those that were started before."""
        copied = jax.tree.map(jnp.copy, algorithm.policy(state))  # training will reuse the memory of the state
        return self._thread.submit(self, algorithm, copied, step, seed, **how)


def check_spaces(name: str, envs: EnvProcesses, spec: Spec) -> None:
    """Raise an EnvError if the environments' observations or actions are not those of the data.

    The bounds of actions were compared when the environments were made (`fidec.envs.control.fitted`). Parts that the
    data does not have are named on stderr.
    """
    _check_parts(name, envs.observation_shape, spec)
    shapes, types = (named("", each) for each in (envs.observation_shape, envs.observation_dtype))
    for part, key in zip(spec.inputs, shapes, strict=True):
        count, of_part = spec.stack_of(part), f" in the part {part.name!r}" if part.name else ""
        stacked = f" ({count} {'frames' if part.image else 'vectors'} stacked)" if count > 1 else ""
        for what, of_env, of_data in (("shape", shapes[key], part.shape), ("type", types[key], part.dtype)):
            if of_env != of_data:
                raise EnvError(
                    f"the environment {name} has observations of {what} {of_env}{of_part}, but the data has "
                    f"{of_data}{stacked}"
                )
    if envs.action_dim != spec.step_dim:
        raise EnvError(
            f"the environment {name} has actions of dimension {envs.action_dim}, but the data has {spec.step_dim}"
        )
    if envs.unused_parts:
        unused = ", ".join(envs.unused_parts)
        Output().print(f"the policy does not use these parts of the observations of {name}: {unused}")


def _check_parts(name: str, shape: Any, spec: Spec) -> None:
    """The environment has the parts of the data."""
    found, wanted = list(shape) if isinstance(shape, dict) else [], [part.name for part in spec.parts]
    if not wanted and found:
        raise EnvError(
            f"the environment {name} has observations with the parts {', '.join(found)}, but the data has a single "
            "array. Give the data the same parts (observations as a dictionary), or make one array of them, with "
            "gymnasium.wrappers.FlattenObservation"
        )
    if missing := [each for each in wanted if each not in found]:
        there = f"it has {', '.join(found)}" if found else "its observations are a single array"
        raise EnvError(
            f"the environment {name} has no part {', '.join(map(repr, missing))} in its observations: {there}, the "
            f"data has {', '.join(wanted)}"
        )
