"""The table of a suite against numbers worked out by hand, in its four formats. The runs are written, not trained."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re

import pytest

from fidec import tasks
from fidec.cli import suite_table
from fidec.errors import ConfigError, RunError
from fidec.report.cost import duration, estimates
from fidec.report.tex import escape
from fidec.tasks.scale import SMALL
from fidec.tasks.suites import SUITES
from fidec.train.config import RunConfig
from fidec.train.rundir import RunDirectory
from fidec.train.suite import jobs

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
SHA = "ab" * 32


def write_run(job, scores, sha256=SHA, file_sha256=SHA, regenerated=True, **changes):
    with RunDirectory.create(job.directory) as directory:
        plan = job.plan
        config = RunConfig(
            task=job.task,
            algo=job.variant.method,
            preset=job.variant.preset,
            seed=job.seed,
            steps=plan.steps,
            batch_size=plan.batch_size,
            eval_interval=plan.eval_interval,
            eval_episodes=plan.eval_episodes,
            data=job.data(),
            options=job.options(),
        )
        directory.write_config({**config.to_json(), **changes})
        info = {"file": "data/some-play-v0.npz", "regenerated": regenerated, "file_sha256": file_sha256}
        facts = {"source": f"ogbench:{job.task}", "transitions": 100_000, "sha256": sha256, "info": info}
        directory.write_environment({"dataset": facts})
        rows = [{"step": plan.eval_interval * k, "evaluation/score": score} for k, score in enumerate(scores, 1)]
        (directory.path / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        times = [{"step": 1, "time/compile": 10.0}, {"step": 500, "time/steps_per_second": 100.0}]
        times.append({"step": 2_500, "time/evaluation": 5.0})
        (directory.path / "time.jsonl").write_text("".join(json.dumps(row) + "\n" for row in times))
        directory.write_status("done", plan.steps)


def jobs_in(out, seeds=(0, 1)):
    words = ("bc", "fql", "fidec:paper")
    return jobs(SUITES["paper"], out=out, data_dir=None, scale=SMALL, words=words, seeds=seeds)


@pytest.fixture
def runs(tmp_path):
    made = jobs_in(tmp_path)
    for job in made:
        scores = SCORES.get((job.task, job.variant.label, job.seed))
        if scores is not None:
            write_run(job, scores)
    return made


def render(runs, form, baseline=""):
    return suite_table.render(runs, SMALL, runs[0].directory, form, baseline)


def lines_of(runs):
    found = json.loads(render(runs, "json"))["lines"]
    return {(line["task"] or line["level"], line["category"], line["method"]): line for line in found}


def test_numbers_by_hand(runs):
    lines = lines_of(runs)
    cube, scene = tasks.CATEGORY_OF[CUBE[0]], tasks.CATEGORY_OF[SCENE]
    line = lines[CUBE[0], cube, "fql"]
    assert (line["mean"], line["runs"], line["paper"]) == (30, 2, tasks.find(CUBE[0]).paper["fql"].mean)
    assert line["std"] == pytest.approx(10 * 2**0.5)  # of 20 and 40
    total = lines["category", cube, "fql"]
    assert (total["mean"], total["tasks"], total["runs"]) == (50, 2, 4)
    assert total["std"] == pytest.approx(10 * 2**0.5)  # of the seeds' means, 40 and 60
    assert total["iqm"] == 50  # 20 and 80 are cut
    assert total["iqm_low"] < 50 < total["iqm_high"]
    paper = [tasks.find(task).paper["fql"].mean for task in CUBE]
    assert total["paper"] == sum(paper) / 2  # of the same two tasks, not of the category's five
    better = lines["category", cube, "fidec:paper"]["better"]
    assert better == ((0.5 + 1 + 1 + 1) / 4 + (1 + 1 + 1 + 0) / 4) / 2
    assert lines["category", cube, "fql"]["better"] is None  # the baseline
    assert (lines[SCENE, scene, "fql"]["std"], lines["category", scene, "fql"]["iqm_low"]) == (None, None)
    assert lines["all", "all", "fql"]["tasks"] == 3
    assert lines["all", "all", "fidec:paper"]["tasks"] == 2
    assert not any(method == "bc" for _, _, method in lines)  # it has no run


def test_markdown_reads_well(runs):
    text = render(runs, "md")
    caption = text.splitlines()[0]
    for words in ("scale small", "Reduced scale", "regenerated", "seeds 0, 1", "10,000 steps", "3 of the suite's 73"):
        assert words in caption
    assert "D4RL" not in caption
    assert f"| {CUBE[0]} | 30.0 ± 14.1 (97 ± 2) |" in text
    assert "| mean of 2 tasks | 50.0 ± 14.1 (97) |" in text
    assert "| P(better than fql) | – | 0.81 [" in text
    assert "[2 of 3 tasks]" in text.partition("### All tasks")[2]
    assert "| some-play-v0 | regenerated | 100,000 | abababababab |" in text
    widths = [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")]
    tables = [block.count("\n") for block in text.split("### ")[1:]]
    assert len(tables) == 4  # two categories, all, the data
    assert set(widths) == {4, 5}


def test_scores_on_restored_rules_say_so(tmp_path):
    (job,) = jobs(
        SUITES["d4rl-adroit"], out=tmp_path, data_dir=None, words=("bc",), patterns=("door-human-v1",), scale=SMALL
    )
    write_run(job, (0, 1, 2, 3))
    assert "D4RL rules restored on MuJoCo" in suite_table.render([job], SMALL, tmp_path, "md")


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
    for table in text.split(r"\toprule")[1:]:
        body = table.partition(r"\bottomrule")[0]
        assert len({line.count(" & ") for line in body.splitlines() if line.endswith(r"\\")}) == 1
    assert escape(r"50 % of a_b & {c} \ ~^ #$") == (
        r"50 \% of a\_b \& \{c\} \textbackslash{} \textasciitilde{}\textasciicircum{} \#\$"
    )


def test_json_names_every_run(runs):
    content = json.loads(render(runs, "json"))
    assert len(content["runs"]) == len(SCORES)
    assert content["scale"] == "small"
    assert {run["score"] for run in content["runs"]} == {20, 40, 60, 80, 50, 90, 70, 5}


def test_runs_on_other_data_do_not_compare(tmp_path):
    made = jobs_in(tmp_path, seeds=(0,))
    one, two = [job for job in made if job.task == SCENE][:2]
    write_run(one, (0, 1, 2, 3))
    write_run(two, (0, 1, 2, 3), sha256="cd" * 32)
    with pytest.raises(RunError, match="not trained on the same data"):
        render(made, "md")


def test_the_same_data_is_so_by_its_content(tmp_path):
    """One run knows the hash of its file, the other does not."""
    made = jobs_in(tmp_path, seeds=(0,))
    one, two = [job for job in made if job.task == SCENE][:2]
    write_run(one, (0, 1, 2, 3), sha256="cd" * 32, file_sha256=None)
    write_run(two, (0, 1, 2, 3), sha256="cd" * 32)
    assert "| some-play-v0 | regenerated | 100,000 | abababababab |" in render(made, "md")


def caption_of(tmp_path, steps=0, scale=None, regenerated: bool | None = True):
    (job,) = jobs(
        SUITES["paper"], out=tmp_path, data_dir=None, words=("fql",), patterns=(SCENE,), steps=steps, scale=scale
    )
    write_run(job, [1] * (job.plan.steps // job.plan.eval_interval), regenerated=regenerated)
    return suite_table.render([job], scale, tmp_path, "md").splitlines()[0]


def test_the_caption_calls_published_only_what_is(tmp_path):
    assert "The published protocol." in caption_of(tmp_path / "full")
    short = caption_of(tmp_path / "short", steps=1_000)
    assert "Shortened: 1,000 steps, not the published protocol" in short
    assert "The published protocol." not in short
    assert "Another length: 2,000,000 steps" in caption_of(tmp_path / "long", steps=2_000_000)
    assert "10,000 steps" in caption_of(tmp_path / "small", scale=SMALL)
    both = caption_of(tmp_path / "both", steps=1_000, scale=SMALL)
    assert "3 layers of 128, steps of 128 transitions" in both
    assert "1,000 steps." in both
    assert "10,000" not in both


def test_data_of_unknown_origin_may_be_the_official_one(tmp_path):
    assert "Data regenerated, not the official files." in caption_of(tmp_path / "made")
    assert "Data of unknown origin." in caption_of(tmp_path / "unknown", regenerated=None)


def test_a_finished_run_on_other_data_is_not_the_one_that_is_asked_for(tmp_path):
    job = next(job for job in jobs_in(tmp_path, seeds=(0,)) if job.task == SCENE)
    write_run(job, (0, 1, 2, 3), data="npz:/elsewhere/scene.npz")
    with pytest.raises(ConfigError, match=r"data npz:/elsewhere/scene.npz, not ogbench:scene-play"):
        job.state()
    assert job.state(any_data=True) == "done"  # for the table, which names the data
    assert dataclasses.replace(job, source="npz:/elsewhere/scene.npz").state() == "done"


def test_a_run_of_other_settings_or_without_a_score_is_left_out_and_named(tmp_path, capsys):
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


def test_without_a_run_the_papers_numbers_stand_alone(tmp_path):
    suite = SUITES["ablation-t-eps"]
    text = suite_table.render(jobs(suite, out=tmp_path, data_dir=None), None, tmp_path, "md")
    assert "No run of ours is finished yet" in text
    assert "| – (43 ± 8) | – (54 ± 11) |" in text
    assert "| mean | – (36.6) |" in text
    online = suite_table.render(jobs(SUITES["paper-online"], out=tmp_path, data_dir=None), None, tmp_path, "md")
    assert "82 ± 4 → 99 ± 2" in online


def test_costs_come_from_finished_runs_alone(runs):
    fql = [job for job in runs if job.variant.label == "fql"]
    done = [job for job in fql if job.state() == "done"]
    todo = next(job for job in fql if job.task == SCENE and job.seed == 1)
    ant = next(job for job in fql if job.task.startswith("antmaze-giant") and job.seed == 1)
    bc = next(job for job in runs if job.variant.label == "bc")
    found = estimates([todo, ant, bc], done)
    assert found[todo].seconds(todo.plan) == 10 + 10_000 / 100 + 4 * 5
    assert found[todo].source == "1 finished on this task"
    # Elsewhere an evaluation takes as much longer as the episodes are.
    longer = tasks.find(ant.task).horizon / tasks.find(CUBE[0]).horizon
    assert found[ant].evaluation == pytest.approx(5 * longer)
    assert found[ant].source == "5 finished on other tasks"
    assert found[bc] is None
    assert (duration(61), duration(600), duration(36_000)) == ("61 s", "10 min", "10.0 h")
