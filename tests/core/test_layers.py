"""Imports point down: each package imports only packages of a lower layer, also inside functions."""

from __future__ import annotations

import ast
import re
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


def imports_of(path: Path) -> set[str]:
    """The modules of fidec that a file imports anywhere, except for type checking only."""
    found = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name == "fidec" or name.startswith("fidec."):
                inner = name.removeprefix("fidec").lstrip(".")
                while inner and inner not in MODULES:
                    inner = inner.rpartition(".")[0]
                found.add(inner or "__init__")
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


GRAPH = {name: imports_of(path) - {name} for name, path in MODULES.items()}


def test_every_package_has_a_layer():
    assert {name.split(".")[0] for name in MODULES} == set(RANK)


def test_no_import_points_up():
    upward = [
        f"{name} -> {other}"
        for name, others in GRAPH.items()
        for other in others
        if (a := name.split(".")[0]) != (b := other.split(".")[0])
        and RANK[a] <= RANK[b]
        # The public names of `fidec` are loaded on demand; `fidec.__version__` is a constant.
        and other != "__init__"
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
