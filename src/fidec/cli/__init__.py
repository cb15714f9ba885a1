"""The command line: `fidec COMMAND ...`. Each command is a module with a `main(argv)`, imported when it is called.

The table of commands is here and not in tyro, so that `fidec --help` takes a few hundredths of a second: tyro would
import the options of every command, and tyro itself takes longer than that to import.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from importlib import import_module

from fidec import __version__
from fidec.cli.streams import lossy_streams
from fidec.errors import FidecError

COMMANDS = {
    "demo": (
        "fidec.cli.demo",
        "make data, train FiDec, compare it with its base policy, draw figures: five to six minutes",
    ),
    "train": ("fidec.cli.train", "train a method on a data set, or resume a run"),
    "eval": ("fidec.cli.evaluate", "evaluate a run's policy, and its base policy if asked"),
    "select": ("fidec.cli.select", "choose among policies with a few real episodes"),
    "tune": ("fidec.cli.tune", "train several budgets on one behaviour flow, and choose among them"),
    "audit": ("fidec.cli.audit", "measure how far a refined policy has moved from its behaviour flow"),
    "export": ("fidec.cli.export", "write a policy as ONNX, StableHLO or NumPy files that need no fidec"),
    "serve": ("fidec.cli.serve", "serve a policy to robots: openpi's websockets, and JSON over HTTP"),
    "sweep": ("fidec.cli.sweep", "train several seeds, methods and values of options, and compare them"),
    "compare": ("fidec.cli.compare", "compare finished runs: scores, differences, learning curves"),
    "report": (
        "fidec.cli.report",
        "write one HTML page about runs: curves, comparisons, warnings, options",
    ),
    "suite": ("fidec.cli.suite", "train and compare the methods of a suite on its tasks"),
    "data": ("fidec.cli.data", "make, get, list, show and check data sets"),
    "geometry": ("fidec.cli.geometry", "compare trust regions on known densities; check the theorems"),
    "algos": ("fidec.cli.algos", "list the methods, or describe one"),
    "tasks": ("fidec.cli.tasks", "list the tasks, or describe one"),
    "doctor": ("fidec.cli.doctor", "show devices, rendering, versions, caches and disk of this machine"),
}
HELP = {"-h", "--help"}


def usage() -> str:
    lines = [
        "usage: fidec [-h] [--version] COMMAND ...",
        "",
        "Offline reinforcement learning with flow policies, refined inside a Fisher trust region.",
        "",
        "commands:",
        *(f"  {name:<8} {text}" for name, (_, text) in COMMANDS.items()),
        "",
        "`fidec COMMAND --help` explains a command. --debug, anywhere, shows the traceback of an error.",
    ]
    return "\n".join(lines)


def choose(commands: Mapping[str, object], argv: list[str], program: str, text: str) -> tuple[str, list[str]] | int:
    """The first word as a command, or the exit code after help or an error."""
    if not argv or argv[0] in HELP:
        print(text)
        return 0 if argv else 2
    if argv[0] in commands:
        return argv[0], argv[1:]
    from fidec.register import unknown  # imports importlib.metadata, which `fidec --help` does not need

    error = unknown("command", argv[0], commands)
    print(f"{program}: {error}", file=sys.stderr)
    return error.exit_code


def main(argv: list[str] | None = None) -> int:
    """Run a command; the result is the process's exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    with lossy_streams() as errors:
        try:
            code = _run(argv)
        except SystemExit as end:  # tyro's, after help
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    for error in errors:
        if not isinstance(error, BrokenPipeError):  # not `fidec tasks | head`
            with lossy_streams():
                print(f"fidec: standard output is incomplete: {error.strerror}", file=sys.stderr)
            code = code or 1
    return code


def _run(argv: list[str]) -> int:
    debug = "--debug" in argv
    argv = [word for word in argv if word != "--debug"]
    if argv[:1] == ["--version"]:
        print(f"fidec {__version__}")
        return 0
    chosen = choose(COMMANDS, argv, "fidec", usage())
    if isinstance(chosen, int):
        return chosen
    name, rest = chosen
    try:
        if not HELP.isdisjoint(rest) and (code := _help(name, rest)) is not None:
            return code
        return import_module(COMMANDS[name][0]).main(rest) or 0
    except FidecError as error:
        if debug:
            raise
        print(f"fidec {name}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        if debug:
            raise
        print(f"fidec {name}: interrupted", file=sys.stderr)
        return 130
    except OSError as error:
        if debug:
            raise
        print(f"fidec {name}: {_words(error)}. --debug shows where.", file=sys.stderr)
        return 1


def _words(error: OSError) -> str:
    """What the operating system refused. Errors that fidec expects have their own words."""
    try:
        os.getcwd()
    except OSError:
        return "the working directory does not exist or cannot be read: change to another one"
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def _help(name: str, argv: list[str]) -> int | None:
    """Print a command's help without importing JAX; the result is the exit code, or None if that did not work."""
    if "jax" in sys.modules:
        return None
    from fidec.cli.fast_help import stubs

    with contextlib.suppress(Exception), stubs():
        return import_module(COMMANDS[name][0]).main(argv) or 0
