"""Evaluation of a saved policy, with its base policy on the same seeded episodes, and a video."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fidec import rng
from fidec.envs.evaluate import compare
from fidec.envs.factory import EnvFactory, MakeEnv, factory_of
from fidec.errors import ConfigError, FidecError
from fidec.store import files
from fidec.store.rundir import RunDirectory, check_links
from fidec.store.staging import local_run
from fidec.train.acting import lane_actor
from fidec.train.config import RunConfig
from fidec.train.evaluate import Evaluator
from fidec.train.loading import load_policy
from fidec.train.policy import Policy
from fidec.train.resolve import resolve
from fidec.train.stored import read_config
from fidec.types import Spec


def keep(directory: Path, name: str, result: dict[str, Any]) -> str | None:
    """Write a result into a run directory, where `fidec report` finds it. A policy directory gets none.

    The reason if it cannot be written: the result is valid without its file, and must not be lost.
    """
    if not (directory / "run.json").exists():
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


@dataclass(frozen=True)
class Assessment:
    """A saved policy with the environment, seed and processes of its evaluation."""

    directory: Path
    policy: Policy
    env: EnvFactory
    seed: int
    envs: int
    candidates: int
    timeout: float
    noise: float = 1.0
    strength: float = 1.0
    replan: int | None = None
    """Steps of a chunk that are played; by default as in training."""
    ensemble: float | None = None
    """The mean over overlapping chunks (`fidec.train.chunks`); by default as in training."""
    fresh: bool = False
    """Whether the episodes are those of the evaluation at this step (`RunConfig.eval_seeds`)."""

    @classmethod
    def of(
        cls,
        directory: str | Path,
        *,
        task: str | None = None,
        env: str | MakeEnv | None = None,
        seed: int | None = None,
        envs: int = 0,
        candidates: int | None = None,
        noise: float = 1.0,
        strength: float = 1.0,
        replan: int | None = None,
        ensemble: float | None = None,
        scale_actions: bool = False,
    ) -> Assessment:
        """Of a run directory or a policy directory, also at a URL. What is not given is taken from the run."""
        directory = local_run(directory)
        policy = load_policy(directory)
        config = RunConfig()
        if (directory / "run.json").exists():
            config = read_config(RunDirectory.open(directory, read_only=True))
        declaration = ""
        if task is None and env is None:
            task = policy.info.get("task") or config.task
            env = policy.info.get("env") or config.env
            declaration = policy.info.get("declaration") or ""
        factory = factory_of(
            task,
            env,
            success_timing=policy.info.get("success_timing") or config.success_timing,
            rendering=policy.info.get("rendering") or config.rendering or "exact",
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
            envs=envs or resolve(config).eval_envs,
            candidates=candidates or config.candidates,
            timeout=config.eval_timeout,
            noise=noise,
            strength=strength,
            replan=replan,
            ensemble=ensemble,
            fresh=seed is None and config.eval_seeds == "fresh",
        )

    @property
    def spec(self) -> Spec:
        """The specification of the policy, with the way in which its chunks are played."""
        return self.policy.spec.played(self.replan, self.ensemble)

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
        result = self.facts() | {"noise": self.noise, "strength": self.strength}
        rows = {}
        with self.evaluator(episodes) as evaluator:
            for kind in ("base", self.kind) if base else (self.kind,):
                # The base policy is a single draw: picking among several by value would not be the behaviour.
                result[kind], rows[kind], _ = evaluator(
                    self.policy.algorithm,
                    self.policy.state,
                    self.step,
                    self.seed,
                    candidates=1 if kind == "base" else self.candidates,
                    base=kind == "base",
                    noise=self.noise,
                    strength=1.0 if kind == "base" else self.strength,
                )
        if base:
            result["gain"] = files.to_builtin(compare(rows["base"], rows[self.kind])._asdict())
        result["episodes"] = {kind: [episode.row() for episode in episodes] for kind, episodes in rows.items()}
        return result

    def record(self, path: str | Path, episodes: int = 3) -> str | None:
        """Write an mp4 of the first episodes of `evaluate`.

        The reason if there is none: an evaluation is valid without its video, and must not be lost.
        """
        try:
            self._record(Path(path), episodes)
        except FidecError as error:
            return str(error)
        return None

    def _record(self, path: Path, episodes: int) -> None:
        from fidec.envs.video import record

        key = rng.at(rng.stream(self.seed, "evaluate"), self.step)
        choices = {"candidates": self.candidates, "noise": self.noise, "strength": self.strength}
        actor = lane_actor(self.policy.algorithm, self.policy.state, key, self.spec, **choices)
        make_env = self.env.function(self.policy.spec, render_mode="rgb_array")
        fresh = self.step if self.fresh else None
        record(make_env, actor, path, name=self.env.name, seed=self.seed, fresh=fresh, episodes=range(episodes))
