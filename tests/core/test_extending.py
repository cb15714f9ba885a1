"""docs/extending.md is executed: its files become an installed package, its commands run, its entries are found."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from fidec import cli
from fidec.algos.common.base import METHODS
from fidec.algos.constraints import CONSTRAINTS
from fidec.data.source import SOURCES, absolute_source
from fidec.envs.families import FAMILIES
from fidec.executors import EXECUTORS, Request
from fidec.register import Register

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(m[1], m[3]) for m in BLOCK.finditer(PAGE.read_text(encoding="utf-8")) if "no-run" not in m[2]]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The page's package, as pip would leave it, in a process whose current directory is empty."""
    site, work = tmp_path / "site", tmp_path / "work"
    project = next(tomllib.loads(text)["project"] for language, text in BLOCKS if language == "toml")
    files = [(name, text) for _, text in BLOCKS if (name := re.match(r"# (my_fidec/\w+\.py)\n", text))]
    info = site / "my_fidec-0.1.dist-info"
    for directory in (site / "my_fidec", info, work):
        directory.mkdir(parents=True)
    for name, text in files:
        (site / name[1]).write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    groups = project["entry-points"]
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, sys.path)]))  # suites start processes
    monkeypatch.setenv("FIDEC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.chdir(work)
    importlib.invalidate_caches()
    yield groups
    for name in [name for name in sys.modules if name.partition(".")[0] == "my_fidec"]:
        del sys.modules[name]


@pytest.mark.slow
def test_the_page_works_as_an_installed_package(installed, compile_cache, capsys):
    registers = {register.group: register for register in (METHODS, SOURCES, FAMILIES, CONSTRAINTS, EXECUTORS)}
    for group, points in installed.items():
        for name in points:
            assert name in registers[group].names()
            registers[group].get(name)
    commands = 0
    for language, text in BLOCKS:
        if language == "toml" and text.startswith("# line.toml"):
            Path("line.toml").write_text(text)
        elif language == "python" and not text.startswith("# my_fidec/"):
            exec(compile(text, str(PAGE), "exec"), {})
        elif language == "console":
            for line in re.findall(r"^\$ fidec (.*)$", text.replace("\\\n", " "), re.MULTILINE):
                capsys.readouterr()
                code = cli.main(shlex.split(line))
                out, err = capsys.readouterr()
                assert code == 0, f"fidec {line}\n{err}"
                assert out, f"fidec {line} printed nothing"
                commands += 1
    assert commands == 11
    assert "line:long" in {info.id for info in FAMILIES.get("line").tasks()}


@pytest.mark.usefixtures("installed")
def test_a_path_in_a_plug_ins_source_is_made_absolute_and_an_id_is_not():
    Path("walk.csv").touch()
    Path("door-human-v1").mkdir()
    assert absolute_source("csv:walk.csv") == f"csv:{Path('walk.csv').absolute()}"
    for source in ("csv:nothing.csv", "csv:\0", "d4rl:door-human-v1"):  # what exists beside an id does not matter
        assert absolute_source(source) == source


def test_an_executor_of_another_package_is_found_by_its_name(installed):
    with EXECUTORS.get("gentle").open(Request(workers=2)) as pool:
        assert (pool.slots, pool.remote) == (2, False)


@pytest.mark.parametrize("ask", [lambda new: new.get("fql"), lambda new: new.names(), lambda new: new.get("mine")])
def test_a_plug_in_with_a_name_that_is_taken_is_left_out_and_named_once(tmp_path, monkeypatch, capsys, ask):
    for package in ("first", "second"):
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        own = "fql = second:METHOD\n" if package == "second" else ""
        (info / "entry_points.txt").write_text(f"[{METHODS.group}]\nmine = fidec.algos.fql:METHOD\n{own}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    new = Register(METHODS.kind, METHODS.package, METHODS.attribute, METHODS.entry, METHODS.group)
    for _ in range(2):
        ask(new)
    err = capsys.readouterr().err
    assert err.count("\n") == 2
    assert "left out: method 'fql' (second:METHOD of package second): fidec has a method of this name" in err
    assert re.search(
        r"left out: method 'mine' \(.* of package (first|second)\): .* of package (first|second) has", err
    )
    assert new.get("fql") is METHODS.get("fql")
