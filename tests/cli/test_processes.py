"""What only separate processes show: exit codes, signals and the lock."""

from __future__ import annotations

import os
import signal
import time

TINY = ("--algo", "tiny", "--batch-size", 8, "--log-interval", 2000, "--checkpoint-interval", 20_000)


def wait_for(condition, process, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_signals_locks_and_exit_codes(processes, npz, compile_cache, tmp_path):
    out = tmp_path / "run"
    long = ("train", "--data", f"npz:{npz}", *TINY, "--out", out, "--steps", 10**8)

    running = processes.start(*long, cache=compile_cache)
    wait_for(lambda: list(out.glob("checkpoints/[0-9]*")), running)
    second = processes.run("train", "--resume", out, cache=compile_cache)
    assert second.returncode == 75
    assert f"in use by process {running.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 75, err
    assert "SIGTERM: saved at step" in err
    assert f"fidec train --resume {out}" in err
    assert "Traceback" not in err


def test_a_closed_pipe_is_no_error(processes):
    process = processes.start("tasks")
    os.close(process.stdout.fileno())
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err == ""
