"""Imports point down: each package imports only packages of a lower layer, also inside functions."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import fidec

ROOT = Path(fidec.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
# From the bottom to the top: the second column of the table. Packages of one layer do not import each other.
LAYERS = [re.findall(r"`(\w+)`", row.split("|")[2]) for row in re.findall(r"^\| \d+ \|.*", PAGE.read_text(), re.M)]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def modules() -> dict[str, Path]:
    """Every module of fidec by its dotted name, without the leading `fidec.`."""
    named = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        named[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = path
    return named


MODULES = modules()


def nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a source, except those for type checking only."""
    if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from nodes(child)


def imports_of(source: str) -> set[str]:
    """The modules of fidec that a source imports anywhere."""
    found = set()
    for node in nodes(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import of {node.module}"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name == "fidec" or name.startswith("fidec."):
                inner = name.removeprefix("fidec").lstrip(".")
                while inner and inner not in MODULES:
                    inner = inner.rpartition(".")[0]
                found.add(inner or "__init__")
    return found


def named_in(source: str) -> set[str]:
    """The modules whose names are strings of a source, as registers and tables hold them: they are imported later."""
    strings = [node.value for node in nodes(ast.parse(source)) if isinstance(node, ast.Constant)]
    return {s[6:].partition(":")[0] for s in strings if isinstance(s, str) and s.startswith("fidec.")} & set(MODULES)


SOURCES = {name: path.read_text() for name, path in MODULES.items()}
GRAPH = {name: imports_of(source) - {name} for name, source in SOURCES.items()}


def test_what_a_source_imports_is_found():
    source = "def f():\n    from fidec import fit\n    import fidec.data.npz, os"
    assert imports_of(source) == {"__init__", "data.npz"}
    source = "'fidec.nn is a module'\nTABLE = {'a': 'fidec.algos:make', 'b': 'fidec.sources'}"
    assert named_in(source) == {"algos"}
    assert not starts_processes(
        "from multiprocessing import connection\nx: subprocess.Popen = launch(subprocess.PIPE)"
    )
    for start in ("subprocess.run([])", "from concurrent.futures import ProcessPoolExecutor", "os.fork()"):
        assert starts_processes(start)


def test_every_package_has_a_layer():
    assert {name.split(".")[0] for name in MODULES} == set(RANK)


def test_no_import_points_up():
    upward = [
        f"{name} -> {other}"
        for name, others in GRAPH.items()
        for other in others | named_in(SOURCES[name])
        if (a := name.split(".")[0]) != (b := other.split(".")[0]) and RANK[a] <= RANK[b]
    ]
    assert not upward, upward


def test_no_modules_import_each_other():
    """Inside a package too, and through imports inside functions."""
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name in done:
            return
        for other in GRAPH[name]:
            visit(other, (*path, name))
        done.add(name)

    for name in GRAPH:
        visit(name, ())


# Calls and imported names that start a process.
STARTS = re.compile(
    r"subprocess\.(?!PIPE|DEVNULL|STDOUT)\w+|multiprocessing\.(?!connection|parent_process)\w+"
    r"|(concurrent\.futures\.(process\.)?|futures\.|)ProcessPoolExecutor"
    r"|os\.(fork\w*|exec\w+|spawn\w+|posix_spawn\w*|system|popen)"
)


def starts_processes(source: str) -> bool:
    for node in ast.walk(ast.parse(source)):
        names = [ast.unparse(node.func)] if isinstance(node, ast.Call) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        if any(STARTS.fullmatch(name) for name in names):
            return True
    return False


def test_processes_are_started_in_few_places():
    """All Python processes by `launch`, but those of environments; `store.versions` asks git."""
    starting = {name for name, source in SOURCES.items() if starts_processes(source)}
    assert starting == {"launch", "envs.processes", "store.versions"}
