"""A user's own Gymnasium environment, from the command line and from Python."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

import fidec
from fidec.cli.evaluate import print_comparison
from fidec.envs import evaluation
from fidec.envs.evaluation import EnvPool
from fidec.envs.factory import factory_of
from fidec.envs.processes import EnvProcess, pickled, receive
from fidec.envs.video import record
from fidec.errors import ConfigError, EnvError, RunError
from fidec.report.compare import compare
from fidec.train.evaluation import check_spaces
from fidec.types import Spec
from helpers import own_env
from helpers.own_env import REACH, Reach
from helpers.runs import check_error, random_columns, read_rows

TINY = ("--algo", "tiny", "--steps", 6, "--batch-size", 8, "--eval-envs", 1)
SMALL = (*TINY, "--eval-episodes", 2)


@pytest.fixture(scope="module")
def columns():
    random = random_columns(60)
    return random | {"actions": 2 * random["actions"], "action_low": [-2, -2], "action_high": [2, 2]}


@pytest.fixture
def own(tmp_path, columns, monkeypatch):
    """Data, the environment's module, and files named as modules of Python, in the current directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    np.savez("own.npz", **columns)
    source = Path(own_env.__file__).read_text().replace("Reach-v0", "ReachHere-v0")
    (tmp_path / "my_env.py").write_text(source)
    for name in ("types.py", "socket.py"):
        (tmp_path / name).write_text("raise RuntimeError('imported instead of the module of Python')")
    yield "my_env:ReachHere-v0"
    sys.modules.pop("my_env", None)
    gymnasium.registry.pop("ReachHere-v0", None)


def test_from_the_command_line(cli, tiny, own, compile_cache, tmp_path):
    """Trained, evaluated, fine-tuned online, resumed, evaluated again and recorded."""
    code, _, err = cli("train", "--data", "npz:own.npz", "--env", own, *SMALL, "--online-steps", 7, "--out", "run")
    assert code == 0, err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (config["env"], config["task"]) == (own, None)
    last = read_rows(tmp_path / "run" / "eval.jsonl")[-1]
    assert (last["step"], last["evaluation/n"]) == (13, 2)
    episodes = read_rows(tmp_path / "run" / "episodes.jsonl")
    assert [(row["step"], row["seed"]) for row in episodes] == [
        (step, evaluation.episode_seed(0, k)) for step in (6, 13) for k in range(2)
    ]
    assert last["evaluation/score"] == 100 * last["evaluation/success"]
    code, _, err = cli("train", "--resume", "run", "--online-steps", 9)
    assert code == 0, err
    code, out, err = cli("eval", "run", "--episodes", 1, "--video", "reach.mp4")
    assert code == 0, err
    assert out.splitlines()[-1] == "video: reach.mp4"
    code, out, err = cli("eval", "run", "--episodes", 2, "--video", "own.npz/reach.mp4", "--json")
    assert code == 0, err
    assert err == "fidec eval: no video: cannot write own.npz/reach.mp4: File exists. Choose another file\n"
    result = json.loads(out)
    assert (result["environment"], result["step"], result["video"]) == (own, 15, None)
    assert [row["length"] for row in result["episodes"]["refined"]] == [6, 6]
    assert {row["success"] for row in result["episodes"]["refined"]} <= {0.0, 1.0}
    assert (tmp_path / "reach.mp4").stat().st_size > 0


