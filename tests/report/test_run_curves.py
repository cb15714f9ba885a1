"""The figure of one run, from logs that are written here."""

from __future__ import annotations

import json

import pytest

from fidec.errors import RunError
from fidec.plots import save_figure
from fidec.report import figures
from fidec.report.figures import draw_run
from fidec.store.rundir import RunDirectory
from helpers.runs import read_rows
from helpers.suites import small_jobs, write_rows, write_run


@pytest.fixture
def run(tmp_path):
    """An online run. Every second interval of its online phase has the end of an episode."""
    (job,) = small_jobs("paper-online", tmp_path, "fql", patterns=("scene*",))
    write_run(job, [0] * len(job.plan.evaluations))
    rows = []
    for step in range(1_000, 20_001, 1_000):
        row = {"step": step, "training/critic_loss": 1.0, "training/q_data": -1.0, "training/penalty": 0.1}
        if step > 10_000 and step % 2_000 == 0:
            row |= {"exploration/success": step / 20_000, "exploration/return": -100.0}
        rows.append(row)
    rates = {"evaluation/success": 0.5, "evaluation/success_low": 0.2, "evaluation/success_high": 0.8}
    evaluations = [{"step": step, **rates, "evaluation/n": 12} for step in (10_000, 20_000)]
    write_rows(job.directory, train=rows, eval=evaluations)
    return job.directory


def test_the_figure_of_an_online_run_and_of_an_older_offline_run(run, tmp_path):
    assert draw_run(run, tmp_path / "online.png").read_bytes().startswith(b"\x89PNG")
    config = RunDirectory.open(run, read_only=True).read_config()
    for name in ("online_steps", "online"):  # older runs do not have them
        del config[name]
    (run / "config.json").write_text(json.dumps(config))
    assert draw_run(run, tmp_path / "offline.png").read_bytes().startswith(b"\x89PNG")


def test_the_budget_in_the_figure_is_that_of_the_constraint(run, tmp_path, monkeypatch):
    config = RunDirectory.open(run, read_only=True).read_config()
    options = {"constraint": "precision", "budget": 0.3}
    (run / "config.json").write_text(json.dumps(config | {"algo": "fidec", "options": options}))
    saved = []
    monkeypatch.setattr(
        figures, "save_figure", lambda figure, path: saved.append(figure) or save_figure(figure, path)
    )
    draw_run(run, tmp_path / "nats.png")
    panel = saved[0].axes[1]
    (budget,) = [line for line in panel.get_lines() if line.get_label() == "budget"]
    assert list(budget.get_ydata()) == [0.3, 0.3]
    assert panel.get_ylabel() == "penalty in nats"


def test_without_success_the_figure_shows_the_return_and_names_the_environment(run, tmp_path, monkeypatch):
    config = RunDirectory.open(run, read_only=True).read_config()
    (run / "config.json").write_text(json.dumps(config | {"task": None, "env": "Own-v0"}))
    rows = read_rows(run / "train.jsonl")
    summary = {"success": None, "return": -80.0, "return_low": -90.0, "return_high": -60.0, "n": 12}
    evaluations = [
        {"step": step, **{f"evaluation/{name}": value for name, value in summary.items()}}
        for step in (10_000, 20_000)
    ]
    write_rows(run, train=[{k: v for k, v in row.items() if k != "exploration/success"} for row in rows])
    write_rows(run, eval=evaluations)
    saved = []
    monkeypatch.setattr(
        figures, "save_figure", lambda figure, path: saved.append(figure) or save_figure(figure, path)
    )
    single = summary | {"return_low": None, "return_high": None, "n": 1}  # one episode has no interval
    (run / "comparison.json").write_text(json.dumps({"step": 20_000, "base": single, "refined": summary}))
    draw_run(run, tmp_path / "return.png")
    panel = saved[0].axes[0]
    assert (panel.get_title(), panel.get_ylabel()) == ("Evaluation", "return")
    low, high = panel.get_ylim()
    assert low < -100
    assert high < 0
    names = ["return", "exploring", "base policy", "refined policy"]
    assert panel.get_legend_handles_labels()[1] == names
    assert saved[0].get_suptitle().endswith("on Own-v0")


def test_a_run_without_metrics_is_an_error(run, tmp_path):
    (run / "train.jsonl").unlink()
    with pytest.raises(RunError, match="no training metrics yet"):
        draw_run(run, tmp_path / "curves.png")
