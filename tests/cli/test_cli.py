"""The command line in this process: good input, bad input, and what a user reads."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fidec import algos
from fidec.algos.common.base import COMMON_LOGS
from fidec.cli import COMMANDS, parsing
from fidec.cli.algos import meanings
from fidec.envs.evaluation import episode_seed
from helpers.runs import TASK, check_error, fingerprint, random_columns, read_rows

TINY = ("--algo", "tiny", "--batch-size", 8, "--log-interval", 20, "--checkpoint-interval", 20, "--eval-envs", 1)


@pytest.fixture
def run(cli, tiny, npz, compile_cache, tmp_path, tmp_path_factory):
    """A finished run of 60 steps without an environment, trained once and copied for each test."""
    made = tmp_path_factory.getbasetemp() / "finished-run"
    if not made.exists():
        code, _, err = cli("train", "--data", f"npz:{npz}", *TINY, "--steps", 60, "--out", made)
        assert code == 0, err
    return Path(shutil.copytree(made, tmp_path / "run"))


def test_the_configuration_of_a_run_starts_an_equal_run(cli, run, tmp_path):
    code, _, err = cli("train", "--config", run / "config.json", "--out", tmp_path / "again")
    assert code == 0, err
    assert fingerprint(tmp_path / "again", 60) == fingerprint(run, 60)


# --- help and lists -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["", *COMMANDS, "train --algo deflow"])
def test_help_everywhere(cli, command):
    code, out, err = cli(*command.split(), "--help")
    assert code == 0
    assert "usage: fidec" in out.lower()
    assert err == ""


@pytest.mark.parametrize("command", ["data", "geometry", "suite"])
def test_every_subcommand_is_listed_and_has_help(cli, command):
    code, out, err = cli(command)
    assert (code, err) == (2, "")
    assert out.startswith(f"usage: fidec {command} [-h] COMMAND ...\n\ncommands:\n")
    names = re.findall(r"^  (\w+) ", out, re.MULTILINE)
    assert len(names) >= 4
    for name in names:
        code, out, err = cli(command, name, "--help")
        assert (code, err) == (0, "")
        assert f"usage: fidec {command} {name}" in out.lower()
    assert "did you mean list?" in cli(command, "lst")[2]


def test_help_names_options_with_their_meaning(cli):
    _, out, _ = cli("train", "--help")
    assert all(word in out for word in ("--task", "--algo.hidden", "--algo.budget", "Gradient steps", "--overwrite"))
    assert "--algo.constraint" not in cli("train", "--algo", "deflow", "--help")[1]


def test_help_does_not_import_jax(tmp_path):
    """A `jax` that cannot be imported stands before the real one on the path."""
    (tmp_path / "jax.py").write_text("raise ImportError('help imports jax')")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-m", "fidec", "train", "--algo", "deflow", "--help"]
    found = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "--algo.budget" in found.stdout


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), ("usage: fidec",)),
        (("trian",), ("did you mean train?",)),
        (("data", "sow"), ("did you mean show?",)),
        (("xyz",), ("no command 'xyz'", "Known: algos, audit")),
    ],
)
def test_wrong_commands(cli, argv, words):
    code, out, err = cli(*argv)
    assert code == 2
    assert all(word in out + err for word in words)


def test_algos_lists_every_method(cli, tiny):
    rows = dict(line.split(maxsplit=1) for line in cli("algos")[1].splitlines()[1:])
    assert rows == {name: algos.get(name).summary for name in algos.names()}
    assert "tiny" in rows
    assert json.loads(cli("algos", "--json")[1])[0].keys() == {"name", "summary", "presets"}
    check_error(cli("algos", "fidek"), 2, "did you mean fidec")


@pytest.mark.parametrize("name", algos.names())
def test_algos_shows_the_essence_of_a_method(cli, name):
    method, shown = algos.get(name), json.loads(cli("algos", name, "--json")[1])
    assert shown["docstring"] == inspect.getdoc(importlib.import_module(f"fidec.algos.{name}"))
    assert set(shown["options"]) == {"recommended", *method.presets}
    assert shown["options"]["recommended"].keys() == shown["meanings"].keys()
    assert all(shown["meanings"].values()), "an option without a meaning"
    assert shown["logs"] == dict(method.logs)
    assert shown["common_logs"] == COMMON_LOGS
    assert shown["command"].endswith(f" --algo {name}")
    text = cli("algos", name)[1]
    parts = (shown["summary"], shown["command"], *shown["meanings"].values(), *method.logs.values())
    words = " ".join(text.split())
    assert all(" ".join(part.split()) in words for part in (*parts, *COMMON_LOGS.values(), *shown["meanings"]))


@pytest.mark.parametrize("width", [80, 100, 200])
@pytest.mark.parametrize("name", ["fidec", "ifql"])
def test_algos_wraps_to_the_terminal(cli, monkeypatch, name, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = cli("algos", name)[1].splitlines()
    assert max(map(len, lines)) <= width
    assert any(len(line) > 0.8 * min(width, 118) for line in lines)  # 118: the width of the code
    equation = "D(delta; s, a_0) = c delta^T F delta," if name == "fidec" else "value   E |tau - 1(u < 0)| u^2,"
    assert any(line.startswith(f"    {equation}") for line in lines)  # laid out as in the code
    beneath = any(line.startswith("    Widths of the hidden layers") for line in lines)
    assert beneath == (name == "fidec" and width < 110)  # three presets leave no room for the meaning beside them


def test_options_of_the_constraint_have_their_meanings(cli):
    words = " ".join(cli("train", "--algo.constraint", "denoising", "--help")[1].replace("│", " ").split())
    assert "K: the number of noise levels. (default: 4)" in words
    assert "Widths of the hidden layers of every network." in words
    assert json.loads(cli("algos", "fidec_closed_form", "--json")[1])["meanings"]["damping"].startswith("rho: ")


def test_algos_needs_neither_docstrings_nor_logs(cli, tiny, monkeypatch):
    shown = json.loads(cli("algos", "tiny", "--json")[1])
    assert shown["meanings"] == {
        "learning_rate": "Step size.",
        "jitter": "Standard deviation of the noise on the parameters.",
    }

    config = dataclasses.make_dataclass("Bare", [("rate", float, 0.5)], namespace={"__module__": "nowhere"})
    make: Any = functools.partial(lambda config, spec: None)
    bare = algos.Method("bare", "nothing but a name", config, make)
    monkeypatch.setattr(algos, "get", {"bare": bare}.get)
    code, out, _ = cli("algos", "bare")
    assert code == 0
    assert "rate    0.5" in out
    assert "loss " in out
    assert json.loads(cli("algos", "bare", "--json")[1])["meanings"] == {"rate": ""}


@dataclasses.dataclass(frozen=True)
class Parent:
    first: int = 1
    """The first,
    on two lines."""
    second: int = 2
    """The second."""
    third: int = 3


@dataclasses.dataclass(frozen=True)
class Child(Parent):
    first: int = 4
    second: int = 5
    """Another second."""
    fourth: int = 6
    """The fourth."""


def test_the_meaning_of_an_option_stands_under_it():
    assert meanings(Child) == {
        "first": "The first, on two lines.",
        "second": "Another second.",
        "third": "",
        "fourth": "The fourth.",
    }


def test_tasks(cli):
    rows = json.loads(cli("tasks", "--family", "cube-single", "--json")[1])
    assert {row["id"] for row in rows} >= {"cube-single-play-singletask-task2-v0"}
    assert len(cli("tasks", "--all")[1].splitlines()) > 100
    assert "horizon" in cli("tasks", "cube-single-play-singletask-v0")[1]
    check_error(cli("tasks", "cube-singel-play-singletask-v0"), 2, "did you mean")


def test_doctor(cli, monkeypatch):
    monkeypatch.setattr("fidec.cli.doctor._rendering", lambda: "not tried")
    code, out, _ = cli("doctor", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["ok"] is True
    assert facts["backend"] == "cpu"
    assert facts["cache"].endswith("cache")
    assert facts["packages"]["jax"]
    assert facts["compiled"].startswith(("off", "set in JAX"))  # tests have no cache, or that of `compile_cache`
    assert "simulator" in cli("doctor")[1]


# --- data ---------------------------------------------------------------------------------------------------


def test_data_show_check_and_list(cli, npz, tmp_path):
    facts = json.loads(cli("data", "show", f"npz:{npz}", "--json")[1])
    assert facts["transitions"] == 200
    code, out, _ = cli("data", "check", f"npz:{npz}")
    assert code == 0
    assert "200" in out
    assert json.loads(cli("data", "check", f"npz:{npz}", "--json")[1])
    assert "no data files yet" in cli("data", "list")[1]
    assert json.loads(cli("data", "list", "--json")[1])["files"] == []


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("show", "npz:absent.npz"), 1, ("absent.npz", "does not exist")),
        (("check", "cube-single-play-singletask-v0"), 1, ("fidec data make",)),
        (("show", "sql:table"), 2, ("no data source 'sql'", "Known: d4rl")),
        (("show", "mine.npz"), 1, ("mine.npz does not exist",)),
        (("make", "antmaze-large-stitch-v0"), 2, ("antmaze-large-stitch-v0",)),
        (("make", "cube-single-play-v0", "--rows", "0"), 2, ("rows",)),
        (("get", "cube-singel-play-v0"), 2, ("cube-singel-play", "cube-single-play")),
    ],
)
def test_data_errors(cli, argv, code, words):
    check_error(cli("data", *argv), code, *words)


# --- train --------------------------------------------------------------------------------------------------


def test_train_resume_and_overwrite(cli, run, npz):
    before = fingerprint(run, 60)
    code, out, err = cli("train", "--resume", run, "--json")
    assert (code, json.loads(out)["step"]) == (0, 60)
    assert "resumed" in err
    assert fingerprint(run, 60) == before

    again = ("train", "--data", f"npz:{npz}", *TINY, "--steps", 80, "--out", run)
    check_error(cli(*again), 1, "holds a run already", "--resume", "--overwrite")
    assert fingerprint(run, 60) == before
    check_error(cli("train", "--resume", run, "--steps", 40), 2, "would be fewer")
    assert cli("train", "--resume", run, "--steps", 80)[0] == 0
    longer = fingerprint(run, 80)
    assert [row["step"] for row in read_rows(run / "train.jsonl")] == [20, 40, 60, 80]
    code, out, _ = cli(*again, "--overwrite", "--json")
    assert (code, json.loads(out)) == (0, {"directory": str(run), "step": 80, "evaluation": None})
    assert fingerprint(run, 80) == longer


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), ("there is no data", "--task")),
        (("--task", "cube-singel-play-singletask-v0"), ("no task", "did you mean")),
        (("--data", "npz:x.npz", "--algo", "fidek"), ("did you mean fidec",)),
        (
            ("--data", "npz:x.npz", "--preset", "papre"),
            ("no preset of fidec 'papre'; did you mean paper?", "released"),
        ),
        (("--data", "npz:x.npz", "--steps", "0"), ("steps must be at least 1",)),
        (("--data", "npz:x.npz", "--steps", "many"), ("--steps: expected a whole number, not 'many'",)),
        (("--data", "npz:x.npz", "--steps"), ("Missing value for argument", "--steps")),
        (("--data", "npz:x.npz", "--algo.discount", "big"), ("--algo.discount: expected a number, not 'big'",)),
        (("--data", "npz:x.npz", "more"), ("no place for the word 'more'",)),
        (("--stpes=3",), ("no option '--stpes'; did you mean --steps?",)),
        (("--gamma", "0.9"), ("no option '--gamma'; did you mean --algo.discount?",)),
        (("--lr", "0.9"), ("did you mean --algo.learning-rate?",)),
        (("--algo.lr", "1"), ("no option of fidec 'lr'; did you mean learning_rate?",)),
        (("--algo.gamma", "1"), ("no option of fidec 'gamma'; did you mean discount?",)),
        (("--algo.batch-size", "1"), ("did you mean --batch-size?",)),
        (
            ("--algo", "fql", "--algo.budget", "0.1"),
            ("no option of fql 'budget'. It is an option of deflow, fidec, fidec_closed_form. Known: alpha",),
        ),
        (("--data", "npz:x.npz", "--algo.discount", "2"), ("discount must lie in",)),
        (("--data", "npz:x.npz", "--algo.constraint", "euclid"), ("euclid",)),
        (("--data", "npz:x.npz", "--algo.budgte", "1"), ("'budgte'; did you mean budget?",)),
        (("--data", "npz:x.npz", "--eval-timeout", "nan"), ("eval_timeout must be positive",)),
        (("--data", "npz:x.npz", "--eval-interval", 5), ("--eval-interval is given, but nothing", "Name a --task")),
        (("--data", "npz:x.npz", "--eval_episodes=5"), ("--eval-episodes is given, but nothing", "--env")),
        (("--data", "npz:x.npz", "--keep-checkpoints", "0"), ("keep_checkpoints",)),
        (("--resume", "x", "--algo", "fidec"), ("no option of a resumed run '--algo'",)),
        (
            ("--resume", "x", "--algo.discount", "0.9"),
            ("resumed run '--algo.discount'. The run keeps its options", "--resume, --steps, --env"),
        ),
        (("--resume", "x", "--stesp", "9"), ("did you mean --steps?",)),
    ],
)
def test_wrong_train_arguments(cli, tmp_path, argv, words):
    result = cli("train", "--out", "run", *argv) if "--resume" not in argv else cli("train", *argv)
    check_error(result, 2, *words)
    assert len(result[2].splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("tasks", "--familly", "cube"), "no option '--familly'; did you mean --family?"),
        (("eval",), "Missing from fidec eval: DIR Run directory, or a policy directory; also"),
        (("train", "--success-timing", "pst"), "no --success-timing 'pst'; did you mean post?"),
        (("data", "get", "a", "b"), "no place for the word 'b'"),
        (("suite", "run", "paper", "--sedes", "1"), "did you mean --seeds?"),
    ],
)
def test_wrong_arguments_are_one_line(cli, monkeypatch, argv, words):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)  # tyro then colours its message
    monkeypatch.setenv("TERM", "xterm")
    result = cli(*argv)
    check_error(result, 2, words)
    assert len(result[2].splitlines()) == 1
    assert not set(result[2]) & set("│─\x1b")


def test_spellings_of_switches_and_numbers(cli, monkeypatch):
    read = []
    monkeypatch.setattr("fidec.cli.train._train", lambda config, seeds, **more: read.append((config, more)) or 0)
    cli("train", "--algo.hidden", "256,128", "--algo.train-flow", "--no-check-data", "--overwrite")
    cli("train", "--algo.hidden=256,128", "--algo.no-train-flow", "--check_data", "False", "--overwrite", "True")
    cli("train", "--algo.hidden", "256", "128", "--action-low", "-1,-2", "--json", "--normalize-observations", "None")
    assert [config.options.hidden for config, _ in read] == [(256, 128)] * 3
    assert [config.options.train_flow for config, _ in read] == [True, False, True]
    assert [config.check_data for config, _ in read] == [False, False, True]
    assert [more["overwrite"] for _, more in read] == [True, True, False]
    assert read[2][0].action_low == (-1.0, -2.0)
    assert read[2][0].normalize_observations is None


@pytest.mark.parametrize("command", ["train --algo fql", "train --resume x", "data make x", "suite run x", "eval x"])
def test_the_options_that_are_known_are_those_of_the_help(cli, monkeypatch, command):
    """They are read from the dataclasses, and help is written by tyro."""
    known: set[str] = set()
    monkeypatch.setattr(parsing, "spell_out", lambda argv, found, _: known.update(found) or [])
    with contextlib.suppress(SystemExit):
        cli(*command.split(), "--unknown")
    shown = re.findall(r"^[ │]{2}(?:-h, )?(--\w.*)", cli(*command.split(), "--help")[1], re.MULTILINE)
    names = {name for line in shown for name in re.findall(r"(?:^|, )(--[\w.-]+)", line)}
    assert {name.replace("--no-check", "--check") for name in names} - {"--help"} == known


def broken_data(path, kind: str) -> None:
    columns = random_columns()
    match kind:
        case "text":
            path.write_text("no archive")
            return
        case "cut":
            np.savez(path, **columns)
            path.write_bytes(path.read_bytes()[:-300])
            return
        case "object":
            columns["rewards"] = np.array([{}] * 200, dtype=object)
        case "nan":
            columns["observations"][7, 1] = np.nan
        case "key":
            del columns["actions"]
        case "range":
            columns["actions"] *= 3
        case "length":
            columns["rewards"] = columns["rewards"][:-1]
    np.savez(path, **columns)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        ("text", "bad.npz"),
        ("cut", "bad.npz"),
        ("object", "rewards"),
        ("nan", "row 7"),
        ("key", "'actions'"),
        ("range", "actions"),
        ("length", "rewards"),
    ],
)
def test_broken_data(cli, tmp_path, kind, word):
    path = tmp_path / "bad.npz"
    broken_data(path, kind)
    check_error(cli("train", "--data", f"npz:{path}", "--out", "run"), 1, "bad.npz", word)
    check_error(cli("data", "check", f"npz:{path}"), 1, "bad.npz", word)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "options", "code", "words"),
    [
        ({"observations": np.zeros((40, 2, 2))}, "--algo bc", 1, ("'observations'", "(40, 2, 2)")),
        ({}, "--algo bc --chunk 21", 2, ("--chunk 21", "20 steps")),
        ({"observations": np.zeros((40, 8, 8, 3), np.uint8)}, "--algo cac", 2, ("flat observations",)),
        ({"observations": np.zeros((40, 8, 8, 3), np.uint8)}, "--algo bc --delay 1", 1, ("a single image",)),
        ({"rewards": None}, "--algo iql", 1, ("no rewards",)),
        ({}, "--algo bc --action-quantile 0.5", 2, ("action_quantile",)),
    ],
)
def test_the_check_refuses_what_training_refuses(cli, tmp_path, changes, options, code, words):
    columns = {key: value for key, value in (random_columns(40) | changes).items() if value is not None}
    np.savez(tmp_path / "mine.npz", **columns)
    check_error(cli("train", "--data", "npz:mine.npz", *options.split(), "--steps", 1, "--out", "run"), code, *words)
    check_error(cli("data", "check", "npz:mine.npz", *options.split()), code, *words)
    assert not (tmp_path / "run").exists()


def test_wrong_directories(cli, tmp_path, tiny, npz):
    argv = ("train", "--data", f"npz:{npz}", *TINY, "--steps", 20)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    check_error(cli(*argv, "--out", "file"), 1, "is a file")
    check_error(cli(*argv, "--out", "mine", "--overwrite"), 1, "not empty", "thesis.tex")
    check_error(cli("train", "--resume", "mine"), 1, "is not a fidec run")
    check_error(cli("train", "--resume", "nowhere"), 1, "no such directory")
    check_error(cli("eval", "nowhere"), 1, "nowhere")
    check_error(cli("eval", "mine"), 1, "mine")
    assert sorted(p.name for p in (tmp_path / "mine").iterdir()) == ["thesis.tex"]


def test_debug_shows_the_traceback(cli):
    from fidec.errors import DataError

    with pytest.raises(DataError, match="does not exist"):
        cli("data", "show", "npz:absent.npz", "--debug")


def test_damaged_runs(cli, run, npz, tmp_path):
    newest = run / "checkpoints" / "00000060" / "state.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    code, _, err = cli("train", "--resume", run, "--steps", 70)
    assert code == 0
    assert "step 60 is damaged and is not used" in err
    assert "at step 40" in err

    (run / "config.json").write_text("{")
    check_error(cli("train", "--resume", run), 1, "config.json")
    (run / "config.json").write_text("[]")
    check_error(cli("train", "--resume", run), 1, "config.json")
    (run / "config.json").unlink()
    check_error(cli("train", "--resume", run), 1, "has no config.json, but it has", "policy")


def test_data_that_changed(cli, tiny, compile_cache, tmp_path):
    path = tmp_path / "mine.npz"
    np.savez(path, **random_columns())
    assert cli("train", "--data", f"npz:{path}", *TINY, "--steps", 40, "--out", "run")[0] == 0
    np.savez(path, **random_columns(seed=1))
    check_error(cli("train", "--resume", "run", "--steps", 60), 1, "other data", "Restore the data")
    path.unlink()
    check_error(cli("train", "--resume", "run", "--steps", 60), 1, "mine.npz does not exist")


# --- a real environment ---------------------------------------------------------------------------------------


def test_made_data_is_listed_trained_on_and_evaluated(cli, tiny, npz, compile_cache, tmp_path, monkeypatch):
    import fidec.make as package
    from fidec.make import make_dataset

    monkeypatch.setattr(package, "make_dataset", lambda *a, **k: make_dataset(*a, **k, episode_rows=60))
    argv = ("data", "make", "pointmaze-medium-navigate-v0", "--rows", 120, "--workers", 1, "--seed", 3, "--json")
    code, out, err = cli(*argv)
    assert code == 0, err
    made = json.loads(out)
    assert made["rows"] == {"train": 120, "val": 60}
    assert json.loads(cli(*argv)[1])["reused"] is True
    listed = json.loads(cli("data", "list", "--json")[1])["files"]
    assert len(listed) == 2
    assert made["sha256"]["train"] in json.dumps(listed)
    assert cli("data", "check", f"ogbench:{TASK}")[0] == 0

    sizes = (*TINY, "--steps", 40, "--eval-episodes", 2)
    code, out, err = cli("train", "--task", TASK, *sizes, "--out", "run", "--json")
    assert code == 0, err
    result = json.loads(out)
    assert (result["step"], result["evaluation"]["evaluation/n"]) == (40, 2)
    before = fingerprint(tmp_path / "run", 40)
    code, out, err = cli("eval", "run", "--episodes", 2, "--json")
    assert code == 0, err
    rows = read_rows(tmp_path / "run" / "episodes.jsonl")
    assert [{"step": 40, **row} for row in json.loads(out)["episodes"]["refined"]] == rows
    assert fingerprint(tmp_path / "run", 40) == before

    found = cli("train", "--data", f"npz:{npz}", *sizes, "--out", "other", "--task", TASK)
    check_error(found, 1, "observations of shape (2,), but the data has (3,)")


# --- eval ---------------------------------------------------------------------------------------------------


def test_eval_repeats_the_last_evaluation(cli, tiny_env, npz, compile_cache, tmp_path):
    sizes = ("--steps", 60, "--eval-interval", 30, "--eval-episodes", 3, "--seed", 9, "--out", "run")
    sizes += ("--eval-seeds", "fresh")
    assert cli("train", "--data", f"npz:{npz}", "--env", tiny_env, *TINY, *sizes)[0] == 0
    code, out, err = cli("eval", "run", "--episodes", 3, "--base", "--json")
    assert code == 0, err
    result = json.loads(out)
    rows = read_rows(tmp_path / "run" / "episodes.jsonl")
    assert [row["seed"] for row in rows] == [episode_seed(9, k, step) for step in (30, 60) for k in range(3)]
    rows = [row for row in rows if row["step"] == 60]
    assert [{"step": 60, **row} for row in result["episodes"]["refined"]] == rows
    last = read_rows(tmp_path / "run" / "eval.jsonl")[-1]
    assert {f"evaluation/{name}": value for name, value in result["refined"].items()} | {"step": 60} == last
    assert [row["seed"] for row in result["episodes"]["base"]] == [row["seed"] for row in rows]
    assert result["episodes"]["base"] != result["episodes"]["refined"]
    assert set(result["gain"]) >= {"mean", "low", "high"}

    still = json.loads(cli("eval", "run", "--episodes", 3, "--base", "--noise", 0, "--json")[1])
    assert (result["noise"], still["noise"]) == (1.0, 0.0)
    assert still["episodes"]["refined"] == still["episodes"]["base"] == result["episodes"]["base"]
    unmoved = json.loads(cli("eval", "run", "--episodes", 3, "--base", "--strength", 0, "--json")[1])
    assert (result["strength"], unmoved["strength"]) == (1.0, 0.0)
    assert unmoved["episodes"]["refined"] == unmoved["episodes"]["base"] == result["episodes"]["base"]

    shutil.copytree("run/policy", "elsewhere")
    table = cli("eval", "elsewhere", "--episodes", 3, "--seed", 9)[1]
    assert "success" in table
    given = json.loads(cli("eval", "run", "--episodes", 2, "--seed", 9, "--json")[1])  # whatever run it is
    assert [row["seed"] for row in given["episodes"]["refined"]] == [episode_seed(9, k) for k in range(2)]
    check_error(cli("eval", "run", "--episodes", 0), 2, "--episodes")
    check_error(cli("eval", "run", "--seed", -1), 2, "seed")
    check_error(cli("eval", "run", "--noise", -1), 2, "noise must be a finite number")
    check_error(cli("eval", "run", "--strength", "inf"), 2, "strength must be a finite number")
    check_error(cli("eval", "run", "--task", "cube-singel-play-v0"), 2, "no task")


def test_eval_needs_a_task(cli, run):
    check_error(cli("eval", run), 2, "--task")
