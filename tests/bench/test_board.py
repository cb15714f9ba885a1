"""The display of a running suite, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest

from fidec.bench.jobs import Progress
from fidec.bench.live_table import LINES_EVERY, Board, cells
from helpers.suites import small_jobs, write_rows

TASK = "scene-play-singletask-task1-v0"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def two(tmp_path):
    made = small_jobs("paper", tmp_path, "bc", "fql", patterns=(TASK,))
    made[0].directory.mkdir(parents=True)
    times = [
        {"step": 2_500, "time/steps_per_second": 50.0},
        {"step": 2_500, "time/evaluation": 8.0},
        {"step": 3_000, "time/steps_per_second": 100.0},
    ]
    scores = [{"step": 2_500, "evaluation/score": 25.0}]
    write_rows(made[0].directory, train=[{"step": 3_000}], time=times, eval=scores)
    return made


def test_the_progress_of_a_job(two):
    # 7000 steps at the last speed, and the evaluations at 5000, 7500 and 10000.
    assert two[0].progress() == Progress(3_000, 100.0, 70.0 + 3 * 8.0, 25.0)
    assert two[1].progress() == Progress(0, None, None, None)


def test_the_updates_of_a_flow_that_is_trained_first(two):
    flow = two[1].directory / "flow"
    flow.mkdir(parents=True)
    write_rows(flow, train=[{"step": 500}, {"step": 1_000}], time=[], eval=[])
    assert cells(two[1], two[1].progress()) == ("step 0/10000", "flow first, update 1000", "", "")


def test_the_progress_of_an_online_job_is_that_of_its_phase(tmp_path):
    """In the offline phase the speed of the environment is not known yet."""
    (job,) = small_jobs("paper-online", tmp_path, "fql", patterns=("scene-*",))
    job.directory.mkdir(parents=True)

    def at(step, evaluated):
        times = [{"step": step, "time/steps_per_second": 100.0}, {"step": step, "time/evaluation": 8.0}]
        write_rows(job.directory, train=[{"step": step}], time=times, eval=[{"step": evaluated}])
        return cells(job, job.progress())

    assert at(6_000, 5_000)[:3] == ("step 6000/20000", "100 steps/s", "56 s to the online phase")  # 40 + 2 * 8
    assert at(10_000, 10_000)[1:3] == ("starting", "")  # that was the speed of the updates
    assert at(11_000, 10_000)[2] == "2 min left"
    assert job.progress().left == 90.0 + 4 * 8.0


def test_lines_without_a_terminal(two):
    stream, now = io.StringIO(), [0.0]
    with Board(two, stream, lambda: now[0]) as board:
        board.job_started(two[0], "starts", two[0].log)
        board.update(two, 0)  # too soon
        now[0] = LINES_EVERY
        board.update(two, 0)
        board.job_ended(two[1], "failed", "FAILED with exit code 2")
    lines = stream.getvalue().splitlines()
    assert len(lines) == 4
    assert str(two[0].log) in lines[0]
    assert "step 3000/10000  100 steps/s  2 min left  score 25.0" in lines[1]
    assert "2/2" in lines[3]
    assert "FAILED with exit code 2" in lines[3]


def test_a_live_table_on_a_terminal(two, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Board(two, stream) as board:
        board.job_ended(two[1], "done", "there already")
        board.update(two[:1], 4)
    text = stream.getvalue()
    for words in ("there already", "step 3000/10000", "100 steps/s", "score 25.0", "1 done", "4 waiting", "Ctrl-C"):
        assert words in text
