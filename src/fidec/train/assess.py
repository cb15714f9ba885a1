"""Assessing a finished policy: base and refined on the same seeded episodes, and a video."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fidec import rng
from fidec.envs.evaluate import compare
from fidec.envs.make import find_task
from fidec.errors import ConfigError
from fidec.store import files
from fidec.store.rundir import RunDirectory
from fidec.train.config import RunConfig, resolve
from fidec.train.evaluate import Evaluator, environment
from fidec.train.policy import Policy, lane_actor, load_policy


@dataclass(frozen=True)
class Assessment:
    """A policy with the task, seed and processes to assess it with."""

    directory: Path
    policy: Policy
    task: str
    seed: int
    envs: int
    candidates: int
    timeout: float
    success_timing: str = "pre"
    rendering: str = "exact"

    @classmethod
    def of(
        cls,
        directory: str | Path,
        *,
        task: str | None = None,
        seed: int | None = None,
        envs: int = 0,
        candidates: int | None = None,
    ) -> Assessment:
        """Of a run directory or a policy directory; what is left open is taken from the run."""
        directory = Path(directory)
        policy = load_policy(directory)
        config = RunConfig()
        if (directory / "run.json").exists():
            config = RunConfig.from_json(RunDirectory.open(directory, read_only=True).read_config())
        task = task or policy.info.get("task") or config.task
        if task is None:
            raise ConfigError(f"{directory} does not say which task it is for: name one with --task")
        find_task(task)  # here, not in a worker process that would be started three times
        return cls(
            directory=directory,
            policy=policy,
            task=task,
            seed=config.seed if seed is None else seed,
            envs=envs or resolve(config).eval_envs,
            candidates=candidates or config.candidates,
            timeout=config.eval_timeout,
            success_timing=policy.info.get("success_timing") or config.success_timing,
            rendering=policy.info.get("rendering") or config.rendering or "exact",
        )

    @property
    def step(self) -> int:
        """The training step that the policy is from."""
        return int(self.policy.info.get("step", 0))

    def evaluate(self, episodes: int, *, base: bool = False) -> dict[str, Any]:
        """Summaries and episode rows; with `base` also those of the behaviour flow, and the paired gain."""
        result: dict[str, Any] = {
            "directory": str(self.directory),
            "task": self.task,
            "step": self.step,
            "seed": self.seed,
        }
        rows = {}
        with Evaluator(
            self.task,
            self.policy.spec,
            envs=self.envs,
            episodes=episodes,
            seed=self.seed,
            timeout=self.timeout,
            success_timing=self.success_timing,
            rendering=self.rendering,
        ) as evaluator:
            for kind in ("base", "refined") if base else ("refined",):
                # The base policy is a single draw: picking among several by value would not be the behaviour.
                result[kind], rows[kind] = evaluator(
                    self.policy.algorithm,
                    self.policy.state,
                    self.step,
                    candidates=1 if kind == "base" else self.candidates,
                    base=kind == "base",
                )
        if base:
            result["gain"] = files.to_builtin(compare(rows["base"], rows["refined"])._asdict())
        result["episodes"] = {kind: [episode.row() for episode in found] for kind, found in rows.items()}
        return result

    def record(self, path: str | Path, episodes: int = 3) -> None:
        """An mp4 of the first episodes of `evaluate`. EnvError where there is no headless OpenGL."""
        from fidec.envs.video import record

        key = rng.at(rng.stream(self.seed, "evaluate"), self.step)
        actor = lane_actor(self.policy.algorithm, self.policy.state, key, candidates=self.candidates)
        make_env = environment(
            self.task, self.policy.spec, success_timing=self.success_timing, rendering=self.rendering
        )
        record(make_env, actor, Path(path), seed=self.seed, episodes=range(episodes))
