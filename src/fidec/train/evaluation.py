"""Evaluation of policies in environments: seeded episodes, rows, and summaries with intervals.

`Evaluator` has the environments. `PolicyEvaluation` is a saved policy with its environment and how it acts there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fidec import algos, rng
from fidec.console import Output
from fidec.data.memory import host_device
from fidec.envs.evaluation import EnvPool, Episode, compare, summarise
from fidec.envs.factory import EnvFactory, MakeEnv, factory_of
from fidec.envs.processes import EnvProcesses
from fidec.errors import ConfigError, EnvError, FidecError
from fidec.launch import env_processes, usable_cores
from fidec.parts import named
from fidec.store import files
from fidec.store.rundir import RunDirectory, check_links, is_run
from fidec.store.staging import local_run
from fidec.train.acting import AS_TRAINED, OF_A_CALL, PUBLISHED, ActOptions, episode_policy
from fidec.train.config import RunConfig
from fidec.train.policy import Policy, load_policy
from fidec.train.stored import read_config
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
        act: ActOptions = PUBLISHED,
        base: bool = False,
        first: int = 0,
        on_step: Callable[[], None] = lambda: None,
    ) -> Evaluation:
        """Evaluate the policy, or its base policy. The step enters its random numbers, and if `fresh` also the seeds.

        `first` is the number of the first episode: episodes 0 to 9 are those of two evaluations of five, at 0 and 5.
        `on_step` is called before every step of the environments. It may raise to stop the evaluation.
        """
        before, device = time.perf_counter(), host_device()
        key = rng.at(rng.stream(seed, "evaluate"), step)
        policy, key = jax.device_put((algorithm.policy(state), key), device)
        actor = episode_policy(algorithm, policy, key, self.spec, act, base=base)
        pool = self.start()

        def act_or_stop(observations, episodes, steps):
            on_step()
            if self._closed:
                raise Interrupted
            return actor(observations, episodes, steps)

        fresh = step if self.fresh else None
        episodes = pool.run(act_or_stop, self.episodes, seed, first=first, fresh=fresh)
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

    The bounds of actions were compared when the environments were made (`fidec.envs.wrappers.fitted`). Parts that the
    data does not have are named on stderr.
    """
    _check_parts(name, envs.observation_shape, spec)
    shapes, types = named("", envs.observation_shape), named("", envs.observation_dtype)
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
    parts, wanted = list(shape) if isinstance(shape, dict) else [], [part.name for part in spec.parts]
    if not wanted and parts:
        raise EnvError(
            f"the environment {name} has observations with the parts {', '.join(parts)}, but the data has a single "
            "array. Give the data the same parts (observations as a dictionary), or make one array of them, with "
            "gymnasium.wrappers.FlattenObservation"
        )
    if missing := [name for name in wanted if name not in parts]:
        there = f"it has {', '.join(parts)}" if parts else "its observations are a single array"
        raise EnvError(
            f"the environment {name} has no part {', '.join(map(repr, missing))} in its observations: {there}, the "
            f"data has {', '.join(wanted)}"
        )


# --- a saved policy


