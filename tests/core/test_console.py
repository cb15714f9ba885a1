"""Progress: occasional lines, a bar on a terminal, bytes, and streams that fail."""

from __future__ import annotations

import io

from fidec.console import Output, Progress, duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


class ClosedPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError(32, "Broken pipe")


def test_lines_are_occasional_and_the_last_one_is_complete():
    now = 0.0
    stream = io.StringIO()
    with Progress(1000, 100, stream=stream, every=10.0, clock=lambda: now) as progress:
        for step in range(110, 510, 10):
            now += 1.0
            progress.update(step, loss=0.123456)
        progress.message("[not markup] saved")
        now += 1.0
        progress.update(1000, score="0.40")
    lines = stream.getvalue().splitlines()
    assert lines[0] == "step 110/1000  10 steps/s  loss 0.1235  89 s left"
    steps = [line.split()[1] for line in lines if line.startswith("step")]
    assert steps == [f"{step}/1000" for step in (110, 210, 310, 410, 1000)]
    assert "[not markup] saved" in lines
    assert lines[-1].endswith("score 0.40")


def test_durations_and_lines_with_the_time():
    assert (duration(61), duration(600), duration(36_000)) == ("61 s", "10 min", "10.0 h")
    stream, now = io.StringIO(), iter((100.0, 107.0))
    Output(stream, lambda: next(now)).print("half")
    assert stream.getvalue() == "[    7 s] half\n"


def test_bytes_with_a_total_that_is_known_later():
    now = 0.0
    stream = io.StringIO()
    with Progress(None, name="a.npz", unit="MB", stream=stream, clock=lambda: now) as progress:
        progress.message("fetching")
        progress.restart(5_000_000, 20_000_000)  # what an earlier transfer left does not count as speed
        now = 2.0
        progress.advance(3_000_000)
    assert stream.getvalue().splitlines() == ["fetching", "a.npz: 8.0/20.0 MB  1.50 MB/s  8 s left"]


def test_without_updates_or_disabled_there_are_only_messages():
    stream = io.StringIO()
    with Progress(10, stream=stream) as progress:
        progress.message("there already")
    with Progress(10, stream=stream, enabled=False) as progress:
        progress.update(5)
        progress.message("saved")
    assert stream.getvalue() == "there already\nsaved\n"


def test_a_closed_pipe_does_not_end_the_work():
    with Progress(10, stream=ClosedPipe()) as progress:
        progress.update(5, loss=1.0)
        progress.message("x")
    assert progress.step == 5


def test_a_closed_terminal_does_not_end_the_work(monkeypatch):
    class Closed(Terminal):
        def write(self, text):
            raise OSError(5, "Input/output error")

    monkeypatch.setenv("TERM", "xterm")
    with Progress(10, stream=Closed()) as progress:
        progress.update(5, loss=1.0)
        progress.update(6)
        progress.message("x")
    assert progress.step == 6


def test_a_terminal_shows_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    with Progress(10, stream=stream) as progress:
        progress.update(5, loss=0.25)
        progress.message("[saved]")
    text = stream.getvalue()
    for part in ("step 5/10", "loss 0.25", "[saved]", "\x1b["):
        assert part in text
