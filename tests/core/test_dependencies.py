"""The imports of the package and the dependencies that pyproject.toml declares are the same."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import fidec

SOURCE = Path(fidec.__file__).parent
PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
PROJECT = tomllib.loads(PYPROJECT.read_text())["project"]


def packages(requirements: list[str]) -> set[str]:
    """The normalised names of the packages; `fidec[name]` stands for the packages of that extra."""
    names = set()
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement)
        assert name, requirement
        if name[0] == "fidec":
            extras = re.search(r"\[(.*?)\]", requirement)
            assert extras, requirement
            names.update(*(EXTRAS[extra] for extra in extras[1].split(",")))
        else:
            names.add(normalise(name[0]))
    return names


def normalise(name: str) -> str:
    """The name of a package, also of one that is imported by another name."""
    return {"PIL": "pillow", "mcap_ros2": "mcap-ros2-support"}.get(name, name.lower().replace("_", "-"))


EXTRAS: dict[str, set[str]] = {}
for extra, requirements in PROJECT["optional-dependencies"].items():  # an extra is declared before it is used
    EXTRAS[extra] = packages(requirements)
CORE = packages(PROJECT["dependencies"])


def third_party(tree: ast.AST, top: bool) -> Iterator[str]:
    """Packages that the code imports, with `top` only what importing the module imports."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        for name in names:
            package = name.partition(".")[0]
            if package not in sys.stdlib_module_names and package != "fidec":
                yield normalise(package)
        if not (top and isinstance(node, ast.FunctionDef)):
            yield from third_party(node, top)


def required(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(package, extra) of every call of `fidec.extras.require`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "require":
            module, extra = (arg.value if isinstance(arg, ast.Constant) else None for arg in node.args[:2])
            assert isinstance(module, str), ast.unparse(node)
            assert isinstance(extra, str), ast.unparse(node)
            yield normalise(module.partition(".")[0]), extra


TREES = {path.relative_to(SOURCE): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}


def test_every_module_imports_without_the_extras():
    optional = {str(path): set(third_party(tree, top=True)) - CORE for path, tree in TREES.items()}
    assert {path: names for path, names in optional.items() if names} == {}


def test_core_dependencies_are_the_packages_that_are_imported():
    imported = {name for tree in TREES.values() for name in third_party(tree, top=False)}
    assert CORE - imported == set()
    assert imported - CORE - set.union(*EXTRAS.values()) == set()


def test_optional_packages_belong_to_the_extra_that_is_named():
    calls = [pair for tree in TREES.values() for pair in required(tree)]
    assert calls
    assert [(name, extra) for name, extra in calls if name not in EXTRAS.get(extra, ())] == []


@pytest.mark.parametrize("words", ["import fidec", "from fidec.cli import main; main(['--help'])"])
def test_import_and_help_are_quick(words: str):
    """They import no package besides the standard library."""
    script = f"import sys; {words}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.splitlines()[-1].split()}
    assert not {normalise(name) for name in loaded} & (CORE | set.union(*EXTRAS.values()))


def test_py_typed_is_part_of_the_package():
    assert (SOURCE / "py.typed").exists()
