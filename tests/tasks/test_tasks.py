"""Task ids, what a run takes from its task, and `fidec tasks`."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from fidec import algos, api, cli, tasks
from fidec.cli.train import _picked, read_args
from fidec.errors import ConfigError
from fidec.tasks.published import FAMILIES
from fidec.train.config import RunConfig
from fidec.train.protocol import resolve_options
from fidec.train.resolve import resolve
from fidec.train.stored import config_of


@pytest.mark.parametrize(
    ("task", "algo", "preset", "expected"),
    [
        ("cube-single-play-singletask-task2-v0", "fidec", "recommended", {"budget": 0.001, "discount": 0.99}),
        ("antmaze-giant-navigate-singletask-v0", "fidec", "paper", {"discount": 0.995, "q_aggregate": "min"}),
        ("ogbench:scene-play-singletask-task5-v0", "fql", "recommended", {"alpha": 300.0}),
        ("ogbench:puzzle-4x4-play-singletask-v0", "calql", "recommended", {"alpha": 0.003, "lagrange_gap": None}),
        ("cube-double-play-singletask-v0", "rebrac", "released", {"actor_penalty": 0.1, "critic_penalty": 0.0}),
    ],
)
def test_every_spelling_of_a_task_brings_its_options(task, algo, preset, expected):
    options = dataclasses.asdict(resolve_options(algo, preset, task))
    assert {name: options[name] for name in expected} == expected


def test_fields_given_by_the_user_win():
    options = resolve_options("fql", "recommended", "scene-play-singletask-v0", alpha=3.0)
    assert (options.alpha, options.discount) == (3.0, 0.99)


def test_a_published_budget_has_the_unit_of_the_constraint():
    budget = lambda **fields: resolve_options("fidec", task="puzzle-4x4-play-singletask-task4-v0", **fields).budget  # noqa: E731
    assert budget(preset="released") == budget(preset="released", constraint="isotropic") == 0.005
    assert budget(preset="released", constraint="stein") is None
    assert budget(preset="released", constraint="stein", budget=0.3) == 0.3
    with pytest.raises(ConfigError, match="no option of fql 'constraint'"):
        resolve_options("fql", "recommended", "puzzle-4x4-play-singletask-task4-v0", constraint="stein")


def test_nothing_is_invented_where_nothing_was_published():
    assert tasks.family_of("pointmaze-medium-navigate-singletask-v0") is None
    assert tasks.family_of("cube-single-noisy-singletask-v0") is None
    assert resolve_options("fidec", "paper", "pointmaze-medium-navigate-singletask-v0") == algos.get(
        "fidec"
    ).configure("paper")


HANDS = ("human", "cloned", "expert")  # data of each of Adroit's hands
FAN_OPTIONS = ("actor_penalty", "critic_penalty", "discount", "q_aggregate")
FAN = {
    "antsoccer-arena-navigate": (10, 0.1, 0.995, "mean"),
    "cube-double-play": (100, 0, 0.995, "mean"),
    **dict.fromkeys(("scene-play", "puzzle-3x3-play", "puzzle-4x4-play"), (100, 3, 0.995, "mean")),
    **dict.fromkeys(("visual-cube-double-play", "visual-puzzle-4x4-play"), (100, 0.1, 0.995, "min")),
    **{
        f"antmaze-{size}-{kind}-v2": (3, 0.03, 0.99, "min")
        for size in ("medium", "large")
        for kind in ("play", "diverse")
    },
    **{f"pen-{kind}-v1": (1000, 0, 0.99, "min") for kind in HANDS},
    **{f"door-{kind}-v1": (3000, 10, 0.99, "min") for kind in HANDS},
    **{f"hammer-{kind}-v1": (10000, 0.3, 0.99, "min") for kind in HANDS},
    **{f"relocate-{kind}-v1": (10000, 10, 0.99, "min") for kind in HANDS},
}


def test_fan_has_the_options_of_its_scripts_and_elsewhere_no_weights():
    found = {}
    for name, family in FAMILIES.items():
        options = family.options("fan", "recommended")
        if "actor_penalty" in options:
            found[name] = tuple(options[option].value for option in FAN_OPTIONS)
            assert all(options[option].source.startswith("FAN's released scripts") for option in FAN_OPTIONS)
        else:
            assert {each.source for each in options.values()} == {"FQL's README"}
    assert found == FAN
    online = FAMILIES["antsoccer-arena-navigate"].options("fan", "recommended", "online")
    assert (online["actor_penalty"].value, online["critic_penalty"].value) == (10, 0)


# --- looking up, and what a run picks ---------------------------------------------------------------------------


def test_find_understands_every_spelling():
    row = tasks.find("antsoccer-arena-navigate-singletask-task4-v0")
    assert row is not None
    assert tasks.find("antsoccer-arena-navigate-singletask-v0") is row
    assert tasks.find("ogbench:antsoccer-arena-navigate-singletask-v0") is row
    online = tasks.find("ogbench:antsoccer-arena-navigate-singletask-task4-v0", "online")
    assert online is not None
    assert (online.setting, online.alias_of) == ("online", row.id)
    assert tasks.find("antsoccer-arena-navigate-singletask-task1-v0", "online") is None
    assert tasks.find("d4rl:pen-human-v1") is tasks.find("pen-human-v1") is not None
    assert tasks.find("pen-human-v1", "online") is None
    # Only the first visual task is in the benchmark, and it is not the family's default.
    assert tasks.find("visual-cube-single-play-singletask-v0") is None
    assert tasks.find("cube-single-play-v0") is None


@pytest.mark.parametrize(
    ("task", "algo", "picked"),
    [
        ("cube-single-play-singletask-task2-v0", "fidec", (1_000_000, 100_000, 50)),
        ("visual-scene-play-singletask-task1-v0", "fql", (500_000, 100_000, 50)),
        ("visual-scene-play-singletask-task3-v0", "fql", (500_000, 100_000, 50)),
        ("door-cloned-v1", "fidec", (500_000, 100_000, 50)),
        ("d4rl:antmaze-large-play-v2", "srpo", (3_000_000, 250_000, 50)),
        ("ogbench:scene-play-singletask-v0", "idql", (3_000_000, 250_000, 50)),
        ("pointmaze-medium-navigate-singletask-v0", "bc", (1_000_000, 100_000, 50)),
        (None, "fidec", (100_000, 10_000, 50)),
    ],
)
def test_a_run_picks_the_protocol_of_its_task(task, algo, picked):
    config = resolve(RunConfig(task=task, algo=algo))
    assert (config.steps, config.eval_interval, config.eval_episodes) == picked


@pytest.mark.parametrize("task", [None, "door-cloned-v1"])
def test_python_and_the_command_line_have_the_same_defaults(task, monkeypatch):
    configs = []
    monkeypatch.setattr(api, "train", lambda config, *_, **__: configs.append(resolve(config)))
    monkeypatch.setattr(RunConfig, "load", lambda *_: None)
    api.fit("npz:/a.npz", "out", task=task)
    words = ["--data", "npz:/a.npz", "--out", "out", *(("--task", task) if task else ())]
    assert [resolve(read_args(words, "fidec train")[0])] == configs


def test_what_is_given_wins_over_the_protocol():
    config = resolve(RunConfig(task="door-cloned-v1", steps=7, eval_interval=0))
    assert (config.steps, config.eval_interval, config.eval_episodes) == (7, 0, 50)
    assert resolve(config) == config


@pytest.mark.parametrize(
    ("task", "source"),
    [
        ("cube-single-play-singletask-v0", "ogbench:cube-single-play-singletask-v0"),
        ("ogbench:scene-play-singletask-v0", "ogbench:scene-play-singletask-v0"),
        ("pointmaze-medium-navigate-singletask-v0", "ogbench:pointmaze-medium-navigate-singletask-v0"),
        ("pen-human-v1", "d4rl:pen-human-v1"),
        ("d4rl:antmaze-umaze-v2", "d4rl:antmaze-umaze-v2"),
        ("minari:D4RL/door/human-v2", "minari:D4RL/door/human-v2"),
        ("gymnasium:Pendulum-v1", None),
        ("a-plug-ins-task-v0", None),
    ],
)
def test_a_tasks_own_data(task, source):
    assert resolve(RunConfig(task=task)).data == source


def test_the_configuration_of_an_older_run_can_be_read():
    stored = resolve(RunConfig(task="door-cloned-v1")).to_json()
    assert config_of(json.loads(json.dumps(stored))) == resolve(RunConfig(task="door-cloned-v1"))
    older = {name: value for name, value in stored.items() if name not in ("success_timing", "memory_limit")}
    older |= {"steps": 15_000, "eval_interval": 7_500}
    config = config_of(older)
    assert (config.success_timing, config.memory_limit, config.steps) == ("pre", None, 15_000)
    assert config_of({"algo": "fidec"}).steps == 100_000


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"options": 3}, "options is 3, expected a table"),
        ({"options": {"budget": "x"}}, 'budget is "x", expected a number'),
        ({"online": [1]}, r"online is \[1\], expected a table"),
        ({"online": {"updates": 0.5}}, "updates is 0.5, expected a whole number"),
        ({"steps": "many"}, 'steps is "many", expected a whole number'),
    ],
)
def test_a_stored_configuration_with_a_value_of_another_type_is_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        config_of({"algo": "fidec", **change})


def test_train_says_what_it_picked_and_from_where():
    puzzle = "puzzle-4x4-play-singletask-task4-v0"
    lines = "\n".join(_picked(resolve(RunConfig(task=puzzle, preset="released"))))
    assert "budget 0.005 " in lines
    assert "registry of FiDec's released code" in lines
    options = resolve_options("fql", "recommended", "pen-human-v1", alpha=3.0)
    lines = "\n".join(_picked(resolve(RunConfig(task="pen-human-v1", algo="fql", steps=9, options=options))))
    assert "given; steps 500,000 in D4RL protocol" in lines
    assert "given; alpha 10000.0 in FiDec paper's table of hyper-parameters" in lines


# --- the command line -------------------------------------------------------------------------------------------


def test_help_shows_the_tasks_own_defaults(capsys):
    assert cli.main(["train", "--task", "antmaze-umaze-v2", "--algo", "srpo", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "without a --task 100,000. (default: 3000000)" in words
    assert "Weight of Q against" in words
    assert "(default: 0.02)" in words  # beta, from SRPO's own code
    assert "--success-timing {pre,post}" in words
    assert "--memory-limit" in words


def test_the_list_has_all_rows_and_imports_neither_jax_nor_mujoco():
    code = """
