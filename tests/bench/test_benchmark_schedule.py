"""`python -m benchmarks.schedule`: every job ends exactly once, also those whose process was killed."""

from __future__ import annotations

from benchmarks import schedule


def test_every_job_ends_exactly_once(capsys):
    row = schedule.main(["--jobs", "12", "--workers", "4", "--failures", "0.25"])
    assert (row["jobs"], row["killed"], row["reported failed"]) == (12, 3, 3)
    assert "ms a job" in capsys.readouterr().out
