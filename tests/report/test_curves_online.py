"""Learning curves of a suite and of a run: what is drawn where. The runs are written, not trained."""

from __future__ import annotations

import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from bench.test_report_table import write_run
from fidec import cli
from fidec.bench.curves import COLOURS, caption, curve, draw_suite
from fidec.bench.jobs import jobs
from fidec.bench.scale import SMALL
from fidec.bench.scores import read_run
from fidec.bench.suites import SUITES
from fidec.errors import RunError
from fidec.report.curves import draw_curves
from fidec.store.rundir import RunDirectory

SCENE = "scene-play-singletask-v0"
FQL = {0: (0, 10, 20, 30, 5, 15, 40, 80), 1: (0, 20, 20, 50, 15, 25, 60, 90)}
RLPD = {0: (0, 5, 10, 20), 1: (2, 5, 30, 60)}


@pytest.fixture
def figures(monkeypatch):
    """The figures that were saved; their files are coarse, for time."""
    saved, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda figure, path, **_: (saved.append(figure), save(figure, path, dpi=20))
    )
    return saved


@pytest.fixture
def online(tmp_path):
    made = jobs(
        SUITES["paper-online"],
        out=tmp_path,
        data_dir=None,
        scale=SMALL,
        words=("fql", "rlpd"),
        patterns=("scene*",),
        seeds=(0, 1),
    )
    for job in made:
        write_run(job, (FQL if job.variant.label == "fql" else RLPD)[job.seed])
    return made


def lines_of(panel):
    """The curves of a panel: those that have points."""
    return {line.get_label(): line for line in panel.get_lines() if not line.get_label().startswith("_")}


def hand_overs(panel):
    """The places of vertical lines from the bottom to the top."""
    return [line.get_xdata()[0] for line in panel.get_lines() if list(line.get_ydata()) == [0, 1]]


def words_of(panel):
    return {text.get_text() for text in panel.texts}


def test_the_same_place_means_as_many_online_steps(online):
    runs = [read_run(job) for job in online]
    fql = [run for run in runs if run.job.variant.label == "fql"]
    rlpd = [run for run in runs if run.job.variant.label == "rlpd"]
    steps, scores = curve(fql, 10_000)
    assert list(steps) == list(range(2_500, 20_001, 2_500))
    assert np.array_equal(scores, [FQL[0], FQL[1]])
    steps, scores = curve(rlpd, 10_000)
    assert list(steps) == [12_500, 15_000, 17_500, 20_000]
    assert np.array_equal(scores, [RLPD[0], RLPD[1]])


def test_a_suite_is_drawn_with_its_hand_over(online, figures, tmp_path):
    runs = [read_run(job) for job in online]
    path = draw_suite(runs, tmp_path / "new" / "curves.png", "Suite paper-online")
    assert path.read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    (panel,) = figure.axes
    lines = lines_of(panel)
    assert list(lines["fql"].get_ydata()) == list(np.mean([FQL[0], FQL[1]], 0))
    assert list(lines["rlpd"].get_xdata()) == [12.5, 15.0, 17.5, 20.0]
    assert hand_overs(panel) == [10.0]
    assert words_of(panel) == {"offline", "online"}
    bands = [band.get_paths()[0].vertices for band in panel.collections]
    assert [(band[:, 1].min(), band[:, 1].max()) for band in bands] == [(0, 90), (0, 60)]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fql", "rlpd (no offline phase)"]
    assert [line.get_color() for line in lines.values()] == list(COLOURS[:2])
    assert "mean over seeds 0, 1; bands: from the worst to the best seed" in caption(runs)
    assert caption(runs[:1]) == "Seed 0. A point is an evaluation of 12 episodes."


def test_rlpd_alone_begins_at_zero(online, figures, tmp_path):
    draw_suite([read_run(job) for job in online if job.variant.label == "rlpd"], tmp_path / "a.png", "title")
    (panel,) = figures[0].axes
    assert lines_of(panel)["rlpd"].get_xdata()[0] == 2.5
    assert hand_overs(panel) == []


def test_runs_on_other_data_are_not_drawn_together(tmp_path):
    one, two = jobs(
        SUITES["paper-online"],
        out=tmp_path,
        data_dir=None,
        scale=SMALL,
        words=("fql",),
        patterns=("scene*",),
        seeds=(0, 1),
    )
    write_run(one, FQL[0])
    write_run(two, FQL[0], sha256="cd" * 32)
    with pytest.raises(RunError, match="not trained on the same data"):
        draw_suite([read_run(one), read_run(two)], tmp_path / "a.png", "title")


