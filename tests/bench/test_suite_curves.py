"""Learning curves of a suite."""

from __future__ import annotations

import pytest

from fidec import cli
from fidec.bench.report import caption, curve, draw_suite
from fidec.bench.scores import read_run
from fidec.errors import RunError
from fidec.report import figures
from helpers.suites import own_jobs, small_jobs, write_run

FQL = {0: (0, 10, 20, 30, 5, 15, 40, 80), 1: (0, 20, 20, 50, 15, 25, 60, 90)}
RLPD = {0: (0, 5, 10, 20), 1: (2, 5, 30, 60)}


def test_curves_of_an_online_suite(tmp_path, capsys):
    """The same position means the same number of online steps, also for a method without an offline phase."""
    made = small_jobs("paper-online", tmp_path, "fql", "rlpd", patterns=("scene*",), seeds=(0, 1))
    for job in made:
        write_run(job, (FQL if job.variant.label == "fql" else RLPD)[job.seed])
    runs = [read_run(job) for job in made]
    fql, rlpd = ([run for run in runs if run.job.variant.label == label] for label in ("fql", "rlpd"))
    scores = [curve(run, 10_000) for run in fql]
    assert list(scores[0]) == list(range(2_500, 20_001, 2_500))
    assert [tuple(each.values()) for each in scores] == [FQL[0], FQL[1]]
    assert list(curve(rlpd[0], 10_000)) == [12_500, 15_000, 17_500, 20_000]
    assert "mean over seeds 0, 1" in caption(runs)
    assert caption(runs[:1]) == "Seed 0. A point is an evaluation of 12 episodes."
    argv = ["suite", "curves", "paper-online", "--scale", "small", "--out", str(tmp_path), "--seeds", "0", "1"]
    path = tmp_path / "new" / "curves.png"
    assert cli.main([*argv, "--algos", "fql", "rlpd", "--to", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_an_axis_has_the_unit_of_its_task(tmp_path, monkeypatch):
    """Only success has the axis of a percentage."""
    names = {"robot": "success in percent", "walker": "return"}
    made = own_jobs(tmp_path, *names)
    for job in made:
        write_run(job, (40,), unit=names[job.task])
    saved = []
    monkeypatch.setattr(figures, "save_figure", lambda figure, path: saved.append(figure))
    draw_suite([read_run(job) for job in made], tmp_path / "a.png", "title")
    robot, walker = saved[0].axes
    assert (robot.get_ylabel(), walker.get_ylabel()) == ("success in percent", "return")
    assert robot.get_ylim() == (-3, 103)
    assert walker.get_ylim()[1] < 60


def test_runs_on_different_data_are_not_drawn_together(tmp_path):
    one, two = small_jobs("paper-online", tmp_path, "fql", patterns=("scene*",), seeds=(0, 1))
    write_run(one, FQL[0])
    write_run(two, FQL[0], sha256="cd" * 32)
    with pytest.raises(RunError, match="trained on different data"):
        draw_suite([read_run(one), read_run(two)], tmp_path / "a.png", "title")