def test_a_process_starts_beside_files_named_as_modules_of_python(own, monkeypatch):
    """The variable that allows it is not left to this process, nor to those that the environment starts."""
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)

    def make_env():
        raise RuntimeError(f"variable {os.environ.get('PYTHONSAFEPATH')}, safe path {sys.flags.safe_path}")

    process = EnvProcess(pickled(make_env))
    kind, text = receive([process], 60)[0]
    process.end()
    assert (kind, text.partition(" (")[0]) == ("crashed", "RuntimeError: variable None, safe path True")
    assert "PYTHONSAFEPATH" not in os.environ


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("CartPole-v1", ("CartPole-v1 has the action space Discrete(2)", "expected a Box")),
        ("Pendulum-v1", ("Pendulum-v1 has actions of dimension 1, but the data has 2",)),
        ("Pendulm-v1", ("no environment 'Pendulm-v1'", "Did you mean: `Pendulum`")),
        ("no_such_module:Reach-v0", ("needs the module no_such_module", "work in the directory")),
        ("", ("--env is empty; expected a Gymnasium id",)),
    ],
)
def test_a_wrong_environment_is_refused_in_words(cli, tiny, own, env, words):
    code, _, err = cli("train", "--data", "npz:own.npz", "--env", env, *SMALL, "--out", "run")
    assert code in (1, 2)
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_a_wrong_environment_does_not_spoil_a_run(cli, tiny, own, compile_cache, tmp_path):
    wrong, refused = ("--env", "Pendulum-v1"), "actions of dimension 1, but the data has 2"
    train = ("train", "--data", "npz:own.npz", *TINY, "--out")
    check_error(cli(*train, "run", *wrong), 1, refused)
    assert cli(*train, "run")[0] == 0  # the directory is free
    more = ("train", "--resume", "run", "--steps", 8)
    check_error(cli(*more, *wrong), 1, refused)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["env"] is None
    assert "env" not in fidec.load_policy("run").info
    assert cli(*more, "--env", own)[0] == 0
    check_error(cli(*more, *wrong), 1, "was trained in my_env:ReachHere-v0, not in Pendulum-v1: start a new run")
    check_error(cli(*train, "other", *wrong), 1, refused)
    assert cli("train", "--resume", "other", "--env", own)[0] == 0  # it was never used in the wrong one


def test_other_action_bounds_than_those_of_the_data_are_refused_or_scaled(cli, tiny, own, compile_cache, tmp_path):
    """Data in [-1, 1], and an environment with actions in [-2, 2]: in training, online, evaluated and chosen."""
    np.savez("unit.npz", **random_columns(60))
    words = "ReachHere-v0 has actions from -2 to 2 in dimension 0, but the data has actions from -1 to 1"
    train = ("train", "--data", "npz:unit.npz", *SMALL, "--out")
    for more in ((), ("--online-steps", 3, "--eval-interval", 0)):
        check_error(cli(*train, "refused", "--env", own, *more), 1, words, "--scale-actions", "--action-low")
    assert cli("train", "--data", "npz:unit.npz", *TINY, "--out", "bare")[0] == 0
    check_error(cli("train", "--resume", "bare", "--env", own, "--online-steps", 3), 1, words)
    play = ("--env", own, "--episodes", 2, "--envs", 1, "--json")
    check_error(cli("eval", "bare", *play), 1, words)
    check_error(cli("select", "bare", *play, "--episodes", 6), 1, words)
    code, out, _ = cli("eval", "bare", *play, "--scale-actions")
    assert (code, json.loads(out)["refined"]["n"]) == (0, 2)

    code, _, err = cli(*train, "scaled", "--env", own, "--scale-actions", "--online-steps", 3)
    assert code == 0, err
    assert json.loads((tmp_path / "scaled" / "config.json").read_text())["scale_actions"]
    assert fidec.load_policy("scaled").info["scale_actions"]
    for place in ("scaled", "scaled/policy"):
        assert cli("eval", place, "--episodes", 1, "--video", "scaled.mp4")[0] == 0  # as it was trained


