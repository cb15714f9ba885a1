"""The HTML report, parsed as a browser would; tests/browser has the same in a browser."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fidec.audit.text import end_of_training
from fidec.cli import main
from fidec.errors import ConfigError, RunError
from fidec.report.charts import Chart, Line, decimate, draw, number, ticks
from fidec.report.concerns import concerns
from fidec.report.html import Html, join, table, tag
from fidec.report.page import report_runs
from fidec.report.runs import RunResults
from fidec.report.sections import time_spent
from fidec.store.rundir import MARKER_CONTENT
from helpers import some
from helpers.reports import HOSTILE, STEPS, change_log, write_rich_run
from helpers.suites import small_jobs, write_run

VOID = {"meta", "input", "br"}


class Page(HTMLParser):
    """Elements of a page. It fails if they are not nested."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.text: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append((self.open[-1] if self.open else "", data))

    def count(self, name: str) -> int:
        return sum(kind == name for kind, _ in self.elements)


def page_of(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    return write_rich_run(tmp_path_factory.mktemp("rich") / "run")


def test_everything_that_is_not_html_is_escaped():
    assert tag("p", "<b>", class_='"x') == '<p class="&quot;x">&lt;b&gt;</p>'
    assert join("&", 1, None, ["<", tag("br")]) == "&amp;1&lt;<br/>"
    assert isinstance(join("a") + "b", str)
    assert not isinstance(join("a") + "<b>", Html)  # so that it would be escaped


def test_one_run_has_every_part(run, tmp_path):
    path, left_out = report_runs([run], tmp_path / "new" / "report.html")
    page = page_of(path)
    assert not left_out
    assert sum(attributes.get("class") == "chart" for _, attributes in page.elements) == 5
    headings = [text for kind, text in page.text if kind == "h3"]
    assert headings == [
        "Base policy and refined policy",
        "Audit at step 20,000",
        "What was trained on what",
        "Where the time went",
        "Episodes",
        "Options",
        "The command that makes it again",
    ]
    text = " ".join(text for _, text in page.text)
    assert "ab" * 32 in text
    assert "fidec train --env my_package:door --algo fidec --preset nats" in text
    assert "success +0.3 [+0.1, +0.5]" in text
    # One file: nothing is fetched.
    assert not any({"src", "href"} & attributes.keys() - {"href"} for _, attributes in page.elements)
    assert all(attributes["href"].startswith("#") for _, attributes in page.elements if "href" in attributes)
    assert path.stat().st_size < 200_000


def test_hostile_text_becomes_neither_an_element_nor_an_attribute(tmp_path):
    hostile = HOSTILE.replace("/", "")  # a directory cannot have it
    first = write_rich_run(tmp_path / f"a{hostile}", text=HOSTILE)
    second = write_rich_run(tmp_path / "plain", text=HOSTILE, seed=1)
    (first / f"{hostile}.mp4").write_bytes(b"no video")
    path, _ = report_runs([first, second], tmp_path / "report.html", title=HOSTILE)
    page = page_of(path)
    assert page.count("img") == 0
    assert page.count("script") == 1
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert any(HOSTILE in text for kind, text in page.text if kind == "h1")


def test_a_hash_allows_the_pages_own_script_alone(run, tmp_path):
    import base64
    import hashlib

    path, _ = report_runs([run], tmp_path / "report.html")
    page = page_of(path)
    (policy,) = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    (script,) = ["".join(text for kind, text in page.text if kind == "script")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")


def test_several_runs_are_compared_and_unfinished_ones_are_shown(tmp_path, capsys):
    for seed in (0, 1):
        write_rich_run(tmp_path / f"seed{seed}", seed=seed)
    going = write_rich_run(tmp_path / "going", seed=2)
    (going / "status.json").write_text(json.dumps({"state": "running", "step": 7_000}))
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "run.json").write_text(json.dumps(MARKER_CONTENT))
    assert main(["report", str(tmp_path), "--title", "Three seeds"]) == 0
    said = capsys.readouterr()
    assert said.out == f"report: {tmp_path / 'report.html'}\n"
    assert "damaged: was stopped before training began" in said.err
    text = " ".join(text for _, text in page_of(tmp_path / "report.html").text)
    assert "Three seeds" in text
    assert "running at step 7,000 of 20,000" in text
    assert "50 episodes, 2 seeds" not in text  # one method has no difference to itself
    assert "success in percent" in text  # the table of the two that are finished


def test_errors_name_what_is_wrong(tmp_path):
    with pytest.raises(RunError, match=r"there is no run to report.*no such directory"):
        report_runs([tmp_path / "none"], tmp_path / "report.html")
    run = write_rich_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="is a directory: name a file"):
        report_runs([run], tmp_path)
    assert main(["report"]) == 2


