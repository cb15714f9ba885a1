"""The command line: `fidec COMMAND ...`. Each command is a module with a `main(argv)`, imported when it is called.

The table of commands is here and not in tyro, so that `fidec --help` takes a few hundredths of a second: tyro would
import the options of every command, and tyro itself takes longer than that to import.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TextIO

from fidec import __version__
from fidec.errors import FidecError

COMMANDS = {
    "demo": (
        "fidec.cli.demo",
        "make data, train FiDec, compare it with its base policy, draw figures: five to six minutes",
    ),
    "train": ("fidec.cli.train", "train a method on a data set, or resume a run"),
    "eval": ("fidec.cli.evaluate", "evaluate a run's policy, and its base policy if asked"),
    "select": ("fidec.cli.select", "choose among policies with a few real episodes"),
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
# Replaced while the help of a command is printed.
STUBBED = ("flax", "gymnasium", "jax", "jaxlib", "jaxtyping", "matplotlib", "optax", "scipy")


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


# --- help without JAX ---------------------------------------------------------------------------------------------


def _help(name: str, argv: list[str]) -> int | None:
    """Print a command's help without importing JAX; the result is the exit code, or None if that did not work.

    The options of a method are a plain dataclass, but the module that defines it also imports JAX, flax and optax,
    which takes a second of CPU time. So these packages and others that take long are replaced by stubs, as
    documentation builders do.
    """
    if "jax" in sys.modules:
        return None
    with contextlib.suppress(Exception), _stubs():
        return import_module(COMMANDS[name][0]).main(argv) or 0


class _AnythingType(type):
    """Accepts what a module does with a class, function or constant while it is imported."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    __getitem__ = __or__ = __ror__ = __add__ = __radd__ = __mul__ = __rmul__ = __neg__ = __call__


class _Anything(metaclass=_AnythingType): ...


class _StubModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _StubFinder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None):
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] in STUBBED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None: ...


@contextmanager
def _stubs() -> Iterator[None]:
    """Import stubs in place of the packages that take long, and forget all modules that were imported with them."""
    finder, before = _StubFinder(), set(sys.modules)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if name.split(".")[0] in (*STUBBED, "fidec"):
                del sys.modules[name]


# --- standard output and standard error that never raise ----------------------------------------------------------


class _Lossy(io.FileIO):
    """A file descriptor. After the first error, which it keeps, everything that is written to it is dropped.

    The reader of a pipe may go away, a disk may be full.
    """

    error: OSError | None = None

    def write(self, data) -> int:
        if self.error is None:
            try:
                return super().write(data)
            except OSError as error:
                self.error = error
        return len(data)


@contextmanager
def lossy_streams() -> Iterator[list[OSError]]:
    """Inside, stdout and stderr cannot raise. Afterwards the list holds the error of stdout, if there was one.

    Characters that the encoding lacks are written as \\uXXXX. A stream that was closed is the null device, so that no
    other file gets its number. Streams that somebody has replaced, as pytest does, are left alone.
    """
    _open_closed()
    kept, errors = (sys.stdout, sys.stderr), []
    sys.stdout, sys.stderr = _lossy(sys.stdout, sys.__stdout__, 1), _lossy(sys.stderr, sys.__stderr__, 2)
    try:
        yield errors
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
        if isinstance(raw, _Lossy) and raw.error is not None:
            errors.append(raw.error)
        sys.stdout, sys.stderr = kept


def _lossy(stream: TextIO, original: TextIO | None, number: int) -> TextIO:
    if stream is not original or stream.fileno() != number:
        return stream
    stream.flush()
    buffer = io.BufferedWriter(_Lossy(number, "w", closefd=False))
    line_by_line = number == 2 or stream.isatty()
    return io.TextIOWrapper(buffer, stream.encoding, errors="backslashreplace", line_buffering=line_by_line)


def _open_closed() -> None:
    """Open the standard streams that the caller closed (`>&-`); Python has None in their place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            stream = os.fdopen(number, "r" if number == 0 else "w", closefd=False)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)