import sys
from typing import Any
from fidec import cli
cli.main(["tasks"])
slow = [name for name in ("jax", "mujoco", "ogbench", "gymnasium") if name in sys.modules]
sys.exit(f"imported {slow}" if slow else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    header, *lines = done.stdout.splitlines()
    assert header.split() == ["id", "setting", "benchmark", "steps", "score", "fidec", "fql", "data", "category"]
    rows = [line.split()[:8] for line in lines[:87]]
    assert [(row[0], row[1]) for row in rows] == [(task.id, task.setting) for task in tasks.TASKS]
    by_id = {(row[0], row[1]): row for row in rows}
    assert by_id["scene-play-singletask-task2-v0", "offline"][2:7] == ["ogbench", "1M", "success", "72±5", "76±9"]
    assert by_id["pen-cloned-v1", "online"][2:7] == ["d4rl", "1M+1M", "normalised", "83±6->143±7", "53±14->149±6"]
    assert by_id["door-human-v1", "offline"][7] == "get"
    assert by_id["scene-play-singletask-task2-v0", "offline"][7] == "make"
    assert "fidec tasks --all" in lines[-1]


def listed(capsys, *argv: str) -> Any:
    assert cli.main(["tasks", *argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_list_can_be_filtered(capsys):
    assert len(listed(capsys)) == 87
    assert {row["benchmark"] for row in listed(capsys, "--benchmark", "d4rl")} == {"d4rl"}
    assert len(listed(capsys, "--benchmark", "d4rl")) == 18 + 9
    assert [row["id"] for row in listed(capsys, "--family", "scene")] == [
        *(f"scene-play-singletask-task{i}-v0" for i in range(1, 6)),
        "scene-play-singletask-v0",
    ]
    online = listed(capsys, "--suite", "paper-online")
    assert len(online) == 14
    assert online[0]["paper"]["fidec"] == {"before": {"mean": 82.0, "std": 4.0}, "after": {"mean": 99.0, "std": 2.0}}
    assert cli.main(["tasks", "--suite", "papr"]) == 2
    assert "did you mean paper?" in capsys.readouterr().err


def test_a_tasks_page_has_options_with_sources_and_the_paper_s_numbers(capsys):
    page = listed(capsys, "pen-cloned-v1")
    assert page["observation_shape"] == [45]
    assert "not the original simulator" in page["note"]
    offline, online = page["settings"]["offline"], page["settings"]["online"]
    assert offline["fql"]["options"]["paper"]["alpha"]["value"] == 10000.0
    assert online["fql"]["options"]["paper"]["alpha"] == {"value": 1000.0, "source": "FQL's README"}
    assert offline["iql"]["options"]["recommended"]["expectile"] == {"value": 0.8, "source": "CORL"}
    assert offline["idql"]["protocol"]["averaged"] == [3_000_000]
    assert offline["fidec"]["paper"] == {"mean": 94.0, "std": 12.0}
    assert cli.main(["tasks", "pen-cloned-v1"]) == 0
    out = capsys.readouterr().out
    for words in ("registry of FiDec's released code (preset released)", "94 ± 12", "83 ± 6 -> 143 ± 7", "0.01"):
        assert words in out
    assert cli.main(["tasks", "pen-clonde-v1"]) == 2
    assert "did you mean pen-cloned-v1" in capsys.readouterr().err


def test_a_suite_also_lists_its_tasks_that_the_paper_does_not_have(capsys):
    from fidec.bench.suites import SUITES
    from fidec.cli.tasks import main

    assert main(["--suite", "demo-online", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["id"], row["setting"], row["paper"]) for row in rows] == [
        (name, "online", {}) for name in SUITES.get("demo-online").ids
    ]