def test_scaled_actions_reach_the_bounds_of_the_environment():
    """Reach moves its place by a tenth of its action."""
    spec, start = Spec((3,), 2), Reach().reset(seed=evaluation.episode_seed(0, 0))[0]
    factory = factory_of(env=Reach, scale_actions=True)
    assert factory is not None
    seen = []
    with EnvPool(factory.function(spec), 1) as pool:
        pool.run(lambda observations, *_: seen.append(observations[0]) or np.array([[1.0, -0.5]]), 1, seed=0)
    assert np.allclose(seen[1][:2] - start[:2], [0.2, -0.1], atol=1e-6)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\ny = (\n", r"SyntaxError: '\(' was never closed \(my_module\.py:2\)\. Correct the module"),
        ("raise ValueError('no licence')", r"ValueError: no licence \(my_module\.py:1\)"),
        ("import numpy\n\nnumpy.load('absent.npy')", r"FileNotFoundError: .*absent\.npy' \(my_module\.py:3\)"),
        ("import my_other_module", r"No module named 'my_other_module' \(my_module\.py:1\)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_located(tmp_path, monkeypatch, code, words):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_module.py").write_text(code)
    with pytest.raises(ConfigError, match=rf"needs the module my_module, which cannot be imported: .*{words}"):
        factory_of(env="my_module:MyEnv-v0")


def test_an_evaluation_without_a_good_episode_is_reported(tiny, columns, compile_cache, tmp_path, capsys):
    class Broken(Reach):
        def step(self, action):
            raise RuntimeError("no contact")

    options = {"algo": "tiny", "batch_size": 8, "eval_episodes": 2, "eval_envs": 1, "quiet": True}
    options |= {"steps": 4, "eval_interval": 2}
    fidec.fit(fidec.dataset_from_arrays(**columns), tmp_path / "run", env=lambda: Broken(), **options)
    for text in (capsys.readouterr().err, (tmp_path / "run" / "run.log").read_text()):
        assert "evaluation episode 1 crashed: RuntimeError: no contact (test_own_env.py:" in text
        for step in (2, 4):
            assert f"the evaluation of step {step} has no result: all 2 episodes failed" in text
    with pytest.raises(RunError, match=r"no finished run with an evaluation.*has no evaluation with a score"):
        compare([tmp_path / "run"])


def test_a_command_without_a_valid_episode_fails(cli, tiny, own, compile_cache, tmp_path):
    """Its numbers are printed, and nothing is stored with the run."""
    assert cli("train", "--data", "npz:own.npz", "--env", own, *SMALL, "--out", "run")[0] == 0
    module = tmp_path / "my_env.py"  # the environments' processes read it, and fail
    module.write_text(
        module.read_text().replace("distance = ", "raise RuntimeError('no contact')\n        distance = ")
    )
    how = ("run", "--episodes", 2, "--envs", 1)
    code, out, err = cli("eval", *how)
    assert (code, out.splitlines()[2].split()) == (1, ["refined", "-", "-", "0", "0", "2"])
    assert "no valid episode of refined. The first crashed: RuntimeError: no contact" in err
    code, out, err = cli("eval", *how, "--base", "--json")
    assert (code, json.loads(out)["refined"]["n"]) == (1, 0)
    assert "no valid episode of base; refined." in err
    assert not (tmp_path / "run" / "comparison.json").exists()
    check_error(cli("select", "run", "--episodes", 6), 1, "all 6 episodes failed")


def test_a_misspelt_argument_gets_a_suggestion(columns, tmp_path):
    dataset = fidec.dataset_from_arrays(**columns)
    with pytest.raises(ConfigError, match="no argument of fit 'eval_episode'; did you mean eval_episodes"):
        fidec.fit(dataset, tmp_path / "run", eval_episode=3)
    with pytest.raises(ConfigError, match="no argument of evaluate 'episode'; did you mean episodes"):
        fidec.evaluate(tmp_path / "run", episode=3)  # type: ignore[call-arg]


def test_the_environment_is_checked_before_a_source_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match="no environment 'Pendulm-v1'"):
        fidec.fit("npz:absent.npz", tmp_path / "run", env="Pendulm-v1")


def test_a_task_and_an_environment_exclude_each_other(cli, own):
    code, _, err = cli("train", "--task", "door-human-v1", "--env", own, "--data", "npz:own.npz")
    assert code == 2
    assert "both --task door-human-v1 and --env" in err
    code, _, err = cli("train", "--task", "Pendulum-v1")
    assert code == 2
    assert "--env Pendulum-v1" in err