@dataclass(frozen=True)
class PolicyEvaluation:
    """A saved policy with the environment, seed and processes of its evaluation, and how it acts."""

    directory: Path
    policy: Policy
    env: EnvFactory
    seed: int
    envs: int
    timeout: float
    act: ActOptions = PUBLISHED
    fresh: bool = False
    """Whether the episodes are those of the evaluation at this step (`RunConfig.eval_seeds`)."""

    @classmethod
    def of(
        cls,
        directory: str | Path,
        act: ActOptions = AS_TRAINED,
        *,
        task: str | None = None,
        env: str | MakeEnv | None = None,
        seed: int | None = None,
        envs: int = 0,
        scale_actions: bool = False,
    ) -> PolicyEvaluation:
        """Of a run directory or a policy directory, also at a URL. What is not given is taken from the run.

        The data of the run is not needed, nor the package that reads it.
        """
        directory = local_run(directory)
        policy, config = load_policy(directory), RunConfig()
        if is_run(directory):
            config = read_config(RunDirectory.open(directory, read_only=True))
        declaration = ""
        if task is None and env is None:
            task = policy.info.get("task") or config.task
            env = policy.info.get("env") or config.env
            declaration = policy.info.get("declaration") or ""
        if policy.info.get("rendering") == "fast":
            raise ConfigError(
                f"{directory} was trained on images of --rendering fast, an option of older versions: environments "
                "draw other pixels now. Make the data again, and train again"
            )
        factory = factory_of(
            task,
            env,
            success_timing=policy.info.get("success_timing") or config.success_timing,
            declaration=declaration,
            scale_actions=scale_actions or bool(policy.info.get("scale_actions")),
            action_bounds=policy.info.get("action_bounds"),
        )
        if factory is None:
            raise ConfigError(
                f"{directory} was trained without an environment: name a --task, or a Gymnasium id with --env"
            )
        return cls(
            directory=directory,
            policy=policy,
            env=factory,
            seed=config.seed if seed is None else seed,
            envs=envs or config.eval_envs or env_processes(len(usable_cores())),
            timeout=config.eval_timeout,
            act=act.resolved(policy.act),
            fresh=seed is None and config.eval_seeds == "fresh",
        )

    @property
    def spec(self) -> Spec:
        """The specification of the policy, with the way in which its chunks are played."""
        return self.policy.spec.played(self.act.replan, self.act.ensemble)

    @property
    def step(self) -> int:
        """The training step that the policy is from."""
        return int(self.policy.info.get("step", 0))

    @property
    def kind(self) -> str:
        """The name of the policy in results: "refined", or "policy" if the method refines no base policy."""
        return "policy" if self.policy.algorithm.act_with_base is None else "refined"

    def facts(self) -> dict[str, Any]:
        """What is evaluated where: the first entries of a result."""
        facts: dict[str, Any] = {
            "directory": str(self.directory),
            "environment": self.env.name,
            "step": self.step,
            "seed": self.seed,
        }
        if self.spec.chunk > 1:
            facts |= {"chunk": self.spec.chunk, "replan": self.spec.replan}
            facts |= {} if self.spec.ensemble is None else {"ensemble": self.spec.ensemble}
        return facts | ({"note": self.env.note} if self.env.note else {})

    def evaluator(self, episodes: int) -> Evaluator:
        """The environments, for this many episodes of each evaluation."""
        settings = {"envs": self.envs, "episodes": episodes, "fresh": self.fresh, "timeout": self.timeout}
        return Evaluator(self.env, self.spec, **settings)

    def evaluate(self, episodes: int, *, base: bool = False) -> dict[str, Any]:
        """Summaries and episode rows. With `base` also those of the behaviour flow, and the paired gain."""
        if base and self.kind != "refined":
            raise ConfigError(
                f"{self.policy.algo} has no base policy to compare with: its actions are not refined ones. "
                "Evaluate it without --base"
            )
        result = self.facts() | {name: getattr(self.act, name) for name in OF_A_CALL}
        policy, rows = (self.policy.algorithm, self.policy.state, self.step, self.seed), {}
        with self.evaluator(episodes) as evaluator:
            for kind in ("base", self.kind) if base else (self.kind,):
                result[kind], rows[kind], _ = evaluator(*policy, act=self.act, base=kind == "base")
        if base:
            result["gain"] = files.to_builtin(compare(rows["base"], rows[self.kind])._asdict())
        result["episodes"] = {kind: [episode.row() for episode in episodes] for kind, episodes in rows.items()}
        return result

    def record(self, path: str | Path, episodes: int = 3) -> str | None:
        """Write an mp4 of the first episodes of `evaluate`.

        The reason if there is none: an evaluation is valid without its video, and must not be lost.
        """
        from fidec.envs.video import record

        key = rng.at(rng.stream(self.seed, "evaluate"), self.step)
        try:
            actor = episode_policy(self.policy.algorithm, self.policy.state, key, self.spec, self.act)
            make_env = self.env.function(self.policy.spec, render_mode="rgb_array")
            fresh, numbers = self.step if self.fresh else None, range(episodes)
            record(make_env, actor, Path(path), name=self.env.name, seed=self.seed, fresh=fresh, episodes=numbers)
        except FidecError as error:
            return str(error)
        return None


def save_result(directory: Path, name: str, result: dict[str, Any]) -> str | None:
    """Write a result into a run directory, where `fidec report` finds it. A policy directory gets none.

    The reason if it cannot be written: the result is valid without its file, and must not be lost.
    """
    if not is_run(directory):
        return None
    try:
        check_links(directory)
        with files.writing(directory / name, "the result"):
            files.write_json(directory / name, result)
    except FidecError as error:
        return str(error)
    return None


def without_result(played: Mapping[str, Sequence[Mapping[str, Any]]]) -> str | None:
    """Which of these evaluations have no valid episode, and why; None if all have. They are rows by name."""
    failed = {name: rows for name, rows in played.items() if all(row["status"] != "ok" for row in rows)}
    if not failed:
        return None
    row = next(iter(failed.values()))[0]
    return (
        f"no valid episode of {'; '.join(failed)}. The first {row['status']}: {row['detail']}. Repair the "
        "environment and evaluate again"
    )
