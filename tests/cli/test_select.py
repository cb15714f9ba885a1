"""`fidec select`: the candidates, their paired episodes, what is recommended and what is said about it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fidec import dataset_from_arrays, fit
from fidec.bandit import Course, Moment
from fidec.envs.evaluation import Episode
from fidec.envs.factory import EnvFactory
from fidec.errors import ConfigError
from fidec.train.acting import PUBLISHED, ActOptions
from fidec.train.evaluation import PolicyEvaluation
from fidec.train.selection import Arm, arms_of, check_episodes, check_sources, describe, scores_of
from helpers.runs import check_error, random_columns

SETTINGS = {"steps": 5, "batch_size": 8, "log_interval": 5, "quiet": True}
OPTIONS = {"hidden": (8,), "flow_steps": 2, "proposals": 2}
NAN = float("nan")
CHOICE = " --candidates 4"


@pytest.fixture(scope="module")
def runs(tmp_path_factory, compile_cache) -> dict[str, Path]:
    """Two runs on one flow, the flow itself, and a Gaussian clone."""
    dataset, out = dataset_from_arrays(**random_columns()), tmp_path_factory.mktemp("select")
    small = {"hidden": (8,), "flow_steps": 2}
    made = {"flow": fit(dataset, out / "flow", algo="flow_bc", options=small, **SETTINGS).directory}
    for seed, name in enumerate(("near", "far")):
        how = {**SETTINGS, "seed": seed, "options": OPTIONS}
        made[name] = fit(dataset, out / name, flow=made["flow"], **how).directory
    made["bc"] = fit(dataset, out / "bc", algo="bc", options={"hidden": (8,)}, **SETTINGS).directory
    return made


def described(arm: Arm) -> tuple[str, float | None, float | None, bool]:
    return arm.source.directory.name, arm.act.noise, arm.strength, arm.clone


def test_clones_come_first_and_those_of_one_flow_count_once(runs, tiny_env):
    sources = [PolicyEvaluation.of(runs[name], env=tiny_env, seed=0) for name in ("far", "near", "flow", "bc")]
    assert [described(arm) for arm in arms_of(sources, (0, 1), (0.3,))] == [
        ("far", 0, 0, True),
        ("far", 1, 0, True),
        ("bc", 0, None, True),
        ("bc", 1, None, True),
        ("far", 0, 0.3, False),
        ("far", 1, 0.3, False),
        ("near", 0, 0.3, False),
        ("near", 1, 0.3, False),
    ]
    assert [described(arm)[0] for arm in arms_of(sources[2:3], (1,), (1,))] == ["flow"]
    with pytest.raises(ConfigError, match="noise must be a finite number that is not negative, not -1"):
        arms_of(sources, (-1,), (1,))
    with pytest.raises(ConfigError, match="--strengths needs at least one number"):
        arms_of(sources, (1,), ())


def test_the_critic_chooses_where_a_method_can(runs, tiny_env):
    sources = [PolicyEvaluation.of(runs[name], env=tiny_env, seed=0) for name in ("near", "bc")]
    arms = arms_of(sources, (1,), (1,), (1, 4))
    assert [(*described(arm)[::2], arm.act.candidates) for arm in arms] == [
        ("near", 0, 1),
        ("bc", None, 1),
        ("near", 1, 1),
        ("near", 1, 4),
    ]
    assert (arms[-1].name, arms[-1].options) == (f"{runs['near']} with noise 1, strength 1, 4 candidates", CHOICE)
    with pytest.raises(ConfigError, match="candidates must be at least 1"):
        arms_of(sources, (1,), (1,), (0,))


def test_a_choice_through_the_command_line(cli, runs, tiny_env, tmp_path):
    words = ("select", runs["near"], runs["far"], "--env", tiny_env, "--strengths", 1, "--seed", 3)
    code, out, err = cli(*words, "--episodes", 18, "--json", "--out", tmp_path / "new" / "selection.json")
    assert code == 0, err
    result = json.loads(out)
    assert json.loads((tmp_path / "new" / "selection.json").read_text()) == result
    arms = result["arms"]
    assert [arm["episodes"] for arm in arms] == [len(arm["scores"]) for arm in arms]
    assert sum(arm["episodes"] for arm in arms) == result["episodes"] == len(result["history"]) == 18
    assert min(arm["episodes"] for arm in arms) >= 1
    # The episodes of a candidate are the first ones of an evaluation with this seed, one after another.
    chosen = arms[0]
    assert (chosen["strength"], chosen["noise"], result["of"]) == (0, 0, "success")
    expected = PolicyEvaluation.of(runs["near"], ActOptions(noise=0), env=tiny_env, seed=3, envs=1).evaluate(
        6, base=True
    )
    successes = [row["success"] for row in expected["episodes"]["base"]]
    assert chosen["scores"][:6] == successes[: chosen["episodes"]]
    assert result["history"][-1]["arm"] == result["recommended"]

    code, out, _ = cli(*words, "--episodes", 18)  # the same choice
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[2:8]] == [*"012345"]
    assert out.splitlines()[-len(result["sentences"]) :] == result["sentences"]

    check_error(cli("select"), 2, "at least one run")
    check_error(cli(*words, "--episodes", 5), 2, "6 policies need at least 6 episodes, but --episodes is 5")


def test_budgets_on_one_flow_are_a_sweep_and_a_choice(cli, here, npz, tiny_env, compile_cache, tmp_path):
    """The commands of docs/your-own-task.md."""
    small = ("--data", f"npz:{npz}", "--steps", 5, "--batch-size", 8, "--log-interval", 5, "--env", tiny_env)
    small += ("--algo.hidden", 8, "--algo.flow-steps", 2, "--eval-interval", 0)
    code, _, err = cli("train", *small, "--algo", "flow_bc", "--out", "flow")
    assert code == 0, err
    budgets = ("--flow", "flow", "--algo.proposals", 2, "--vary", "algo.budget=0.01,0.1", "--out", "budgets")
    code, out, err = cli("sweep", *small, *budgets)
    assert code == 0, err
    assert "there are no scores to compare" in out  # episodes are for the choice
    code, out, err = cli("select", "budgets", "--strengths", 1, "--episodes", 8, "--json")
    assert code == 0, err
    arms = json.loads(out)["arms"]
    names = [f"budgets/fidec-recommended-budget={budget}/seed000" for budget in (0.01, 0.1)]
    assert [(arm["run"], arm["noise"], arm["strength"]) for arm in arms] == [
        *((names[0], noise, 0) for noise in (0, 1)),  # the flow is the same, so there is one clone
        *((name, noise, 1) for name in names for noise in (0, 1)),
    ]


def test_policies_share_an_environment_and_get_an_episode_each():
    sources: list[Any] = [SimpleNamespace(directory=name, env=SimpleNamespace(name=name)) for name in ("a", "b")]
    with pytest.raises(ConfigError, match="a is for a, b for b: policies to choose from share an environment"):
        check_sources(sources)
    assert check_episodes(6, 12) is None
    assert "6 policies share 11 episodes: less than two turns each" in (check_episodes(6, 11) or "")
    with pytest.raises(ConfigError, match="5 policies, played in 4 environment processes, need at least 20 epis"):
        check_episodes(5, 19, envs=4)


def episodes(*values: tuple[float, float | None]) -> list[Episode]:
    return [Episode(k, k, 0, "ok", total, 10, success) for k, (total, success) in enumerate(values)]


def env_with(score: Any) -> EnvFactory:
    return EnvFactory("Own-v0", lambda mode: None, score)  # type: ignore[arg-type]


def test_what_is_compared_is_the_score_of_the_environment():
    usual = env_with(lambda row: row["return"] if row["success"] is None else 100 * row["success"])
    failed = Episode(1, 1, 0, "hung", -5.0, 3, None)
    of, scores = scores_of(usual, [[*episodes((-1.0, None)), failed], episodes((-2.0, None))])
    assert (of, str(scores)) == ("return", "[[-1.0, nan], [-2.0]]")
    # Success is reported only where there is one.
    assert scores_of(usual, [episodes((-1.0, None)), episodes((-2.0, 1.0))]) == ("success", [[0.0], [1.0]])
    normalised = env_with(lambda row: (row["return"] + 10) / 2)
    assert scores_of(normalised, [episodes((-1.0, 1.0)), []]) == ("score", [[4.5], []])


def arm(run: str, noise: float, strength: float | None) -> Arm:
    refines = None if strength is None else len
    policy = SimpleNamespace(algo="fidec", info={"task": "t"}, algorithm=SimpleNamespace(act_with_base=refines))
    source: Any = SimpleNamespace(directory=Path(run), policy=policy, step=7, act=PUBLISHED)
    act = replace(PUBLISHED, noise=noise, strength=strength or 1.0)
    return Arm(source, act, base=strength == 0, clone=strength == 0)


def said(scores: list[list[float]], chosen: int, of: str = "return") -> list[str]:
    arms = [arm("near", 0, 0), arm("near", 1, 0), arm("near", 0, 0.3), arm("far", 1, 1)]
    return describe(arms, of, Course(scores, chosen, [Moment(1, chosen, 0.0)]))["sentences"]


def test_the_sentences_say_how_sure_the_choice_is():
    clone, worse = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0], [0.0, 0.0]
    better = [score + 1.0 for score in clone]
    first, last = said([clone, worse, better, worse], 2)
    assert first == (
        "play near with noise 0, strength 0.3: return 1.43 [1.14, 1.71] in 7 episodes; the clone (near with noise 0, "
        "strength 0) had 0.43 [0.14, 0.71] in 7 episodes; paired difference +1.00 [+1.00, +1.00] over 7 pairs."
    )
    assert "fidec eval near --noise 0 --strength 0.3 --seed SEED" in last
    unsure = said([clone, worse, [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0], worse], 2, "success")
    assert "success 0.57 [0.25, 0.84]" in unsure[0]
    assert unsure[1] == "The interval contains 0: it is not distinguishable from the clone."
    few = said([clone[:3], worse, better, worse], 2)
    assert few[1] == "3 pairs: too few to tell it from the clone. Play more --episodes."
    assert "It is a clone: no other policy was shown to be better." in said([clone, worse, worse, worse], 0)[0]
    assert "fidec eval near --base --noise 0 --seed" in said([clone, worse, worse, worse], 0)[-1]
    assert "the clone (near with noise 1, strength 0) had 0.43" in said([worse, clone, better, worse], 2)[0]
    without = describe([arm("far", 1, None)], "return", Course([better], 0, [Moment(7, 0, 1.0)]))
    assert "There is no clone among the policies" in without["sentences"][0]
    assert without["baseline"] is without["arms"][0]["difference"] is None


def test_a_candidate_whose_episodes_fail_has_no_mean():
    arms = [arm("near", 1, 0), arm("near", 1, 1)]
    result = describe(arms, "return", Course([[1.0, 2.0], [NAN, NAN]], 0, [Moment(4, 0, 1.5)]))
    row = result["arms"][1]
    assert (row["mean"], row["failed"], row["scores"], row["difference"]["n"]) == (None, 2, [None, None], 0)