def test_a_function_from_python(tiny, columns, compile_cache, tmp_path, capsys):
    """A local function and a lambda. The run stores a description, and the function is given again."""
    dataset, run = fidec.dataset_from_arrays(**columns), tmp_path / "run"
    success = False

    def make_env(render_mode=None):
        return Reach(render_mode, success)

    options = {"algo": "tiny", "batch_size": 8, "eval_episodes": 2, "eval_envs": 1, "quiet": True}
    result = fidec.fit(dataset, run, steps=4, env=make_env, **options)
    assert result.evaluation is not None
    assert result.evaluation["evaluation/success"] is None
    assert result.evaluation["evaluation/score"] == result.evaluation["evaluation/return"]
    assert json.loads((run / "config.json").read_text())["env"].startswith("function test_own_env.test_a_function")
    for call in (partial(fidec.resume, run, dataset, steps=6), partial(fidec.evaluate, run)):
        with pytest.raises(ConfigError, match=r"given in Python \(function .*make_env\).*Give it again"):
            call()
    with pytest.raises(RunError, match="not in Pendulum-v1: start a new run"):
        fidec.resume(run, dataset, env="Pendulum-v1")
    assert fidec.resume(run, dataset, steps=6, env=lambda: Reach(), quiet=True).step == 6
    found = fidec.evaluate(run, env=make_env, episodes=2, base=True, video=tmp_path / "own.mp4")
    print_comparison(found)
    assert capsys.readouterr().out.splitlines()[-1].startswith("gain in return, paired: ")
    summary = found["refined"]
    assert (summary["n"], summary["success"], summary["length"]) == (2, None, 6)
    assert (tmp_path / "own.mp4").exists()
    with pytest.raises(
        EnvError, match=r"cannot draw \(.*returned None.*\)\. It was made with render_mode=None: let the"
    ):
        record(lambda: Reach(), lambda *_: np.zeros((1, 2)), tmp_path / "none.mp4", seed=0)


def test_a_run_without_an_environment_gets_one_when_it_is_resumed(tiny, columns, compile_cache, tmp_path):
    dataset, run = fidec.dataset_from_arrays(**columns), tmp_path / "run"
    options = {"eval_interval": 0, "batch_size": 8, "quiet": True}
    fidec.fit(dataset, run, algo="tiny", steps=3, **options)
    with pytest.raises(ConfigError, match="trained without an environment"):
        fidec.evaluate(run)
    with pytest.raises(ConfigError, match="online training needs an environment"):
        fidec.resume(run, dataset, online_steps=2)
    assert fidec.resume(run, dataset, online_steps=2, env=REACH, quiet=True).step == 5


def test_what_is_no_environment():
    wrong: Any
    for wrong, words in ((3, "env is a int; expected a Gymnasium id, or a function"), (Reach(), "is an environment")):
        with pytest.raises(ConfigError, match=words):
            factory_of(env=wrong)
    wrong = lambda: "nothing"  # noqa: E731
    factory = factory_of(env=wrong)
    assert factory is not None
    with pytest.raises(EnvError, match=r"returned a str; expected a gymnasium\.Env"):
        EnvPool(factory.function(), 1)


def test_spaces_are_compared_with_the_data():
    spec = Spec((3,), 1)
    spaces = {"observation_shape": (3,), "observation_dtype": "float32", "action_dim": 1, "unused_parts": ()}

    def check(**changes):
        envs: Any = SimpleNamespace(**{**spaces, **changes})
        check_spaces("Own-v0", envs, spec)

    check()
    for change, words in (
        ({"observation_shape": (4,)}, r"Own-v0 has observations of shape \(4,\), but the data has \(3,\)"),
        ({"observation_dtype": "uint8"}, "observations of type uint8, but the data has float32"),
        ({"action_dim": 2}, "actions of dimension 2, but the data has 1"),
    ):
        with pytest.raises(EnvError, match=words):
            check(**change)


def test_an_episode_without_an_end_is_named(monkeypatch):
    monkeypatch.setattr(evaluation, "LONGEST", 4)
    with EnvPool(Reach, 1) as pool, pytest.raises(EnvError, match=r"not ended after 4 steps.*TimeLimit"):
        pool.run(lambda o, i, s: np.zeros((1, 2)), 1, seed=0)
