"""Jobs as tasks of Ray: on a cluster that runs already (`--address`), or on one that is started here and ended again.

Only Ray's tasks are used. A task starts the job as a process of its own (`fidec.executors.attempt`). Ray does not
repeat a task by itself: a lost job may have to be continued by another command, so the scheduler submits it again.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import IO, Any

from fidec.errors import RunError
from fidec.executors import LOST, Executor, Pool, Request, Work, attempt
from fidec.executors.kinds.local import memory_share
from fidec.extras import require
from fidec.launch import usable_cores

RETRIES = 3
TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")


class RayHandle:
    """A task of Ray."""

    def __init__(self, ray: Any, reference: Any, log: Path):
        self._ray, self._reference, self._log, self._code = ray, reference, log, None

    def poll(self) -> int | None:
        if self._code is None and self._ray.wait([self._reference], timeout=0)[0]:
            self._code = self._result()
        return self._code

    def _result(self) -> int:
        errors = self._ray.exceptions
        try:
            return self._ray.get(self._reference)
        except errors.RayTaskError as error:  # the task itself failed, before its job began
            with open(self._log, "a") as log:
                log.write(f"Ray could not start the job: {error.cause}\n")
            return RunError.exit_code
        except errors.RayError:  # its worker or its node is lost, or it was cancelled
            return LOST

    def terminate(self) -> None:
        self._ray.cancel(self._reference)  # raises KeyboardInterrupt in the task

    def kill(self) -> None:
        self._ray.cancel(self._reference, force=True)

    def wait(self) -> int:
        while (code := self.poll()) is None:
            time.sleep(0.1)
        return code


class RayPool:
    """Submits jobs as tasks, with their resources."""

    remote, retries = True, RETRIES

    def __init__(self, ray: Any, request: Request):
        self.slots, self._ray, self._cpus = request.workers, ray, request.cpus or 1
        gpus = request.gpus or 0
        self._environ = memory_share(1 / gpus) if 0 < gpus < 1 else {}
        memory = {} if request.memory is None else {"memory": int(request.memory * 1e9)}
        # Each attempt has a process of its own, so a worker can be used again.
        self._task = ray.remote(attempt.run).options(num_cpus=self._cpus, num_gpus=gpus, max_retries=0, **memory)

    def cores(self, slot: int) -> int:
        return self._cpus

    def submit(self, slot: int, work: Work, files: Sequence[IO[bytes]]) -> RayHandle:
        return RayHandle(self._ray, self._task.remote(attempt.describe(work, self._cpus, self._environ)), work.log)

    def batch(self) -> AbstractContextManager[object]:
        return nullcontext()


@contextmanager
def open_ray(request: Request) -> Iterator[Pool]:
    request.refuse("ray", "hours", "settings")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with ExitStack() as stack:
        if request.address is None and not any(name in os.environ for name in TOKENS):
            stack.enter_context(_own_token())
        ray = require("ray", "ray", "--on ray")
        stack.callback(ray.shutdown)
        local = {"num_cpus": len(usable_cores()), "include_dashboard": False} if request.address is None else {}
        try:
            ray.init(address=request.address or "local", log_to_driver=False, logging_level="error", **local)
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = "a Ray cluster could not be started here"
            where = where if request.address is None else f"there is no Ray cluster at {request.address}"
            raise RunError(f"{where}: {error}") from error
        stack.enter_context(redirect_stdout(sys.stderr))  # Ray prints messages about lost nodes on stdout
        yield RayPool(ray, request)


@contextmanager
def _own_token() -> Iterator[None]:
    """A secret of the cluster that is started here. Ray would put one into the home directory, for all to read."""
    with tempfile.TemporaryDirectory(prefix="fidec-ray-") as directory:
        path = Path(directory, "token")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        os.environ["RAY_AUTH_TOKEN_PATH"] = str(path)
        try:
            yield
        finally:
            del os.environ["RAY_AUTH_TOKEN_PATH"]


EXECUTOR = Executor(open_ray)
