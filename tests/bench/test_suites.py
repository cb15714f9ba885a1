"""Suites and their TOML files, the small scale, and the commands of the jobs."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from fidec import algos, tasks
from fidec.bench import data as suite_data
from fidec.bench.jobs import check_environments, command, jobs
from fidec.bench.suites import SMALL, SUITES, Variant, find_suite, is_manipulation, make_plan
from fidec.cli.train import TrainArgs, read_args
from fidec.errors import BusyError, ConfigError, DataError, RunError
from fidec.tasks.paper import ABLATION
from fidec.train.resolve import resolve
from helpers import some
from helpers.suites import jobs_of, write_run

CUBE, ANT = "cube-single-play-singletask-task2-v0", "antmaze-large-navigate-singletask-task1-v0"
HUMANOID = "humanoidmaze-medium-navigate-singletask-v0"


def test_every_suite_has_its_tasks():
    suites = {name: SUITES.get(name) for name in SUITES.names()}
    for suite in suites.values():
        assert suite.scale or all(tasks.find(task, suite.setting) is not None for task in suite.ids)
    rows = {setting: [t for t in tasks.TASKS if t.setting == setting] for setting in ("offline", "online")}
    assert suites["paper"].ids == tuple(row.id for row in rows["offline"])
    assert suites["paper-online"].ids == tuple(row.id for row in rows["online"])
    state = [row.id for row in rows["offline"] if row.benchmark == "ogbench" and not row.visual]
    assert suites["ogbench-state"].ids == tuple(state)
    defaults = {some(tasks.find(f"{name.split('-singletask')[0]}-singletask-v0")).id for name in state}
    assert set(suites["ogbench-default"].ids) == defaults
    parts = ("ogbench-state", "ogbench-visual", "d4rl-antmaze", "d4rl-adroit")
    assert sorted(task for name in parts for task in suites[name].ids) == sorted(suites["paper"].ids)


def test_a_job_follows_the_published_protocol():
    (job,) = jobs_of("paper", words=("fql",), patterns=(CUBE,))
    assert (job.plan.steps, job.plan.averaged) == (1_000_000, (800_000, 900_000, 1_000_000))
    assert (job.plan.batch_size, job.plan.eval_interval, job.plan.eval_episodes) == (256, 100_000, 50)
    assert not [word for word in job.arguments() if word.startswith("--algo.")]
    assert job.config.options == algos.get("fql").configure("recommended", alpha=300.0)
    assert job.directory == Path("runs") / CUBE / "fql-recommended" / "seed000"
    (short,) = jobs_of("paper", words=("fql",), patterns=(CUBE,), steps=250_000)
    assert (short.plan.steps, short.plan.averaged) == (250_000, (100_000, 200_000, 250_000))


@pytest.mark.parametrize("name", ["demo-online", "longer-steps", "paper", "trust"])
def test_the_arguments_of_a_job_are_its_configuration(name, tmp_path):
    """`fidec train` reads from the arguments what the scheduler compares with the run."""
    scale = SMALL if name == "paper" else None
    made = {job.variant.label: job for job in jobs_of(name, tmp_path, scale=scale)}
    for job in made.values():
        config = resolve(read_args(job.arguments(), "fidec train")[0])
        assert dataclasses.replace(config, seed=job.seed, out=job.directory) == job.config


def test_an_online_job_follows_the_published_protocol():
    fql, rlpd = jobs_of("paper-online", words=("fql", "rlpd"), patterns=(HUMANOID,))
    assert (fql.plan.steps, fql.plan.online_steps, fql.plan.eval_interval) == (1_000_000, 1_000_000, 100_000)
    assert (fql.plan.before, fql.plan.averaged) == ((1_000_000,), (2_000_000,))
    assert (rlpd.plan.steps, rlpd.plan.online_steps) == (0, 1_000_000)
    assert (rlpd.plan.before, rlpd.plan.averaged) == ((), (1_000_000,))
    assert fql.config.options.alpha == 100.0  # 30 in the offline setting
    short = jobs_of("paper-online", words=("fql", "rlpd"), patterns=(HUMANOID,), steps=300, online_steps=500)
    lengths = [(job.plan.steps, job.plan.total, job.plan.averaged) for job in short]
    assert lengths == [(300, 800, (800,)), (0, 500, (500,))]


def test_the_small_scale_has_the_documented_size():
    """The measured tables of docs/suites.md depend on it."""
    plan = SMALL.plan()
    assert (plan.steps, plan.batch_size, plan.eval_interval, plan.eval_episodes) == (10_000, 128, 2_500, 12)
    assert (plan.averaged, plan.online_steps) == ((5_000, 7_500, 10_000), 0)
    narrow = {"hidden": (128, 128, 128), "learning_rate": 1e-3}
    expected = {
        (CUBE, "bc"): narrow,  # it has no discount
        (f"visual-{CUBE}", "fql"): {**narrow, "discount": 0.97},
        (ANT, "fidec"): narrow,
        (CUBE, "idql"): {**narrow, "discount": 0.97, "denoiser_width": 128},
    }
    for (task, method), changes in expected.items():
        assert SMALL.changes(task, method, algos.get(method).config.__dataclass_fields__) == changes
    for job in jobs_of("paper", scale=SMALL, patterns=(CUBE,)):
        assert job.config.options.hidden == (128, 128, 128)  # every option exists
    online = SMALL.plan(setting="online")
    assert (online.before, online.averaged) == ((10_000,), (20_000,))
    assert sum(map(is_manipulation, SUITES.get("paper").ids)) == 25 + 5


def test_a_run_is_evaluated_every_interval_after_the_offline_phase_and_at_the_end():
    plan = dataclasses.replace(SMALL.plan(), steps=5, online_steps=6, eval_interval=4)
    assert plan.evaluations == (4, 5, 8, 11)
    assert dataclasses.replace(plan, online_steps=0).evaluations == (4, 5)
    assert dataclasses.replace(plan, steps=0).evaluations == (4, 6)
    for steps, interval, count, expected in ((10, 3, 2, (9, 10)), (2, 5, 3, (2,)), (10, 4, 9, (4, 8, 10))):
        assert make_plan(steps, 0, interval, 1, count).averaged == expected


def test_the_command_contains_the_whole_job():
    (job,) = jobs_of("paper", words=("fidec:paper",), patterns=(CUBE,), seeds=(3,), scale=SMALL)
    words = command([job])
    given = dict(itertools.pairwise(words))
    wanted = {"--task": CUBE, "--algo": "fidec", "--preset": "paper", "--seeds": "3", "--batch-size": "128"}
    assert wanted.items() <= given.items()
    assert words[words.index("--algo.hidden") + 1 :][:3] == ["128"] * 3
    known = {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(TrainArgs)}
    assert all(word in known for word in words if word.startswith("--") and "." not in word)
    assert "--online-steps" not in words
    fql, rlpd = (command([job]) for job in jobs_of("paper-online", words=("fql", "rlpd"), patterns=(HUMANOID,)))
    for words, steps in ((fql, 1_000_000), (rlpd, 0)):
        config = resolve(read_args(words[1 : words.index("--seeds")], "fidec train")[0])
        assert (config.steps, config.online_steps) == (steps, 1_000_000)


def test_a_finished_run_without_its_configuration_is_not_new(tmp_path):
    (job,) = jobs_of("paper", tmp_path, words=("fql",), patterns=(CUBE,), scale=SMALL)
    write_run(job, [50.0] * len(job.plan.evaluations))
    (job.directory / "config.json").unlink()
    for call in (job.state, lambda: command([job])):
        with pytest.raises(RunError, match=rf"{job.directory} has no config\.json, but it has eval\.jsonl, status"):
            call()


def test_methods_that_the_paper_does_not_have_on_a_task_run_only_if_they_are_named():
    task = SUITES.get("ogbench-visual").ids[0]
    paper = some(tasks.find(task)).paper
    assert {job.variant.method for job in jobs_of("ogbench-visual", patterns=(task,))} == set(paper)
    assert [job.variant.method for job in jobs_of("ogbench-visual", patterns=(task,), words=("bc",))] == ["bc"]


def test_variants_are_chosen_by_name_and_preset():
    def labels(suite, *words):
        return [variant.label for variant in SUITES.get(suite).choose_variants(words)]

    assert labels("paper", "fidec", "fidec:paper", "fql") == ["fidec", "fidec:paper", "fql"]
    assert labels("ablation-metric", "fidec") == ["fidec:paper isotropic", "fidec:paper t0.80"]  # it has no other
    assert labels("paper", "rebrac", "rebrac:recommended") == ["rebrac:released", "rebrac"]
    assert labels("ablation-metric", "iql", "fidec:released") == ["iql", "fidec:released"]  # added


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"patterns": ("cube",)}, r"no task 'cube'.*whole id"),
        ({"words": ("fidek",)}, "suite 'paper': there is no method 'fidek'; did you mean fidec"),
        ({"words": ("fql:papper",)}, "no preset of fql 'papper'"),
        ({"seeds": (0, -1)}, "seed must be at least 0"),
        ({"steps": -5}, "--steps"),
        ({"online_steps": -5}, "--online-steps must be at least 1"),
        ({"online_steps": 5}, "suite 'paper' is offline: leave --online-steps out"),
    ],
)
def test_wrong_arguments_are_errors_before_anything_starts(keywords, message):
    with pytest.raises(ConfigError, match=message):
        jobs_of("paper", **{"patterns": (CUBE,), **keywords})


def test_a_method_that_is_not_trained_online_is_an_error_with_the_reason():
    with pytest.raises(ConfigError, match=f"bc is not trained online: {algos.get('bc').offline_only}"):
        jobs_of("paper-online", words=("fql", "bc"))


def test_the_ablation_is_the_papers():
    variants = SUITES.get("ablation-t-eps").variants
    columns = list(ABLATION["scene-play-singletask-task2-v0"])
    assert [variant.paper for variant in variants] == columns
    assert [f"{v.options['t_eps']:.2f}" for v in variants[1:]] == columns[1:]
    assert SUITES.get("ablation-t-eps").ids == SUITES.get("ablation-metric").ids == tuple(ABLATION)
    assert variants[3].reported("scene-play-singletask-task2-v0") == (70.0, 7.0)
    # The paper's row of averages follows from its rows. Its spread is the one over tasks.
    averages = ((36, 17), (48, 23), (49, 25), (51, 25), (45, 21), (36, 23), (30, 33))
    for column, printed in zip(columns, averages, strict=True):
        means = [row[column].mean for row in ABLATION.values()]
        assert (np.mean(means), np.std(means)) == pytest.approx(printed, abs=1.0)


@pytest.mark.parametrize("name", ["ablation-metric", "ablation-t-eps"])
def test_the_arms_of_an_ablation_differ_in_one_option(name):
    arms: dict[str, dict[str, dict]] = {}
    for job in jobs_of(name):
        arms.setdefault(job.task, {})[job.variant.suffix] = dataclasses.asdict(job.config.options)
    assert tuple(arms) == SUITES.get(name).ids
    for task, options in arms.items():
        reference = options["t0.80"]
        for suffix, own in options.items():
            assert own.keys() == reference.keys()
            changed = {option for option in own if own[option] != reference[option]}
            expected = {"t0.80": set(), "isotropic": {"constraint"}}.get(suffix, {"t_eps"})
            assert changed == expected, f"{task} {suffix}"
        assert len(options) == len(SUITES.get(name).variants)


def test_the_benchmarks_suites_run_the_presets_of_the_code_behind_the_papers_numbers():
    for suite in (SUITES.get(name) for name in SUITES.names()):
        if suite.scale is not None or suite.name.startswith("ablation-"):
            continue
        presets = {(variant.method, variant.preset) for variant in suite.variants}
        for method, _ in presets:
            parity = algos.get(method).parity
            assert not parity or {preset for other, preset in presets if other == method} == {parity}, suite.name
    assert (algos.get("rebrac").parity, algos.get("deflow").parity) == ("released", "paper")


def test_the_demo_suites_have_options_that_exist():
    made = jobs(SUITES.get("demo"), out=Path("out"), data_dir=Path("data"), seeds=(0, 1), steps=10)
    assert all(job.config.options.hidden == (128, 128, 128) and job.plan.averaged == (10,) for job in made)
    assert made[-1].directory == Path("out") / CUBE / "fidec-recommended" / "seed001"
    online = {(job.task, job.variant.label): job for job in jobs_of("demo-online")}
    assert len(online) == 2 * 5
    maze = SUITES.get("demo-online").ids[1]
    options = online[CUBE, "calql"].config.options
    assert (options.alpha, options.discount, options.policy_learning_rate) == (0.01, 0.97, 3e-4)
    assert online[maze, "fidec:paper"].config.options.budget == 0.01
    assert {job.plan.steps for (_, label), job in online.items() if label == "rlpd"} == {0}


def test_a_variant_may_change_the_run(tmp_path):
    made = {job.variant.label: job for job in jobs_of("longer-steps", tmp_path, patterns=(CUBE,))}
    ends = (" n5", " chunk5")
    assert set(made) == {"fql", "qam", "fidec:nats one-step"} | {
        f"{name}{end}" for name in ("fql", "fidec:nats", "qam") for end in ends
    }
    chunk, slower = made["fidec:nats chunk5"], made["qam chunk5"]
    assert (chunk.plan.steps, slower.plan.steps) == (15_000, 3_000)
    given = dict(itertools.pairwise(command([slower])))
    assert {"--chunk": "5", "--flow-updates": "10000", "--steps": "3000"}.items() <= given.items()
    write_run(chunk, [50.0] * len(chunk.plan.evaluations))
    assert chunk.state() == "done"
    other = dataclasses.replace(chunk, config=dataclasses.replace(chunk.config, chunk=4, replan=4))
    with pytest.raises(ConfigError, match="chunk 5, not 4"):
        other.state()


def test_a_variant_may_run_on_some_tasks_only():
    def labels(pattern, *words):
        return {job.variant.label for job in jobs_of("trust", patterns=(pattern,), words=words)}

    chunked = {"fidec:nats chunk5", "fql chunk5"}
    assert labels("cube-*") - labels("pen-*") == chunked
    assert labels("*", "fql") == {"fql", "fql chunk5"}
    assert labels("pen-*", "fql") == {"fql"}


def test_a_variant_may_have_seeds_of_its_own():
    def seeds(**others):
        made = jobs_of("trust", patterns=("pen-*",), **others)
        return {label: [j.seed for j in made if j.variant.label == label] for label in ("fql", "bc")}

    assert seeds() == {"fql": [0, 1, 2], "bc": [0, 1]}
    assert seeds(seeds=(7,)) == {"fql": [7], "bc": [7]}


# --- TOML files -----------------------------------------------------------------------------------------------------

ROBOT = 'name = "robot"\nenv = "my_package:Robot-v0"\ndata = "npz:robot.npz"'
OWN = """
summary = "my own data"
seeds = [3, 4]
methods = ["bc", { name = "fql", options = { alpha = 3.0, hidden = [8, 8] } }, "fidec:paper"]

