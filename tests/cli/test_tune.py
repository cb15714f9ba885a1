"""`fidec tune`: one flow, several budgets, and the choice among them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fidec import algos
from fidec.bench import tune
from fidec.bench.tune import candidates, default_budgets
from fidec.errors import ConfigError
from fidec.train.policy import load_policy
from helpers.algorithms import equal
from helpers.runs import check_error


@pytest.fixture
def given(npz, compile_cache):
    """Options of small runs without an environment."""
    return (
        *("--data", f"npz:{npz}", "--steps", 5, "--batch-size", 8, "--log-interval", 5, "--flow-updates", 10),
        *("--algo.hidden", 8, "--algo.flow-steps", 2, "--algo.proposals", 2),
    )


def test_a_budget_has_the_unit_of_the_constraint():
    nats, penalty = (algos.get("fidec").configure(constraint=name) for name in ("denoising", "isotropic"))
    assert default_budgets(nats, "fidec") == (0.05, 0.1, 0.2, 0.4)
    assert default_budgets(penalty, "fidec") == (0.0001, 0.001, 0.01, 0.1)
    with pytest.raises(ConfigError, match="fql has no budget"):
        default_budgets(algos.get("fql").configure(), "fql")
    assert candidates((0.1, 0.2, 0.4), (0, 1), (0, 0.3, 1)) == 14


@pytest.mark.slow
def test_budgets_share_a_flow_an_interrupted_tune_continues_and_a_few_episodes_choose(
    cli, given, here, tiny_env, tmp_path
):
    out = tmp_path / "out"
    words = ("tune", *given, "--env", tiny_env, "--budgets", 0.01, 0.1, "--out", out)
    check_error(cli(*words, "--episodes", 5), 2, "6 candidates need at least 6 episodes")
    assert not out.exists()
    here.fail = True
    check_error(cli(*words), 1, "1 of 1 runs failed: 1/1 flow_bc, seed 0")
    code, printed, err = cli(*words, "--episodes", 12)
    assert code == 0, err
    assert ["--algo.budget" in words for words in here.started] == [False, False, True, True]

    flow, runs = load_policy(out / "flow" / "seed000"), [out / f"budget-{x}" / "seed000" for x in (0.01, 0.1)]
    assert (flow.algo, flow.info["step"]) == ("flow_bc", 10)
    for run, budget in zip(runs, (0.01, 0.1), strict=True):
        policy = load_policy(run)
        assert policy.options.budget == budget
        assert equal(policy.state.params["flow"], flow.state.params["flow"])
        assert (run / "eval.jsonl").read_text() == ""  # episodes are for the choice

    result = json.loads((out / "selection.json").read_text())
    assert (result["episodes"], {arm["run"] for arm in result["arms"]}) == (12, {*map(str, runs)})
    assert printed.splitlines()[-1] == f"selection: {out / 'selection.json'}"
    assert result["sentences"] == printed.splitlines()[-1 - len(result["sentences"]) : -1]

    here.started.clear()  # nothing is left to train
    check_error(cli(*words, "--algo.discount", 0.5), 2, "another configuration", "algo.discount 0.99, not 0.5")
    assert json.loads(cli(*words, "--episodes", 12, "--json")[1]) == result
    assert here.started == []


def test_without_an_environment_nobody_can_choose(cli, given, monkeypatch):
    monkeypatch.setattr(tune, "train", lambda *_: [Path("my out/budget-0.1/seed000"), Path("b")])
    code, printed, _ = cli("tune", *given, "--out", "my out", "--episodes", 30)
    assert code == 0
    assert "nobody can say which budget is best" in printed
    command = "fidec select 'my out/budget-0.1/seed000' b --episodes 30 --env ID"
    assert printed.splitlines()[-1] == command
    assert json.loads(cli("tune", *given, "--out", "my out", "--episodes", 30, "--json")[1])["select"] == command


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--budgets", 0.1, 0.1), "expected different numbers"),
        (("--seeds", 0, 1), "--seeds has no meaning for `fidec tune`"),
        (("--algo", "bc"), "bc has no budget"),
        (("--workers", 0), "--workers and --episodes must be at least 1"),
    ],
)
def test_what_cannot_be_tuned_is_refused(cli, npz, tmp_path, more, words):
    check_error(cli("tune", "--data", f"npz:{npz}", "--out", tmp_path / "out", *more), 2, words)
    assert not (tmp_path / "out").exists()