@pytest.mark.parametrize("content", ["{}", "[1]", "{", '{"kl": 3, "step": "x", "sentences": 1}', '{"gain": [[]]}'])
def test_damaged_results_of_other_commands_are_left_out(tmp_path, content):
    run = write_rich_run(tmp_path / "run")
    for name in ("comparison.json", "audit/audit.json"):
        (run / name).write_text(content)
    assert page_of(report_runs([run], tmp_path / "report.html")[0]).count("section") >= 1


def test_videos_are_beside_the_page_or_in_it(run, tmp_path):
    own = write_rich_run(tmp_path / "runs" / "a run")
    (own / "play.mp4").write_bytes(b"\x00video")
    beside, _ = report_runs([own], tmp_path / "report.html")
    (video,) = [attributes for kind, attributes in page_of(beside).elements if kind == "video"]
    assert video["src"] == "runs/a%20run/play.mp4"
    inside, _ = report_runs([own], tmp_path / "inside.html", embed_videos=True)
    (video,) = [attributes for kind, attributes in page_of(inside).elements if kind == "video"]
    assert video["src"] == "data:video/mp4;base64,AHZpZGVv"


def test_a_page_about_many_long_runs_stays_small(tmp_path):
    for seed in range(12):
        run = write_rich_run(tmp_path / f"seed{seed}", seed=seed)
        change_log(run, "train", lambda rows: [{**rows[0], "step": step} for step in range(1, 1_000)])
    path, _ = report_runs([tmp_path], tmp_path / "report.html")
    assert path.stat().st_size < 3e6
    points = [len(line["x"]) for chart in _charts(path) for line in chart["lines"]]
    assert max(points) <= 170


def _charts(path: Path) -> list[dict[str, Any]]:
    return [json.loads(a["data-chart"]) for _, a in page_of(path).elements if "data-chart" in a]


