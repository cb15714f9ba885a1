"""What a running suite shows, on a terminal and elsewhere."""

from __future__ import annotations

import io
import json

import pytest

from fidec.bench.board import LINES_EVERY, Board, cells
from fidec.bench.jobs import Standing, jobs
from fidec.bench.scale import SMALL
from fidec.bench.schedule import Outcome
from fidec.bench.suites import SUITES

TASK = "scene-play-singletask-task1-v0"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def two(tmp_path):
    made = jobs(SUITES["paper"], out=tmp_path, data_dir=None, scale=SMALL, words=("bc", "fql"), patterns=(TASK,))
    made[0].directory.mkdir(parents=True)
    logs = {
        "train": [{"step": 3_000}],
        "time": [
            {"step": 2_500, "time/steps_per_second": 50.0},
            {"step": 2_500, "time/evaluation": 8.0},
            {"step": 3_000, "time/steps_per_second": 100.0},
        ],
        "eval": [{"step": 2_500, "evaluation/score": 25.0}],
    }
    for name, rows in logs.items():
        (made[0].directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return made


def test_a_job_tells_how_far_it_is(two):
    # 7000 steps at the last speed, and the evaluations at 5000, 7500 and 10000.
    assert two[0].standing() == Standing(3_000, 100.0, 70.0 + 3 * 8.0, 25.0)
    assert two[1].standing() == Standing(0, None, None, None)


def test_an_online_job_tells_the_time_to_the_end_of_its_phase(tmp_path):
    """Offline it cannot know how fast the environment is."""
    (job,) = jobs(
        SUITES["paper-online"], out=tmp_path, data_dir=None, scale=SMALL, words=("fql",), patterns=("scene-*",)
    )
    job.directory.mkdir(parents=True)

    def at(step, evaluated):
        rows = [{"step": step, "time/steps_per_second": 100.0}, {"step": step, "time/evaluation": 8.0}]
        logs = {"train": [{"step": step}], "time": rows, "eval": [{"step": evaluated}]}
        for name, lines in logs.items():
            (job.directory / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return cells(job, job.standing())

    assert at(6_000, 5_000)[:3] == ("step 6000/20000", "100 steps/s", "56 s to the online phase")  # 40 + 2 * 8
    assert at(10_000, 10_000)[1:3] == ("starting", "")  # that speed was the updates'
    assert at(11_000, 10_000)[2] == "2 min left"
    assert job.standing().left == 90.0 + 4 * 8.0
    assert at(19_000, 17_500)[2] == "18 s left"


def test_lines_where_there_is_no_terminal(two):
    stream, now = io.StringIO(), [0.0]
    with Board(two, stream, lambda: now[0]) as board:
        board.begins(two[0], "starts")
        board.shows(two, 0)  # too soon
        now[0] = LINES_EVERY
        board.shows(two, 0)
        board.ends(Outcome(two[0], "done"))
        board.ends(Outcome(two[1], "failed", "FAILED with exit code 2"))
    lines = stream.getvalue().splitlines()
    assert lines[0] == f"[    0 s] 1/2 {TASK} bc, seed 0: starts; its output is in {two[0].log}"
    assert lines[1] == f"[   60 s] 1/2 {TASK} bc, seed 0: step 3000/10000  100 steps/s  2 min left  score 25.0"
    assert lines[2] == f"[   60 s] 2/2 {TASK} fql, seed 0: step 0/10000  starting"
    assert lines[3:] == [
        f"[   60 s] 1/2 {TASK} bc, seed 0: done",
        f"[   60 s] 2/2 {TASK} fql, seed 0: FAILED with exit code 2",
    ]


def test_a_live_table_on_a_terminal(two, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with Board(two, stream) as board:
        board.ends(Outcome(two[1], "done", "there already"))
        board.shows(two[:1], 4)
    text = stream.getvalue()
    for words in ("there already", "step 3000/10000", "100 steps/s", "score 25.0", "1 done", "4 waiting", "Ctrl-C"):
        assert words in text