[[tasks]]
name = "robot"
env = "my_package:Robot-v0"
data = "npz:robot.npz"
options.bc = { learning_rate = 1e-2 }

[scale]
steps = 50
options = { hidden = [16] }
"""


def test_a_users_file_is_a_suite(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(OWN)
    suite = find_suite(str(path))
    assert (suite.name, suite.seeds, suite.ids, some(suite.scale).steps) == ("own", (3, 4), ("robot",), 50)
    assert suite.tasks[0].id is None
    assert suite.tasks[0].data == f"npz:{tmp_path / 'robot.npz'}"  # beside the file
    assert suite.variants[1] == Variant("fql", options={"alpha": 3.0, "hidden": (8, 8)})
    assert suite.variants[2].label == "fidec:paper"
    assert some(suite.scale).plan().evaluations == (50,)
    job = jobs(suite, out=tmp_path, data_dir=None)[0]
    assert job.data() == suite.tasks[0].data
    given = {"--env": "my_package:Robot-v0", "--data": suite.tasks[0].data, "--algo.learning-rate": "0.01"}
    assert given.items() <= dict(itertools.pairwise(command([job]))).items()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('summary = "my own data"', "summary = 3", "summary is 3, expected text"),
        ("seeds = [3, 4]", 'seeds = ["a"]', r'seeds\[0\] is "a", expected a whole number'),
        ("seeds = [3, 4]", "seedz = [3]", "no key in the suite 'seedz'; did you mean seeds"),
        ("seeds = [3, 4]", 'setting = "on"', 'setting is \'on\', expected "offline" or "online"'),
        ("steps = 50", "step = 50", "no key in scale 'step'; did you mean steps"),
        ("steps = 50", "steps = 0.5", r"scale.steps is 0.5, expected a whole number"),
        ("steps = 50", "rows = 5", "scale has no `steps`"),
        ('"bc", {', '"bcc", {', "there is no method 'bcc'; did you mean bc"),
        ('data = "npz:robot.npz"', "", "data of task 'robot' is None, expected a data source"),
        ('name = "robot"', 'name = "humanoid*z"', "tasks is 'humanoid\\*z', expected a pattern"),
        ('name = "robot"\n', "", r"tasks\[0\] is .*expected a name, or a table with a `name`"),
        ('"fidec:paper"]', '"bc"]', "methods is 'bc-recommended', expected each entry once"),
        ("[scale]\nsteps = 50\noptions = { hidden = [16] }", "", "scale is None, .*no published protocol for robot"),
        ("alpha = 3.0", "alpah = 3.0", "no option of fql 'alpah'"),
        (
            '"fql", options',
            '"fql", run = { chunks = 5 }, options',
            "no option in `run` of a suite's method 'chunks'; did",
        ),
        (
            '"fql", options',
            '"fql", run = { steps = "x" }, options',
            "`run` of fql: steps is .*expected a whole number",
        ),
        ('"bc", {', '{ name = "bc", run = { n_step = 5 } }, {', "--n-step is for methods that learn a value: bc"),
        ('"bc", {', '{ name = "bc", run = { flow_updates = 5 } }, {', "bc cannot be trained with a frozen flow"),
        ('"fql", options', '"fql", run = { chunk = 5, n_step = 2 }, options', "--n-step 2 is less than --chunk 5"),
        ('"bc", {', '{ name = "bc", tasks = ["cube-*"] }, {', "own.toml has no task 'cube-\\*'"),
        ("options.bc", "options.bcc", "there is no method 'bcc'; did you mean bc"),
        (
            "steps = 50\n",
            "steps = 50\nmethods.fqll = { alpha = 1.0 }\n",
            "there is no method 'fqll'; did you mean fql",
        ),
        ("{ hidden = [16] }", "{ hiden = [16] }", "no option of the suite's methods 'hiden'; did you mean hidden"),
        ('"fidec:paper"]', '"fidec:papper"]', "no preset of fidec 'papper'; did you mean paper"),
        ("npz:robot", "npzz:robot", "data of task 'robot': there is no data source 'npzz'; did you mean npz"),
        ("seeds = [3, 4]", "seeds = []", "seeds is empty"),
        ("seeds = [3, 4]", "seeds = [3, 3]", "each seed can be given once"),
        ('"bc", {', '{ name = "bc", seeds = [5, 5] }, {', "seeds 5 5: each seed can be given once"),
        ('env = "my_package:Robot-v0"\n', "", None),  # trained without evaluation
        ('env = "my_package:Robot-v0"', 'env = "Pendulum-v1"', None),
        ('env = "my_package:Robot-v0"', 'env = "Pendulm-v1"', "robot: Gymnasium has no environment 'Pendulm-v1'"),
        ("my_package", "my_pakage", "robot: .*needs the module my_pakage, which cannot be imported"),
        (ROBOT, 'name = "cube-single-play-singletask-task9-v0"', "there is no task '.*task9-v0'; did you mean"),
        ("[[tasks]]", "[[tasks]", "is not valid TOML"),
    ],
)
def test_an_error_in_a_file_names_the_file_the_key_and_what_is_allowed(tmp_path, old, new, message):
    """Before any process starts. No message: there is no error."""
    path = tmp_path / "own.toml"
    assert old in OWN
    path.write_text(OWN.replace(old, new))
    with pytest.raises(ConfigError, match=message) if message else nullcontext() as error:
        check_environments(jobs(find_suite(str(path)), out=tmp_path, data_dir=None))
    assert error is None or str(path) in str(error.value)


def test_a_misspelt_method_on_a_task_of_the_paper_is_not_left_out_silently(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(f'tasks = ["{CUBE}"]\nmethods = ["bc", "fqll"]')
    with pytest.raises(ConfigError, match=r"own\.toml: there is no method 'fqll'; did you mean fql"):
        jobs(find_suite(str(path)), out=tmp_path, data_dir=None)
    path.write_text(f'tasks = ["{CUBE}"]\nmethods = ["rlpd"]')
    with pytest.raises(ConfigError, match="none of these methods runs on these tasks"):
        jobs(find_suite(str(path)), out=tmp_path, data_dir=None)


def test_a_missing_file_and_an_unknown_suite(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        find_suite(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="no suite 'papr'; did you mean paper"):
        find_suite("papr")


# --- data -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def maker(monkeypatch, tmp_path):
    """Replaces `make_dataset`: records its calls, and raises the given errors in turn."""
    calls, errors = [], []

    def make(name, rows, **keywords):
        calls.append((name, rows, keywords))
        if errors:
            raise errors.pop(0)

    monkeypatch.setattr(suite_data, "make_dataset", make)
    monkeypatch.setattr(suite_data, "PAUSE", 0.0)
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path / "cache"))
    return calls, errors


def provide(tmp_path, pattern, said):
    made = jobs(
        SUITES.get("paper"), out=tmp_path, data_dir=tmp_path / "data", words=("bc",), patterns=(pattern,), scale=SMALL
    )
    return suite_data.provide(made, SMALL, 0, said.append)


def test_data_is_made_once_for_all_tasks_that_share_it(tmp_path, maker):
    calls, errors = maker
    errors.append(DataError("the disk is full"))
    without = provide(tmp_path, "cube-single-*", [])
    assert [call[1] for call in calls] == [100_000]
    assert len(without) == 5
    assert all("the disk is full" in reason for reason in without.values())


def test_data_that_another_process_makes_is_waited_for(tmp_path, maker):
    calls, errors = maker
    errors += [BusyError("taken"), BusyError("taken")]
    said = []
    assert provide(tmp_path, CUBE, said) == {}
    assert len(calls) == 3
    assert sum("waiting for another process" in line for line in said) == 1