def test_the_page_of_a_suite_has_its_table(tmp_path, capsys):
    jobs = small_jobs("paper", tmp_path, "fql", "fidec", patterns=("cube-single*task2*",))
    for job, score in zip(jobs, (10, 30), strict=True):
        write_run(job, [score] * len(job.plan.evaluations))
    words = ["suite", "report", "paper", "--scale", "small", "--out", str(tmp_path), "--algos", "fql", "fidec"]
    assert main([*words, "--tasks", "cube-single*task2*"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    page = page_of(tmp_path / "report.html")
    assert ("h1", "Suite paper at scale small") in page.text
    assert any("30.0" in text for kind, text in page.text if kind == "td")


# --- warnings -----------------------------------------------------------------------------------------------------


def said(run: Path) -> str:
    return " ".join(f"{each.severity}: {each.text}" for each in concerns(RunResults(run)))


def test_a_run_without_problems_has_the_check_of_its_data_alone(run):
    assert said(run) == "warning: door"


@pytest.mark.parametrize(
    ("log", "change", "words"),
    [
        ("eval", {"success": 0.1, "success_low": 0.02, "success_high": 0.3}, "bad: The policy collapsed"),
        ("eval", {"success_low": 0.2, "success_high": 0.8}, "too few episodes to tell"),
        ("eval", {"n_failed": 3}, "3 episodes of the last evaluation failed"),
        ("train", {"critic_loss": 100.0}, "bad: The critic diverges: its loss is 100 at the end"),
        ("train", {"critic_loss": None}, "bad: The critic diverged: its loss is not finite"),
        ("train", {"q_policy": 50.0}, "The critic is optimistic"),
        ("train", {"penalty": 0.9}, "The trust region never closed: the penalty ends at 0.9 with a budget of 0.2"),
    ],
)
def test_each_problem_is_said_in_words(tmp_path, log, change, words):
    run = write_rich_run(tmp_path / "run")
    group = {"eval": "evaluation", "train": "training"}[log]
    named = {f"{group}/{name}": value for name, value in change.items()}
    late = 19_000 if log == "eval" else 17_000
    change_log(run, log, lambda rows: [{**row, **named} if row["step"] > late else row for row in rows])
    assert words in said(run)


def test_a_region_is_not_judged_while_its_budget_grows(tmp_path):
    """The preset warms up for 3,000 updates, so the first three rows do not count. Its multiplier is controlled."""
    run = write_rich_run(tmp_path / "run")
    change_log(run, "train", lambda rows: [{**r, "training/penalty": 0.2 + 0.7 * (r["step"] > 3000)} for r in rows])
    assert "above twice the budget in 100 % of the log" in said(run)
    text = some(end_of_training(run))
    assert "within a factor of 2 of its budget in 0 % of the log" in text
    assert "the multiplier rises: train longer. " in text


def test_a_worse_policy_and_a_wider_region_are_said(tmp_path):
    run = write_rich_run(tmp_path / "run")
    comparison = json.loads((run / "comparison.json").read_text())
    comparison["gain"] |= {"mean": -0.3, "low": -0.5, "high": -0.1}
    (run / "comparison.json").write_text(json.dumps(comparison))
    audit = {"step": STEPS, "sentences": [], "kl": {"mean": 0.9, "low": 0.7, "high": 1.0}}
    (run / "audit" / "audit.json").write_text(json.dumps(audit))
    (run / "status.json").write_text(json.dumps({"state": "failed", "step": 3, "reason": "no memory"}))
    text = said(run)
    assert "worse than its base policy" in text
    assert "the audit measures 0.9 [0.7, 1] nats, the budget is 0.2" in text
    assert "failed at step 3 of 20,000 (no memory)" in text


def test_time_is_that_of_the_logs(run):
    spent = time_spent(RunResults(run))
    assert spent == {"compilation": 5.0, "updates": 200.0, "evaluation (may run beside updates)": 30.0}


# --- charts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3.3, 17), (1e-9, 2e-9), (0, 1e6), (99.5, 100.25)])
def test_ticks_are_round_numbers_inside_the_range(low, high):
    found = ticks(low, high)
    assert 2 <= len(found) <= 6
    assert low - 1e-12 * high <= found[0] < found[-1] <= high * (1 + 1e-12)


def test_fewer_points_have_the_same_mean():
    y = np.random.default_rng(0).normal(size=1_000)
    line = decimate(Line("a", list(range(1_000)), y.tolist()), 100)
    assert len(line.x) == 100
    assert line.x[-1] == 999
    assert np.mean(line.y) == pytest.approx(y.mean())
    assert decimate(Line("a", [1, 2], [3, 4]), 100) == Line("a", [1, 2], [3, 4])


def test_a_chart_without_a_value_is_left_out_and_gaps_interrupt_lines():
    nan = float("nan")
    assert draw(Chart("t", "x", "y", [Line("a", [1, 2], [nan, nan])])) == ""
    assert draw(Chart("t", "x", "y", [Line("a", [1, 2], [0.0, -1.0])], log=True)) == ""
    svg = draw(Chart("t", "x", "y", [Line("y", [0, 1, 2, 3, 4], [1.0, 2.0, nan, 3.0, 4.0])]))
    (path,) = [a["d"] for _, a in Page(svg).elements if a.get("class") == "line c0 d0"]
    assert path.count("M") == 2


def test_positions_are_those_of_the_values():
    svg = draw(Chart("t", "x", "y", [Line("y", [0, 10], [0.0, 1.0])], limits=(0.0, 1.0)))
    (path,) = [a["d"] for _, a in Page(svg).elements if a.get("class") == "line c0 d0"]
    assert path == "M64.0 248.0L610.0 14.0"  # the corners of the plot


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1234.6, "1,235"), (0.25, "0.25"), (-3.0, "−3"), (1e-7, "1.0e−7"), (2.5e9, "2.5e9")]
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_a_table_names_its_rows_and_columns():
    page = Page(table(["a", "b"], [["x", 1]], "Title"))
    assert [a.get("scope") for kind, a in page.elements if kind == "th"] == ["col", "col", "row"]
    assert ("caption", "Title") in page.text
