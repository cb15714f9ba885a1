"""One attempt at a job, on the machine that an engine chose: `python -m fidec.executors.attempt`.

The engine's worker calls `run`, which starts this module as a process; that starts the job. If the worker dies, even
by SIGKILL, its end of the pipe closes, and this process asks the job to save and stop. So no job outlives its worker
for long, and the worker's interpreter never loads JAX.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fidec.executors import LOST, Work
from fidec.launch import launch

PAUSE = 0.05  # seconds between two looks at the process
# Variables of the scheduler that a job needs wherever it runs.
PASSED = ("FIDEC_", "JAX_", "XLA_", "MUJOCO_", "NPROC", "PYTHONPATH")


def describe(work: Work, cpus: int, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A job as JSON: with the working directory of this process, and those of its variables that a job needs.

    XLA gets a thread for each of its `cpus`, as a job of this machine does. An engine may leave it free to use all
    cores; sums would then be rounded otherwise, and jobs would slow each other down.
    """
    passed = {name: value for name, value in os.environ.items() if name.startswith(PASSED)}
    passed = {"NPROC": str(cpus), **passed}
    return {
        "argv": list(work.argv),
        "again": list(work.again),
        "runs": [str(run) for run in work.runs],
        "log": str(work.log),
        "directory": os.getcwd(),
        "environ": {**passed, **(environ or {})},
    }


class Attempt:
    """A job that this process runs on behalf of an engine."""

    def __init__(self, job: Mapping[str, Any]):
        self._job, self._process = job, None

    def run(self) -> int:
        """Run the job to its end and return its exit code. If this is interrupted, the job saves and stops first."""
        place = self._job["directory"]
        if not os.path.isdir(place):
            print(f"{place} is not a directory here. All machines need the same shared file system.", file=sys.stderr)
            return 1
        self._process = process = launch("-m", __name__, stdin=subprocess.PIPE, text=True, cwd=place)
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(self._job) + "\n")
            process.stdin.flush()
            while process.poll() is None:
                time.sleep(PAUSE)  # a sleep can be interrupted from outside, a wait cannot
        except BaseException as error:
            self.stop()
            if not isinstance(error, KeyboardInterrupt | OSError):
                raise
            return LOST
        return process.returncode

    def stop(self) -> None:
        """Ask the job to save and stop, and wait for it. Ray may interrupt the wait again."""
        if self._process is not None:
            self._process.terminate()
            while self._process.returncode is None:
                with suppress(KeyboardInterrupt):
                    self._process.wait()


def run(job: Mapping[str, Any]) -> int:
    return Attempt(job).run()


def choose(job: Mapping[str, Any]) -> list[str]:
    """The arguments of the process: the job's, or those that continue the runs that have begun."""
    begun = [run for run in job["runs"] if Path(run, "config.json").exists()]
    return [*job["again"], *begun] if begun else job["argv"]


def main() -> int:
    job = json.loads(sys.stdin.readline())
    stopped: list[int] = []
    with open(job["log"], "ab") as log:
        process = launch(
            *choose(job), environ=job["environ"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )

    def pass_on(number: int, frame: Any = None) -> None:
        stopped.append(number)
        process.send_signal(number)

    def watch() -> None:
        sys.stdin.read()  # returns when the worker has ended
        pass_on(signal.SIGTERM)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, pass_on)
    threading.Thread(target=watch, daemon=True).start()
    code = process.wait()
    if code < 0:  # end by the same signal, so that the caller sees it
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    sys.exit(main())
