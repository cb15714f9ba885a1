"""Which tasks and methods a suite has, the one reduction, and the commands that follow from them."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from fidec import algos, tasks
from fidec.bench import data as suite_data
from fidec.bench.jobs import jobs
from fidec.bench.scale import SMALL, benchmark_plan, is_manipulation, last_evaluations
from fidec.bench.suites import DEMO, SUITES, Variant
from fidec.errors import BusyError, ConfigError, DataError
from fidec.tasks.ablation import AVERAGES, REPORTED
from fidec.train.config import RunConfig

COUNTS = {
    "ogbench-state": 50,
    "ogbench-default": 10,
    "ogbench-visual": 5,
    "d4rl-antmaze": 6,
    "d4rl-adroit": 12,
    "paper": 73,
    "paper-online": 14,
    "ablation-t-eps": 5,
    "ablation-metric": 5,
    "demo": 1,
    "demo-online": 2,
}
CUBE, ANT = "cube-single-play-singletask-task2-v0", "antmaze-large-navigate-singletask-task1-v0"
HUMANOID = "humanoidmaze-medium-navigate-singletask-v0"


def jobs_of(name, **keywords):
    return jobs(SUITES[name], out=Path("runs"), data_dir=None, **keywords)


def test_every_suite_has_its_tasks():
    assert {name: len(suite.tasks) for name, suite in SUITES.items()} == COUNTS
    for suite in SUITES.values():
        assert len(set(suite.tasks)) == len(suite.tasks)
        assert suite.scale or all(tasks.find(task, suite.setting) is not None for task in suite.tasks)
        names = [variant.name for variant in suite.variants]
        assert len(set(names)) == len(names)  # each has a directory of its own
    parts = ("ogbench-state", "ogbench-visual", "d4rl-antmaze", "d4rl-adroit")
    assert sorted(task for name in parts for task in SUITES[name].tasks) == sorted(SUITES["paper"].tasks)
    assert all(task.startswith("visual-") for task in SUITES["ogbench-visual"].tasks)
    assert CUBE in SUITES["ogbench-default"].tasks
    assert set(SUITES["ogbench-default"].tasks) <= set(SUITES["ogbench-state"].tasks)


def test_a_job_follows_the_published_protocol():
    (job,) = jobs_of("paper", words=("fql",), patterns=(CUBE,))
    assert (job.plan.steps, job.plan.averaged) == (1_000_000, (800_000, 900_000, 1_000_000))
    assert (job.plan.batch_size, job.plan.eval_interval, job.plan.eval_episodes) == (256, 100_000, 50)
    assert job.changes == {}
    assert job.options() == algos.get("fql").configure("recommended", alpha=300.0)
    assert job.directory == Path("runs") / CUBE / "fql-recommended" / "seed000"
    (long,) = jobs_of("paper", words=("idql",), patterns=(CUBE,))
    assert long.plan.steps == 3_000_000
    (short,) = jobs_of("paper", words=("fql",), patterns=(CUBE,), steps=250_000)
    assert (short.plan.steps, short.plan.averaged) == (250_000, (100_000, 200_000, 250_000))


def test_the_small_scale_is_what_its_page_says():
    """The reduction is fixed: measured tables rest on it."""
    plan = SMALL.plan()
    assert (plan.steps, plan.batch_size, plan.eval_interval, plan.eval_episodes) == (10_000, 128, 2_500, 12)
    assert plan.averaged == (5_000, 7_500, 10_000)
    assert (plan.log_interval, plan.checkpoint_interval) == (500, 10_000)
    assert (SMALL.rows, SMALL.visual_rows) == (100_000, 20_000)
    narrow = {"hidden": (128, 128, 128), "learning_rate": 1e-3}
    expected = {
        (CUBE, "bc"): narrow,  # it has no discount
        (CUBE, "fidec"): {**narrow, "discount": 0.97},
        (f"visual-{CUBE}", "fql"): {**narrow, "discount": 0.97},
        (ANT, "fidec"): narrow,
        ("pen-human-v1", "iql"): narrow,
        (CUBE, "idql"): {**narrow, "discount": 0.97, "denoiser_width": 128},
        (ANT, "srpo"): {**narrow, "denoiser_width": 128, "policy_hidden": (128, 128, 128)},
        (ANT, "cac"): {**narrow, "ema_start": 0, "ema_interval": 1, "schedule_steps": 10_000},
    }
    for (task, method), changes in expected.items():
        assert SMALL.changes(task, method, algos.get(method).config) == changes
    for job in jobs_of("paper", scale=SMALL, patterns=(CUBE,)):
        assert job.options().hidden == (128, 128, 128)  # every option exists, and has its right type


def test_an_online_job_follows_the_published_protocol():
    fql, rlpd = jobs_of("paper-online", words=("fql", "rlpd"), patterns=(HUMANOID,))
    assert (fql.plan.steps, fql.plan.online_steps, fql.plan.eval_interval) == (1_000_000, 1_000_000, 100_000)
    assert (fql.plan.before, fql.plan.averaged) == ((1_000_000,), (2_000_000,))
    assert (rlpd.plan.steps, rlpd.plan.online_steps) == (0, 1_000_000)
    assert (rlpd.plan.before, rlpd.plan.averaged) == ((), (1_000_000,))
    assert fql.options().alpha == 100.0  # 30 where the task is trained offline only
    (offline,) = jobs_of("paper", words=("fql",), patterns=("humanoidmaze-medium-*-task1-v0",))
    assert (offline.options().alpha, offline.plan.before) == (30.0, ())
    short = jobs_of("paper-online", words=("fql", "rlpd"), patterns=(HUMANOID,), steps=300, online_steps=500)
    assert [(job.plan.steps, job.plan.total, job.plan.averaged) for job in short] == [
        (300, 800, (800,)),
        (0, 500, (500,)),
    ]


def test_the_small_scale_online():
    fql, rlpd, calql = jobs_of("paper-online", words=("fql", "rlpd", "calql"), patterns=("scene-*",), scale=SMALL)
    assert (fql.plan.steps, fql.plan.online_steps) == (10_000, 10_000)
    assert fql.plan.evaluations == tuple(range(2_500, 20_001, 2_500))
    assert (fql.plan.before, fql.plan.averaged) == ((10_000,), (20_000,))
    assert (rlpd.plan.steps, rlpd.plan.total, rlpd.plan.before) == (0, 10_000, ())
    assert SMALL.plan().online_steps == 0  # elsewhere
    options = calql.options()
    assert (options.learning_rate, options.policy_learning_rate, options.alpha) == (1e-3, 3e-4, 0.01)


def test_a_run_is_evaluated_every_interval_at_the_hand_over_and_at_the_end():
    plan = dataclasses.replace(SMALL.plan(), steps=5, online_steps=6, eval_interval=4)
    assert plan.evaluations == (4, 5, 8, 11)
    assert dataclasses.replace(plan, online_steps=0).evaluations == (4, 5)
    assert dataclasses.replace(plan, steps=0).evaluations == (4, 6)


def test_the_online_demo_says_what_nobody_published():
    """On the cube the published settings but for Cal-QL; on the maze, which has none, those that the suite gives."""
    found = {(job.task, job.variant.label): job for job in jobs_of("demo-online")}
    assert {label for _, label in found} == {"fql", "rlpd", "calql", "fidec:paper", "fidec"}
    assert len(found) == 2 * 5
    cube, maze = SUITES["demo-online"].tasks
    assert cube == CUBE
    assert tasks.family_of(maze) is None
    settings = {
        (cube, "fql"): {"alpha": 300.0, "discount": 0.97},
        (cube, "calql"): {"alpha": 0.01, "lagrange_gap": None, "discount": 0.97, "policy_learning_rate": 3e-4},
        (cube, "fidec:paper"): {"budget": 0.001, "metric": "local"},
        (cube, "fidec"): {"budget": 0.001, "metric": "renoised"},
    }
    for method, given in SUITES["demo-online"].unpublished[maze].items():
        settings |= {key: given for key, job in found.items() if key[0] == maze and job.variant.method == method}
    for key, expected in settings.items():
        options = dataclasses.asdict(found[key].options())
        assert {name: options[name] for name in expected} == expected, key
        assert options["hidden"] == (128, 128, 128)
    assert {job.plan.steps for (_, label), job in found.items() if label == "rlpd"} == {0}
    assert len({(job.plan.steps, job.plan.online_steps) for job in found.values()}) == 2


def test_which_tasks_are_manipulation():
    counted = [task for task in SUITES["paper"].tasks if is_manipulation(task)]
    assert len(counted) == 25 + 5


@pytest.mark.parametrize(
    ("steps", "interval", "count", "expected"),
    [(10, 3, 2, (9, 10)), (9, 3, 2, (6, 9)), (2, 2, 3, (2,)), (10, 4, 9, (4, 8, 10))],
)
def test_last_evaluations(steps, interval, count, expected):
    assert last_evaluations(steps, interval, count) == expected
    row = tasks.find(CUBE)
    assert row is not None
    assert benchmark_plan(row, "fql", steps).averaged == (steps,)  # one evaluation, at the end


def test_the_commands_say_all_that_the_job_is():
    (job,) = jobs_of("paper", words=("fidec:paper",), patterns=(CUBE,), seeds=(3,), scale=SMALL)
    words = job.command()
    given = dict(itertools.pairwise(words))
    asked = {"--task": CUBE, "--algo": "fidec", "--preset": "paper", "--seed": "3", "--batch-size": "128"}
    assert asked.items() <= given.items()
    assert words[words.index("--algo.hidden") + 1 :][:3] == ["128"] * 3
    known = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(RunConfig)} | {"--overwrite"}
    assert all(word in known for word in words if word.startswith("--") and "." not in word)


def test_the_command_of_an_online_job_has_both_phases():
    fql, rlpd = (job.command() for job in jobs_of("paper-online", words=("fql", "rlpd"), patterns=(HUMANOID,)))
    assert {"--steps": "1000000", "--online-steps": "1000000"}.items() <= dict(itertools.pairwise(fql)).items()
    assert {"--steps": "0", "--online-steps": "1000000"}.items() <= dict(itertools.pairwise(rlpd)).items()
    (offline,) = jobs_of("paper", words=("fql",), patterns=(CUBE,))
    assert "--online-steps" not in offline.command()


def test_methods_that_the_paper_has_not_on_pixels_run_only_if_asked():
    task = SUITES["ogbench-visual"].tasks[0]
    row = tasks.find(task)
    assert row is not None
    assert {job.variant.method for job in jobs_of("ogbench-visual", patterns=(task,))} == set(row.paper)
    assert [job.variant.method for job in jobs_of("ogbench-visual", patterns=(task,), words=("bc",))] == ["bc"]


def test_sources_go_to_their_tasks():
    door, pen = jobs_of(
        "d4rl-adroit", words=("bc",), patterns=("door-human-v1", "pen-human-v1"), sources={"door-*": "hdf5:d.hdf5"}
    )[::-1]
    assert (door.source, pen.source) == ("hdf5:d.hdf5", None)
    assert "--data" in door.command()
    assert door.data() == f"hdf5:{Path('d.hdf5').absolute()}"
    assert pen.data() == "d4rl:pen-human-v1"


def test_what_a_suite_has_not_it_says():
    with pytest.raises(ConfigError, match=r"no task 'cube'.*whole ids"):
        jobs_of("paper", patterns=("cube",))
    with pytest.raises(ConfigError, match="has no method iql; it has deflow, fidec"):
        jobs_of("ablation-t-eps", words=("iql",))
    with pytest.raises(ConfigError, match="sacc"):
        jobs_of("paper", words=("sacc",), patterns=(CUBE,))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"words": ("fql:papper",)}, "fql has no preset 'papper'"),
        ({"seeds": ()}, "--seeds: give at least one"),
        ({"seeds": (0, -1)}, "seed must be at least 0"),
        ({"steps": -5}, "--steps"),
        ({"online_steps": -5}, "--online-steps must be at least 1"),
        ({"online_steps": 5}, "suite 'paper' is offline: leave --online-steps out"),
    ],
)
def test_bad_words_are_found_before_anything_starts(keywords, message):
    with pytest.raises(ConfigError, match=message):
        jobs_of("paper", patterns=(CUBE,), **keywords)


@pytest.mark.parametrize("method", ["bc", "srpo"])
def test_what_is_not_trained_online_is_refused_with_the_reason(method):
    with pytest.raises(ConfigError, match=f"{method} is not trained online: {algos.get(method).offline_only}"):
        jobs_of("paper-online", words=("fql", method))


def test_an_option_that_a_variant_lacks_is_found_before_anything_starts():
    suite = dataclasses.replace(DEMO, variants=(Variant("bc", options={"t_eps": 0.7}),))
    with pytest.raises(ConfigError, match="bc has no option t_eps"):
        jobs(suite, out=Path("out"), data_dir=None)


@pytest.fixture
def maker(monkeypatch, tmp_path):
    """Stands in for `make_dataset`: notes how it is called, and raises what it is told to, in turn."""
    calls, errors = [], []

    def make(name, rows, **keywords):
        calls.append((name, rows, keywords))
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr("fidec.make.make_dataset", make)
    monkeypatch.setattr(suite_data, "PAUSE", 0.0)
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path / "cache"))
    return calls, errors


def provide(tmp_path, pattern, said):
    found = jobs(
        SUITES["paper"], out=tmp_path, data_dir=tmp_path / "data", words=("bc",), patterns=(pattern,), scale=SMALL
    )
    return suite_data.provide(found, SMALL, 0, said.append)


def test_data_is_made_once_for_all_tasks_that_share_it(tmp_path, maker):
    calls, errors = maker
    errors.append(DataError("the disk is full"))
    without = provide(tmp_path, "cube-single-*", [])
    assert len(calls) == 1
    assert len(without) == 5
    assert all("the disk is full" in reason for reason in without.values())


def test_data_that_another_process_makes_is_waited_for(tmp_path, maker):
    calls, errors = maker
    errors += [BusyError("taken"), BusyError("taken")]
    said = []
    assert provide(tmp_path, CUBE, said) == {}
    assert len(calls) == 3
    assert [line for line in said if "waits for it" in line] == [
        f"data for {CUBE}: another process makes it: waits for it"
    ]


def test_the_ablation_is_the_papers():
    variants = SUITES["ablation-t-eps"].variants
    assert [v.options.get("t_eps") for v in variants] == [None, 0.70, 0.75, 0.80, 0.85, 0.90, 0.95]
    assert variants[3].reported("scene-play-singletask-task2-v0") == (70.0, 7.0)
    assert variants[0].reported("humanoidmaze-medium-navigate-singletask-task1-v0") == (35.0, 7.0)
    # The paper's row of averages, and the spread it gives there, follow from its rows: it is that of the tasks.
    for column, printed in AVERAGES.items():
        means = [row[column].mean for row in REPORTED.values()]
        assert (np.mean(means), np.std(means)) == pytest.approx(printed, abs=1.0)
    assert [v.label for v in SUITES["ablation-metric"].variants] == ["deflow", "fidec:paper t0.80"]
    (job,) = jobs_of("ablation-metric", words=("fidec",), patterns=("scene*",), seeds=(0,))
    assert job.options().t_eps == 0.8
    assert job.directory.parent.name == "fidec-paper-t0.80"


def test_the_demo_suite_has_every_offline_method_with_options_that_exist():
    online = {"calql", "rlpd"}
    own = {name for name in algos.names() if algos.get(name).make.__module__.startswith("fidec.")}
    assert {variant.method for variant in DEMO.variants} == own - online
    for job in jobs(DEMO, out=Path("out"), data_dir=Path("data"), seeds=(0, 1), steps=10):
        assert job.options().hidden == (128, 128, 128)
        assert job.plan.averaged == (10,)
    assert job.directory == Path("out") / "fidec-seed001"


def test_variants_by_name():
    variant = Variant("fidec", "paper", {"t_eps": 0.7}, "t0.70")
    assert (variant.name, variant.label) == ("fidec-paper-t0.70", "fidec:paper t0.70")
    assert variant.matches("fidec")
    assert variant.matches("fidec:paper")
    assert not variant.matches("fidec:released")
