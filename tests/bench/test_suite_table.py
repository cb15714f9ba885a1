"""The table of a suite against numbers worked out by hand, in its four formats."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re

import pytest

from fidec import tasks
from fidec.bench import schedule, table
from fidec.bench.jobs import jobs
from fidec.bench.suites import SMALL, SUITES, Scale, read_suite
from fidec.bench.time_estimate import estimate
from fidec.errors import ConfigError, RunError
from fidec.store.rundir import RunDirectory
from helpers import some
from helpers.suites import SHA, jobs_of, own_jobs, small_jobs, write_rows, write_run

CUBE = [f"cube-single-play-singletask-task{k}-v0" for k in (1, 2)]
SCENE = "scene-play-singletask-task1-v0"
# Scores of the four evaluations by (task, method, seed); the last three are averaged.
SCORES = {
    (CUBE[0], "fql", 0): (90, 10, 20, 30),  # 20
    (CUBE[0], "fql", 1): (90, 30, 40, 50),  # 40
    (CUBE[1], "fql", 0): (0, 60, 60, 60),  # 60
    (CUBE[1], "fql", 1): (0, 80, 80, 80),  # 80
    (CUBE[0], "fidec:paper", 0): (0, 40, 40, 40),  # 40, a tie with one, more than the other
    (CUBE[0], "fidec:paper", 1): (0, 50, 50, 50),
    (CUBE[1], "fidec:paper", 0): (0, 90, 90, 90),
    (CUBE[1], "fidec:paper", 1): (0, 70, 70, 70),  # between the two
    (SCENE, "fql", 0): (0, 5, 5, 5),
}


def jobs_in(out, seeds=(0, 1)):
    return small_jobs("paper", out, "bc", "fql", "fidec:paper", seeds=seeds)


@pytest.fixture
def runs(tmp_path):
    made = jobs_in(tmp_path)
    for job in made:
        scores = SCORES.get((job.task, job.variant.label, job.seed))
        if scores is not None:
            write_run(job, scores)
    return made


def render(runs, form="md", baseline="", scale: Scale | None = SMALL) -> str:
    return table.FORMATS[form](table.report(runs, scale, baseline))


def content(runs, scale: Scale | None = SMALL):
    """The JSON, as a program would read it."""
    return json.loads(json.dumps(table.to_json(table.report(runs, scale)), allow_nan=False))


def lines_of(runs, scale: Scale | None = SMALL):
    found = content(runs, scale)["lines"]
    return {(line["task"] or line["level"], line["category"], line["method"]): line for line in found}


def test_numbers_by_hand(runs):
    lines = lines_of(runs)
    cube, scene = tasks.CATEGORY_OF[CUBE[0]], tasks.CATEGORY_OF[SCENE]
    line = lines[CUBE[0], cube, "fql"]
    assert (line["mean"], line["runs"], line["paper"]) == (30, 2, some(tasks.find(CUBE[0])).paper["fql"].mean)
    assert line["std"] == pytest.approx(10 * 2**0.5)  # of 20 and 40
    total = lines["category", cube, "fql"]
    assert (total["mean"], total["tasks"], total["runs"]) == (50, 2, 4)
    assert total["std"] == pytest.approx(10 * 2**0.5)  # of the seeds' means, 40 and 60
    assert total["iqm"] == 50  # 20 and 80 are cut
    assert total["iqm_low"] < 50 < total["iqm_high"]
    paper = [some(tasks.find(task)).paper["fql"].mean for task in CUBE]
    assert total["paper"] == sum(paper) / 2  # of the same two tasks, not of the category's five
    better = lines["category", cube, "fidec:paper"]["better"]
    assert better == ((0.5 + 1 + 1 + 1) / 4 + (1 + 1 + 1 + 0) / 4) / 2
    assert lines["category", cube, "fql"]["better"] is None  # the baseline
    assert (lines[SCENE, scene, "fql"]["std"], lines["category", scene, "fql"]["iqm_low"]) == (None, None)
    assert lines["all", "all", "fql"]["tasks"] == 3
    assert lines["all", "all", "fidec:paper"]["tasks"] == 2
    assert not any(method == "bc" for _, _, method in lines)  # it has no run


def test_markdown(runs):
    text = render(runs, "md")
    caption = text.splitlines()[0]
    for words in ("scale small", "Reduced scale", "regenerated", "seeds 0, 1", "10,000 steps", "3 of the suite's 73"):
        assert words in caption
    assert f"| {CUBE[0]} | 30.0 ± 14.1 (97 ± 2) |" in text
    assert "| mean of 2 tasks | 50.0 ± 14.1 (97) |" in text
    assert "| P(better than fql) | – | 0.81 [" in text
    assert "[2 of 3 tasks]" in text.partition("### All tasks")[2]
    assert "| some-play-v0 | regenerated | 100,000 | abababababab |" in text
    assert len(text.split("### ")[1:]) == 4  # two categories, all, the data


def test_scores_on_restored_rules_say_so(tmp_path):
    (job,) = small_jobs("d4rl-adroit", tmp_path, "bc", patterns=("door-human-v1",))
    write_run(job, (0, 1, 2, 3))
    assert "D4RL rules restored on MuJoCo" in render([job])


def test_csv_has_one_row_for_each_line_with_the_data(runs):
    rows = list(csv.DictReader(io.StringIO(render(runs, "csv"))))
    (row,) = [r for r in rows if (r["task"], r["method"]) == (CUBE[1], "fidec:paper")]
    assert (float(row["mean"]), row["runs"], row["data"], row["transitions"]) == (80, "2", "regenerated", "100000")
    assert row["sha256"] == SHA[:12]
    assert {r["level"] for r in rows} == {"task", "category", "all"}


def test_tex_is_escaped_and_balanced(runs):
    text = render(runs, "tex")
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 4
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 4
    assert r"30.0 $\pm$ 14.1 (97 $\pm$ 2)" in text
    assert "95 \\%" in text
    assert not re.search(r"(?<!\\)%", text)
    assert not re.search("[±–→]", text)
    for part in text.split(r"\toprule")[1:]:
        body = part.partition(r"\bottomrule")[0]
        assert len({line.count(" & ") for line in body.splitlines() if line.endswith(r"\\")}) == 1
    assert table.tex_escape(r"50 % of a_b & {c} \ ~^ #$") == (
        r"50 \% of a\_b \& \{c\} \textbackslash{} \textasciitilde{}\textasciicircum{} \#\$"
    )


def test_json_names_every_run(runs):
    found = content(runs)
    assert len(found["runs"]) == len(SCORES)
    assert found["scale"] == "small"
    assert {run["score"] for run in found["runs"]} == {20, 40, 60, 80, 50, 90, 70, 5}


def test_runs_on_different_data_cannot_be_compared(tmp_path):
    made = jobs_in(tmp_path, seeds=(0,))
    one, two = [job for job in made if job.task == SCENE][:2]
    write_run(one, (0, 1, 2, 3), sha256="cd" * 32, file_sha256=None)
    write_run(two, (0, 1, 2, 3), sha256="cd" * 32)  # the same arrays, though only one run knows the file's hash
    assert "| some-play-v0 | regenerated | 100,000 | abababababab |" in render(made, "md")
    facts = json.loads((two.directory / "environment.json").read_text())
    facts["dataset"]["sha256"] = SHA
    (two.directory / "environment.json").write_text(json.dumps(facts))
    with pytest.raises(RunError, match="trained on different data"):
        render(made, "md")


def test_the_caption_calls_only_the_published_protocol_published(tmp_path):
    def caption(out, name="paper", method="fql", pattern=SCENE, regenerated: bool | None = True, scale=None, **steps):
        (job,) = jobs_of(name, tmp_path / out, words=(method,), patterns=(pattern,), scale=scale, **steps)
        write_run(job, [1] * len(job.plan.evaluations), regenerated=regenerated)
        return render([job], scale=scale).splitlines()[0]

    full = caption("full")
    assert "The published protocol." in full
    assert "Data regenerated, not the official files." in full
    short = caption("short", steps=1_000, regenerated=None)
    assert "Shortened: 1,000 steps, not the published protocol" in short
    assert "Data of unknown origin." in short
    assert "Another length: 2,000,000 steps" in caption("long", steps=2_000_000)
    both = caption("both", steps=1_000, scale=SMALL)
    assert "3 layers of 128, steps of 128 transitions" in both
    assert "10,000" not in both
    assert "The published protocol." in caption("online", "paper-online", "rlpd", "scene*")
    online = caption("online-short", "paper-online", "rlpd", "scene*", online_steps=2_000)
    assert "Shortened: 2,000 online steps, not the published protocol" in online


def test_a_finished_run_on_other_data_is_not_the_wanted_one(tmp_path):
    job = next(job for job in jobs_in(tmp_path, seeds=(0,)) if job.task == SCENE)
    write_run(job, (0, 1, 2, 3), data="npz:/elsewhere/scene.npz")
    with pytest.raises(ConfigError, match=r"data npz:/elsewhere/scene.npz, not ogbench:scene-play"):
        job.state()
    assert job.state(any_data=True) == "done"  # for the table, which names the data
    elsewhere = dataclasses.replace(job.config, data="npz:/elsewhere/scene.npz")
    assert dataclasses.replace(job, config=elsewhere).state() == "done"


def test_a_run_with_another_configuration_or_without_a_score_is_left_out_and_named(tmp_path, capsys):
    made = jobs_in(tmp_path, seeds=(0,))
    one, two, three = [job for job in made if job.task == SCENE]
    write_run(one, (0, 1, 2, 3))
    write_run(two, (0, 1, 2, 3), batch_size=64)
    write_run(three, (0, 1, None, 3))
    text = render(made, "md")
    assert [line for line in text.splitlines() if line.startswith("| task")] == ["| task | bc |"]
    err = capsys.readouterr().err
    assert "batch_size 64, not 128" in err
    assert "no score at step 7500" in err


def test_a_baseline_that_is_not_there(runs):
    with pytest.raises(ConfigError, match="--baseline iql: the table has bc, fql, fidec:paper"):
        render(runs, "md", "iql")
    assert "P(better than fidec:paper)" in render(runs, "md", "fidec:paper")


def test_without_a_run_the_table_has_the_papers_numbers(tmp_path):
    text = render(jobs_of("ablation-t-eps", tmp_path), scale=None)
    assert "No run of ours is finished yet" in text
    assert "| – (43 ± 8†) | – (54 ± 11†) |" in text
    assert "| mean | – (36.6†) |" in text
    assert "82 ± 4 → 99 ± 2" in render(jobs_of("paper-online", tmp_path), scale=None)


@pytest.mark.parametrize(
    ("suite", "task", "marked"),
    [
        ("paper", CUBE[0], {"fql": False, "rebrac:released": False, "rebrac:recommended": True, "bc": True}),
        ("paper", CUBE[0], {"deflow:paper": False, "deflow:recommended": True, "fidec:paper": True, "fidec": True}),
        ("d4rl-adroit", "door-human-v1", {"iql": True, "rebrac:released": True, "fql": False}),  # copied from CORL
        ("paper-online", "door-cloned-v1", {"iql": True, "fql": False, "rlpd": False}),
    ],
)
def test_numbers_of_other_code_are_marked(tmp_path, suite, task, marked):
    made = jobs_of(suite, tmp_path, words=tuple(marked), patterns=(task,))
    report = table.report(made, None)
    assert {line.method: not line.same_code for line in report.lines if line.task} == {
        name.removesuffix(":recommended"): other for name, other in marked.items()
    }
    assert ("†: a number of code that was not released" in report.caption) == any(marked.values())
    row = next(line for line in table.markdown(report).splitlines() if line.startswith(f"| {task}"))
    assert [cell.endswith("†)") for cell in row.strip("| ").split(" | ")[1:]] == list(marked.values())
    assert r"$\dagger$" in table.tex(report)
    assert "†" not in table.tex(report)


def test_a_number_beside_changed_options_is_marked(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(f'tasks = ["{SCENE}"]\nmethods = ["fql", {{ name = "iql", options = {{ alpha = 3.0 }} }}]')
    report = table.report(jobs(read_suite(path), out=tmp_path, data_dir=None), None)
    assert {line.method: line.same_code for line in report.lines} == {"fql": True, "iql": False}


def test_costs_come_from_finished_runs_alone(runs):
    fql = [job for job in runs if job.variant.label == "fql"]
    done = [job for job in fql if job.state() == "done"]
    todo = next(job for job in fql if job.task == SCENE and job.seed == 1)
    ant = next(job for job in fql if job.task.startswith("antmaze-giant") and job.seed == 1)
    bc = next(job for job in runs if job.variant.label == "bc")
    found = {job: estimate(job, done) for job in (todo, ant, bc)}
    assert some(found[todo]).seconds(todo.plan) == 10 + 10_000 / 100 + 4 * 5
    assert some(found[todo]).source == "1 finished on this task"
    # Elsewhere an evaluation takes as much longer as the episodes are.
    longer = some(tasks.find(ant.task)).horizon / some(tasks.find(CUBE[0])).horizon
    assert some(found[ant]).evaluation == pytest.approx(5 * longer)
    assert some(found[ant]).source == "5 finished on other tasks"
    assert found[bc] is None


def test_the_flow_that_is_trained_first_is_a_part_of_the_cost(tmp_path):
    """By the updates that it took: it may have stopped early."""
    first, second = small_jobs("longer-steps", tmp_path, "fql", patterns=(CUBE[1],), seeds=(0, 1))[:2]
    write_run(first, (1,) * len(first.plan.evaluations))
    times = [{"step": 1, "time/compile": 3.0}, {"step": 0, "time/proposals": 7.0}]
    write_rows(first.directory, time=[*times, {"step": 500, "time/steps_per_second": 100.0}])
    without = some(estimate(second, [first])).seconds(second.plan)
    with RunDirectory.create(first.directory / "flow") as flow:
        flow.write_config({})
        write_rows(flow.path, time=[{"step": 1, "time/compile": 2.0}, {"step": 1, "time/steps_per_second": 500.0}])
        flow.write_status("done", 4_000)
    assert without == pytest.approx(3 + 7 + second.plan.steps / 100)
    assert some(estimate(second, [first])).seconds(second.plan) == pytest.approx(without + 2 + 4_000 / 500)


def test_a_dry_run_prints_what_one_worker_runs(tmp_path, capsys):
    """Seeds are one command if they are in one state; it takes at most as long as its runs alone."""
    made = small_jobs("paper", tmp_path, "fql", patterns=(SCENE,), seeds=(0, 1, 2, 3, 4))
    for job in made[:2]:
        write_run(job, (1, 2, 3, 4))
    RunDirectory.open(made[1].directory).write_status("preempted", 500)
    made += small_jobs("paper-online", tmp_path, "rlpd", patterns=("scene-*",), seeds=(0, 1))
    schedule.dry_run(made)
    out, err = capsys.readouterr()
    done, resumed, new, *online = out.splitlines()
    assert done == f"# done: {made[0].name}"
    assert resumed == f"fidec train --resume {made[1].directory}  # 2 min (1 finished on this task)"
    assert f" --seeds 2 3 4 --out {made[0].directory.parent}  # at most 6 min (1 finished" in new
    assert [f" --seeds {seed} --out " in line for seed, line in enumerate(online)] == [True, True]
    assert "4 to go would take about 9 min one after the other; the cost of 2 is unknown" in err


# --- offline to online ----------------------------------------------------------------------------------------------

ONLINE = ["scene-play-singletask-v0", "puzzle-4x4-play-singletask-v0"]
# Eight evaluations, the fourth at the hand-over; RLPD has only the four of the online phase.
ONLINE_SCORES = {
    (ONLINE[0], "fql", 0): (0, 1, 2, 10, 5, 6, 7, 50),
    (ONLINE[0], "fql", 1): (0, 1, 2, 20, 5, 6, 7, 70),
    (ONLINE[1], "fql", 0): (0, 0, 0, 30, 0, 0, 0, 80),
    (ONLINE[1], "fql", 1): (0, 0, 0, 50, 0, 0, 0, 80),
    (ONLINE[0], "rlpd", 0): (3, 4, 5, 60),
    (ONLINE[0], "rlpd", 1): (3, 4, 5, 70),
}


@pytest.fixture
def online(tmp_path):
    made = small_jobs("paper-online", tmp_path, "fql", "rlpd", seeds=(0, 1))
    for job in made:
        scores = ONLINE_SCORES.get((job.task, job.variant.label, job.seed))
        if scores is not None:
            write_run(job, scores)
    return made


def test_online_the_score_is_that_before_and_after(online):
    found = content(online)
    lines = {(line["task"] or line["level"], line["method"]): line for line in found["lines"]}
    scene, total = lines[ONLINE[0], "fql"], lines["all", "fql"]
    assert (scene["before"], scene["mean"]) == (15, 60)
    assert scene["before_std"] == pytest.approx(50**0.5)
    assert (total["before"], total["mean"]) == ((15 + 40) / 2, (60 + 80) / 2)
    assert total["before_std"] == pytest.approx(7.5 * 2**0.5)  # of the seeds' means, 20 and 35
    rlpd = lines[ONLINE[0], "rlpd"]
    assert (rlpd["before"], rlpd["before_std"], rlpd["mean"]) == (None, None, 65)
    assert rlpd["better"] == (1 + 0.5 + 1 + 0) / 4  # after the online phase: 60 and 70 against 50 and 70
    assert {(run["method"], run["before"]) for run in found["runs"]} >= {("fql", 10), ("rlpd", None)}


def test_the_online_table_has_the_papers_form(online):
    text = render(online, "md")
    assert "| 15.0 ± 7.1 → 60.0 ± 14.1 (82 ± 11 → 100 ± 1) | 65.0 ± 7.1 (0 ± 0 → 100 ± 0) |" in text
    caption = text.splitlines()[0]
    assert "10,000 offline + 10,000 online steps, rlpd without an offline phase" in caption
    assert "before → after the online phase, mean ± std over seeds" in caption
    rows = list(csv.DictReader(io.StringIO(render(online, "csv"))))
    (row,) = [r for r in rows if (r["task"], r["method"]) == (ONLINE[1], "fql")]
    assert (row["before"], row["mean"]) == ("40.0", "80.0")
    assert r"15.0 $\pm$ 7.1 $\to$ 60.0 $\pm$ 14.1" in render(online, "tex")


def test_a_run_without_its_evaluation_before_the_online_phase_is_left_out(tmp_path, capsys):
    made = small_jobs("paper-online", tmp_path, "fql", "rlpd")
    fql, rlpd = [job for job in made if job.task == ONLINE[0]]
    write_run(fql, (0, 1, 2, None, 4, 5, 6, 7))
    write_run(rlpd, (0, 1, 2, 3))
    assert [line for line in render(made, "md").splitlines() if line.startswith("| task")] == ["| task | rlpd |"]
    assert "no score at step 10000" in capsys.readouterr().err


def test_an_online_run_of_another_length_or_protocol_is_not_the_wanted_one(tmp_path):
    (job,) = small_jobs("paper-online", tmp_path, "fql", patterns=("scene*",))
    write_run(job, [1] * 8)
    assert job.state() == "done"
    longer = dataclasses.replace(job.config, online_steps=20_000)
    with pytest.raises(ConfigError, match="online_steps 10000, not 20000"):
        dataclasses.replace(job, config=longer).state()
    config = RunDirectory.open(job.directory, read_only=True).read_config()
    config["online"]["updates"] = 4
    job.directory.joinpath("config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"online.updates 4, not 1"):
        job.state()


def test_an_online_step_costs_what_the_log_says(online):
    done = [job for job in online if job.state() == "done"]
    todo = {job.variant.label: job for job in online if job.task.startswith("cube-double") and job.seed == 0}
    found = {job: some(estimate(job, done)) for job in todo.values()}
    longer = some(tasks.find(todo["fql"].task)).horizon / some(tasks.find(ONLINE[0])).horizon
    fql, rlpd = todo["fql"], todo["rlpd"]
    assert (found[fql].update, found[fql].online) == (0.01, 0.05)
    assert found[rlpd].update == 0.0  # it has none offline
    assert found[rlpd].seconds(rlpd.plan) == pytest.approx(10 + 10_000 * 0.05 + 4 * 5 * longer)
    both = 2 * 10 + 10_000 * (0.01 + 0.05)  # each phase is compiled
    assert found[fql].seconds(fql.plan) == pytest.approx(both + 8 * found[fql].evaluation)


def test_the_caption_mentions_the_paper_only_if_it_has_numbers(tmp_path):
    made = jobs_of("demo-online", tmp_path)
    for job in made:
        write_run(job, [25] * len(job.plan.evaluations))
    text = render(made, scale=SUITES.get("demo-online").scale)
    assert "| 25.0 → 25.0 | 25.0 | 25.0 → 25.0 | 25.0 → 25.0 | 25.0 → 25.0 |" in text
    assert "paper's" not in text.splitlines()[0]
    assert text.startswith("**Suite demo-online.** Reduced scale (100,000 rows")


# --- a user's suite -------------------------------------------------------------------------------------------------

SCORES_OF_OWN = {("bc", 0): 10, ("bc", 1): 20, ("fql", 0): 30, ("fql", 1): 40}


def own_runs(directory, **units):
    """The finished runs of a suite whose tasks have these units."""
    made = own_jobs(directory, *units)
    for job in made:
        write_run(job, (SCORES_OF_OWN[job.variant.label, job.seed],), unit=units[job.task], regenerated=None)
    return made, made[0].suite.scale


def test_a_suite_with_one_task_has_means_and_intervals(tmp_path):
    made, scale = own_runs(tmp_path, robot="success in percent")
    assert made[0].directory == tmp_path / "out" / "robot" / "bc-recommended" / "seed000"
    text = render(made, scale=scale)
    assert "| robot | 15.0 ± 7.1 | 35.0 ± 7.1 |" in text
    assert "| IQM | 15.0 [9.8, 23.6] | 35.0 [26.7, 44.7] |" in text  # 100 episodes each, a bootstrap has 10 to 20
    assert "| P(better than fql) | 0.00 [0.00, 0.00] | – |" in text
    caption = text.splitlines()[0]
    assert "1 of the suite's 1 tasks have runs; seeds 0, 1; 20 steps." in caption
    assert "Score: mean of the last evaluation of 50 episodes, success in percent. Cells: ours, mean" in caption


def test_tasks_with_different_units_have_no_total_but_are_compared(tmp_path):
    made, scale = own_runs(tmp_path, robot="success in percent", walker="return")
    text = render(made, scale=scale)
    assert "| robot | 15.0 ± 7.1 |" in text
    assert "| walker (return) | 15.0 ± 7.1 |" in text
    assert "P(better than fql)" in text  # it compares runs on the same task
    assert "| mean" not in text
    assert "IQM |" not in text
    caption = text.splitlines()[0]
    assert "success in percent unless the row of a task names another unit." in caption
    assert "Tasks with different units have no common mean and no common IQM." in caption
    assert "interquartile" not in caption
    lines = lines_of(made, scale)
    assert (lines["walker", "own", "bc"]["unit"], lines["robot", "own", "bc"]["unit"]) == (
        "return",
        "success in percent",
    )
    total = lines["category", "own", "bc"]
    assert (total["unit"], total["mean"], total["iqm"], total["runs"]) == ("", None, None, 4)


def test_tasks_with_one_unit_have_a_total_in_it(tmp_path):
    made, scale = own_runs(tmp_path, robot="return", walker="return")
    text = render(made, scale=scale)
    assert "| mean of 2 tasks | 15.0 ± 7.1 |" in text
    assert "50 episodes, return." in text
    for path in tmp_path.glob("out/*/*/*/eval.jsonl"):  # a plug-in's own rule
        path.write_text(path.read_text().replace('"evaluation/return"', '"other"'))
    assert "50 episodes, score." in render(made, scale=scale)


def test_runs_without_a_score_are_no_failure(cli, tmp_path):
    """A user's data without an environment."""
    made = own_jobs(tmp_path, "robot")
    for job in made:
        write_run(job, (None,))
    code, out, err = cli("suite", "run", "own.toml", "--out", "out")
    assert (code, out) == (0, "")
    assert err.count("has no score at step 20: it cannot be in the table") == len(made)
    code, out, err = cli("suite", "table", "own.toml", "--out", "out")
    assert (code, out) == (RunError.exit_code, "")
    assert "no run of own.toml in out is finished with a score" in err


def test_success_and_d4rls_score_are_not_averaged(tmp_path):
    made = small_jobs("paper", tmp_path, "bc", patterns=(SCENE, "door-human-v1"))
    for job in made:
        write_run(job, (0, 5, 5, 5))
    text = render(made)
    assert "| door-human-v1 (normalised score) | 5.0 " in text
    assert "### All tasks" not in text  # one method has no P(better) either
    assert "mean of 2 tasks" not in text