def test_the_command_draws_offline_suites_too(tmp_path, figures, capsys):
    made = jobs(
        SUITES["paper"], out=tmp_path, data_dir=None, scale=SMALL, words=("bc", "fql"), patterns=("scene-*", "door-*")
    )
    for job in made[:-1]:
        write_run(job, (-5, 20, 60, 104) if job.task.startswith("door") else (0, 20, 40, 100))
    argv = ["suite", "curves", "paper", "--scale", "small", "--out", str(tmp_path), "--algos", "bc", "fql"]
    assert cli.main([*argv, "--to", str(tmp_path / "curves.png")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'curves.png'}\n"
    panels = [panel for panel in figures[0].axes if panel.get_visible()]
    assert len(panels) == len({job.task for job in made})
    assert not any(hand_overs(panel) or words_of(panel) for panel in panels)
    ranges = {panel.get_title(): panel.get_ylim() for panel in panels}
    assert ranges["scene-play-singletask-task1-v0"] == (-4, 104)
    assert ranges["door-human-v1"][1] > 104  # D4RL's score is no share
    assert len(lines_of(panels[-1])) == 1  # of the last task only one run is there


def test_without_a_finished_run_there_is_nothing_to_draw(tmp_path, capsys):
    assert cli.main(["suite", "curves", "demo-online", "--out", str(tmp_path)]) == RunError.exit_code
    assert "no run of suite 'demo-online'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- a single run ---------------------------------------------------------------------------------------------------


@pytest.fixture
def run(online):
    """The run of FQL as it is, with metrics; an episode ended in every second interval of the online phase."""
    directory = RunDirectory.open(online[0].directory)
    rows = []
    for step in range(1_000, 20_001, 1_000):
        row = {"step": step, "training/critic_loss": 1.0, "training/q_data": -1.0, "training/penalty": 0.1}
        if step > 10_000 and step % 2_000 == 0:
            row |= {"exploration/success": step / 20_000, "exploration/return": -100.0}
        rows.append(row)
    write_rows(directory, "train", rows)
    rates = {"evaluation/success": 0.5, "evaluation/success_low": 0.2, "evaluation/success_high": 0.8}
    write_rows(directory, "eval", [{"step": step, **rates, "evaluation/n": 12} for step in (10_000, 20_000)])
    directory.close()
    return directory.path


def write_rows(directory, name, rows):
    (directory.path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_a_runs_panels_mark_the_hand_over_and_show_what_was_explored(run, figures, tmp_path):
    draw_curves(run, tmp_path / "curves.png")
    panels = figures[0].axes[:4]
    assert all(10.0 in hand_overs(panel) for panel in panels)
    assert all({"offline", "online"} <= words_of(panel) for panel in panels)
    assert all(panel.get_xlabel() == "thousand steps" for panel in panels)
    exploring = lines_of(panels[0])["exploring"]
    assert list(exploring.get_xdata()) == [12, 14, 16, 18, 20]
    assert list(exploring.get_ydata()) == [0.6, 0.7, 0.8, 0.9, 1.0]


def test_returns_are_drawn_where_nothing_is_called_a_success(run, figures, tmp_path):
    rows = [json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()]
    for row in rows:
        row.pop("exploration/success", None)
    write_rows(RunDirectory.open(run, read_only=True), "train", rows)
    draw_curves(run, tmp_path / "curves.png")
    right = next(panel for panel in figures[0].axes if panel.get_ylabel() == "return")
    assert list(right.get_lines()[0].get_ydata()) == [-100.0] * 5
    assert "exploring: return (right)" in figures[0].axes[0].get_legend_handles_labels()[1]


def test_an_offline_runs_panels_are_as_they_were(run, figures, tmp_path):
    config = RunDirectory.open(run, read_only=True).read_config()
    for name in ("online_steps", "online"):  # as an older run's
        del config[name]
    (run / "config.json").write_text(json.dumps(config))
    draw_curves(run, tmp_path / "curves.png")
    panels = figures[0].axes[:4]
    assert not any(10.0 in hand_overs(panel) for panel in panels)
    assert all(panel.get_xlabel() == "thousand updates" for panel in panels)
