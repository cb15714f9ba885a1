"""Processes that are run to their end. Those that do jobs are tested with the makers of data."""

from __future__ import annotations

from fidec.launch import run


def test_a_command_gives_its_code_and_its_errors_and_ends_in_time():
    code = "import fidec, os, sys; print('out'); print(os.environ['WORD'], file=sys.stderr); sys.exit(3)"
    assert run("-c", code, environ={"WORD": "said"}, timeout=30) == (3, "said\n")
    assert run("-c", "import time; time.sleep(60)", timeout=0.1) is None
