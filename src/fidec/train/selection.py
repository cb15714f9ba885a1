"""Choose a policy with a few real episodes: the arms, a bandit that plays them, and its recommendation.

Arms are base and refined policies of runs, with several noises, strengths and numbers of candidate actions. The k-th
episode of every arm starts from the same seed and draws the same random numbers, so that differences are paired.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fidec import algos, bandit
from fidec.envs.evaluation import Episode, summarise
from fidec.envs.factory import EnvFactory
from fidec.errors import ConfigError, EnvError
from fidec.stats import bootstrap_mean, paired_difference, wilson
from fidec.store import files
from fidec.train.acting import ActOptions, supports
from fidec.train.evaluation import Evaluator, PolicyEvaluation
from fidec.train.policy import Policy
from fidec.types import Spec

# With fewer pairs not even a sign test can be significant at 5 %: all of five pairs have one sign by chance with
# probability 1/16.
PAIRS = 6


@dataclass(frozen=True)
class Arm:
    """A policy of a run, and how it acts."""

    source: PolicyEvaluation
    act: ActOptions
    base: bool
    """Whether the base policy of the run plays. It has strength 0 and a single candidate."""
    clone: bool
    """Whether it only imitates the data: a base policy, or a method that needs no rewards."""

    @property
    def strength(self) -> float | None:
        """None: the method refines no base policy."""
        if self.base:
            return 0.0
        return None if self.source.policy.algorithm.act_with_base is None else self.act.strength

    @property
    def name(self) -> str:
        """In words: run, noise, and strength and candidates if there is a choice."""
        strength = "" if self.strength is None else f", strength {self.strength:g}"
        candidates = "" if self.act.candidates == 1 else f", {self.act.candidates} candidates"
        return f"{self.source.directory} with noise {self.act.noise:g}{strength}{candidates}"

    @property
    def options(self) -> str:
        """The options of `fidec eval` that play it."""
        defaults = self.source.act.given() | ({"candidates": 1, "strength": 1.0} if self.base else {})
        given = {name: value for name, value in self.act.given().items() if value != defaults.get(name)}
        return " --base" * self.base + "".join(f" --{name} {value:g}" for name, value in given.items())


def arms_of(
    sources: Sequence[PolicyEvaluation],
    noises: Sequence[float],
    strengths: Sequence[float],
    candidates: Sequence[int] = (),
) -> list[Arm]:
    """All policies to choose from: clones first, then by strength, by run, and by the others in the given order.

    Base policies are always among them. One that several runs share counts once. A method that cannot scale its noise
    or its displacement, or has no candidates, has its own only. Without `candidates` each run has its own number,
    without `noises` the factors 0, 1 and its own.
    """
    if not strengths:
        raise ConfigError("--strengths needs at least one number")
    arms, clones = list[Arm](), set[Hashable]()
    for number, source in enumerate(sources):
        algorithm, flow = source.policy.algorithm, _flow_of(source.policy) or number
        imitates = not algos.get(source.policy.algo).needs_rewards
        factors: Sequence[float] = (1.0,)
        if algorithm.act_with_base is not None:
            factors = sorted({0.0, *map(float, strengths)}) if supports(algorithm.act, "strength") else (0.0, 1.0)
        for strength in factors:
            base = strength == 0
            if (clone := imitates or base) and flow in clones:
                continue
            if clone:
                clones.add(flow)
            counts = candidates if candidates and algorithm.choose is not None else (source.act.candidates,)
            own = 1.0 if source.act.noise is None else source.act.noise
            factors_of_noise = dict.fromkeys(noises or (0.0, 1.0, own))
            for noise in factors_of_noise if supports(algorithm.act, "noise") else (1.0,):
                for count in (1,) if base else dict.fromkeys(counts):
                    act = replace(source.act, noise=float(noise), strength=strength or 1.0, candidates=count)
                    arms.append(Arm(source, act, base, clone))
    return sorted(arms, key=lambda arm: (not arm.clone, 1.0 if arm.strength is None else arm.strength))


def _flow_of(policy: Policy) -> Hashable:
    """The same for policies with the same behaviour flow; None if they have none."""
    params = getattr(policy.state, "params", None)
    if not isinstance(params, Mapping) or "flow" not in params:
        return None
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(params["flow"]):
        array = np.asarray(leaf)
        digest.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
    return digest.hexdigest(), getattr(policy.options, "flow_steps", None), policy.spec


def check_episodes(arms: int, episodes: int, envs: int = 1) -> str | None:
    """Raise if the policies do not get an episode each; a sentence if they get fewer than two."""
    rounds = episodes // envs
    advice = "give more --episodes, or fewer runs, --noises or --strengths"
    many = f"{arms} policies" + (f", played in {envs} environment processes," if envs > 1 else "")
    if rounds < arms:
        raise ConfigError(f"{many} need at least {arms * envs} episodes, but --episodes is {episodes}: {advice}")
    if rounds < 2 * arms:
        return f"{many} share {episodes} episodes: less than two turns each. For a better choice {advice}."
    return None


def check_sources(sources: Sequence[PolicyEvaluation]) -> None:
    """Raise unless all policies are for one environment."""
    first = sources[0]
    for source in sources:
        if source.env.name != first.env.name:
            raise ConfigError(
                f"{first.directory} is for {first.env.name}, {source.directory} for {source.env.name}: policies to "
                "choose from share an environment. Name it with --task or --env if it is the same"
            )


def choose(
    arms: Sequence[Arm],
    episodes: int,
    *,
    seed: int = 0,
    envs: int = 1,
    report: Callable[[int], None] = lambda spent: None,
) -> dict[str, Any]:
    """Play episodes of the arms and recommend one. The result is what `fidec select --json` prints.

    A pull is one episode in each of `envs` environment processes. `report` is called with the episodes spent so far.
    """
    env = arms[0].source.env
    played: list[list[Episode]] = [[] for _ in arms]
    with ExitStack() as stack:
        evaluators: dict[Any, Evaluator] = {}
        for shared, source in {_shared(arm): arm.source for arm in arms}.items():
            evaluator = Evaluator(source.env, source.spec, envs=envs, episodes=envs, timeout=arms[0].source.timeout)
            evaluators[shared] = stack.enter_context(evaluator)

        def pull(number: int, first: int) -> bandit.Scores:
            arm = arms[number]
            policy, evaluator = arm.source.policy, evaluators[_shared(arm)]
            # Step 0 for all, so that policies of different steps draw the same random numbers.
            how: dict[str, Any] = {"first": first, "act": arm.act, "base": arm.base}
            played[number] += evaluator(policy.algorithm, policy.state, 0, seed, **how).episodes
            report(sum(map(len, played)))
            return scores_of(env, played)[1]

        clones = sum(arm.clone for arm in arms)  # they are the first ones
        pairs = min(PAIRS, episodes // 4)
        course = bandit.play(pull, len(arms), episodes, batch=envs, safe=clones, pairs=pairs)
    if not any(episode.status == "ok" for rows in played for episode in rows):
        raise EnvError(f"all {episodes} episodes failed. The first: {played[0][0].detail}")
    result = describe(arms, scores_of(env, played)[0], course)
    note = {"note": env.note} if env.note else {}
    return files.to_builtin({"environment": env.name, **note, "seed": seed, "envs": envs, **result})


def _shared(arm: Arm) -> tuple[Spec, bool, str]:
    """What arms have in common that share environments."""
    env = arm.source.env
    return arm.source.spec, env.scale_actions, str(env.action_bounds)


def scores_of(env: EnvFactory, played: Sequence[Sequence[Episode]]) -> tuple[str, list[list[float]]]:
    """What is compared, and its value in each episode: the success, the return, or another score of the environment.

    An environment may report success only when it succeeds, so it is known only from all episodes together. NaN for
    an episode that failed.
    """
    reports = any(episode.success is not None for rows in played for episode in rows)
    values = [[_values(env, episode, reports) for episode in rows] for rows in played]
    success, returned, score = np.array([each for rows in values for each in rows]).reshape(-1, 3).T
    same = [np.array_equal(100.0 * success, score, equal_nan=True), np.array_equal(returned, score, equal_nan=True)]
    column = same.index(True) if True in same else 2
    return ("success", "return", "score")[column], [[each[column] for each in rows] for rows in values]


def _values(env: EnvFactory, episode: Episode, reports: bool) -> tuple[float, float, float]:
    """Success, return and score of an episode; NaN for what is not known."""
    if episode.status != "ok":
        return math.nan, math.nan, math.nan
    success = (episode.success or 0.0) if reports else None
    one = {"n": 1, "success": success, "return": episode.return_, "length": episode.length}
    score = env.score(summarise([]) | one)  # with all keys of a summary
    return math.nan if success is None else success, episode.return_, math.nan if score is None else score


def describe(arms: Sequence[Arm], of: str, course: bandit.Course) -> dict[str, Any]:
    """The result of a bandit: arms with intervals and differences to the clone, recommendation, history.

    The clone that the others are compared with is the recommended one, or else the one that would be if there were
    only clones.
    """
    scores, clones = course.scores, [number for number, arm in enumerate(arms) if arm.clone]
    baseline = None
    if clones:
        best = clones[bandit.recommend([scores[number] for number in clones], safe=0)]
        baseline = course.arm if arms[course.arm].clone else best
    rows = []
    for number, (arm, arm_scores) in enumerate(zip(arms, scores, strict=True)):
        row: dict[str, Any] = {
            "run": str(arm.source.directory),
            "method": arm.source.policy.algo,
            "step": arm.source.step,
            "noise": arm.act.noise,
            "strength": arm.strength,
            "candidates": arm.act.candidates,
            "clone": arm.clone,
            **_mean(of, arm_scores),
            "difference": None,
            "scores": list(arm_scores),
        }
        if baseline is not None and number != baseline:
            pairs = min(len(arm_scores), len(scores[baseline]))
            before, after = scores[baseline][:pairs], arm_scores[:pairs]
            row["difference"] = paired_difference(before, after, success=of == "success")._asdict()
        rows.append(files.to_builtin(row))
    result = {
        "of": of,
        "episodes": sum(map(len, scores)),
        "arms": rows,
        "baseline": baseline,
        "recommended": course.arm,
        "history": [{"episodes": at.pulls, "arm": at.arm, "mean": at.mean} for at in course.history],
    }
    return result | {"sentences": sentences(arms, result)}


def _mean(of: str, scores: Sequence[float]) -> dict[str, Any]:
    """Episodes, mean and 95 % interval, of the episodes that did not fail."""
    good = [score for score in scores if not np.isnan(score)]
    if of == "success" and good:
        low, high = wilson(sum(score >= 0.5 for score in good), len(good))
    else:
        low, high = bootstrap_mean(good)
    mean = float(np.mean(good)) if good else float("nan")
    return {"episodes": len(scores), "failed": len(scores) - len(good), "mean": mean, "low": low, "high": high}


def sentences(arms: Sequence[Arm], result: dict[str, Any]) -> list[str]:
    """What to do, how sure that is, and how to confirm it."""
    rows, chosen, baseline = result["arms"], result["recommended"], result["baseline"]
    row, of = rows[chosen], result["of"]
    advice = f"play {arms[chosen].name}: {of} {number(row)} in {count(row['episodes'], 'episode')}"
    if baseline is None:
        text = [f"{advice}. There is no clone among the policies: add a run of flow_bc or bc to compare with one."]
    elif arms[chosen].clone:
        others = len(rows) > sum(arm.clone for arm in arms)
        text = [f"{advice}. It is a clone: {'no other policy was shown to be better' if others else 'all are'}."]
    else:
        other, difference = rows[baseline], row["difference"]
        text = [
            f"{advice}; the clone ({arms[baseline].name}) had {number(other)} in "
            f"{count(other['episodes'], 'episode')}; paired difference {number(difference, '+')} over "
            f"{count(difference['n'], 'pair')}."
        ]
        if difference["n"] < PAIRS:
            text.append(f"{count(difference['n'], 'pair')}: too few to tell it from the clone. Play more --episodes.")
        elif difference["low"] <= 0 <= difference["high"]:
            text.append("The interval contains 0: it is not distinguishable from the clone.")
    source = arms[chosen].source
    # A run without an environment of its own has to be told where it was played.
    place = "" if source.policy.info.get("task") or source.policy.info.get("env") else f" --env {source.env.name}"
    text.append(
        "The best of several looks better than it is. New episodes show its score: "
        f"fidec eval {source.directory}{arms[chosen].options}{place} --seed SEED, with another seed."
    )
    return text


def number(row: dict[str, Any], sign: str = "") -> str:
    """A mean with its interval, which a single episode does not have."""
    mean, low, high = (row[name] for name in ("mean", "low", "high"))
    if mean is None:
        return "-"
    return f"{mean:{sign}.2f}" + ("" if low is None else f" [{low:{sign}.2f}, {high:{sign}.2f}]")


def count(value: int, unit: str) -> str:
    return f"{value} {unit}" if value == 1 else f"{value} {unit}s"
