"""`fidec geometry`: its lists, results, outputs and error messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fidec.geometry.landscapes import LANDSCAPES
from fidec.geometry.methods import METHODS, QUADRATIC
from helpers.runs import check_error

RUN = ("geometry", "run", "--landscape", "bimodal", "--methods", "isotropic", "fql", "--steps", 2, "--workers", 1)


def times(directory: Path) -> dict[str, int]:
    """Names and modification times."""
    return {str(p.relative_to(directory)): p.stat().st_mtime_ns for p in directory.rglob("*") if p.is_file()}


def test_list_names_all_landscapes_and_methods(cli):
    code, out, err = cli("geometry", "list")
    assert (code, err) == (0, "")
    assert all(name in out for name in (*LANDSCAPES, *METHODS))
    listed = json.loads(cli("geometry", "list", "--json")[1])
    assert listed["landscapes"] == {name: landscape.title for name, landscape in LANDSCAPES.items()}
    assert listed["methods"] == list(METHODS)


@pytest.mark.slow
def test_a_run_writes_results_figures_and_table_and_is_not_repeated(cli, tmp_path):
    code, out, err = cli(*RUN, "--seeds", 1, "--out", "lab")
    assert code == 0, err
    assert "job 3/3" in err
    directory = tmp_path / "lab"
    results = {"bimodal/flows.safetensors", "bimodal/isotropic.json", "bimodal/fql.json"}
    outputs = {"bimodal-samples.png", "bimodal-frontier.png", "summary.json", "summary.md", "bimodal/settings.json"}
    before = times(directory)
    assert set(before) == results | outputs
    table = (directory / "summary.md").read_text()
    assert table in out
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert {line.split("|")[1].strip() for line in lines[2:]} == {"isotropic", "fql"}
    assert len({line.count("|") for line in lines}) == 1
    isotropic = json.loads((directory / "bimodal" / "isotropic.json").read_text())
    assert [row["budget"] for row in isotropic["rows"]] == list(QUADRATIC)
    assert {(row["method"], row["unit"], row["seed"]) for row in isotropic["rows"]} == {("isotropic", "penalty", 0)}
    assert isotropic["drawn"] in isotropic["rows"]

    # Again, with one method: nothing is computed, and the table keeps the other method.
    again = ("geometry", "run", "--landscape", "bimodal", "bimodal", "--methods", "fql", "fql", "--steps", 2)
    code, out, err = cli(*again, "--seeds", 1, "--out", "lab", "--json")
    assert (code, err) == (0, "")
    after = times(directory)
    assert {name: after[name] for name in results} == {name: before[name] for name in results}
    assert json.loads(out) == json.loads((directory / "summary.json").read_text())
    assert (directory / "summary.md").read_text() == table

    # Results of other settings are not mixed with these.
    for change in (("--seeds", 2), ("--seeds", 1, "--steps", 3)):
        check_error(cli(*RUN, *change, "--out", "lab"), 2, "bimodal", "other settings", change[-2][2:], "--out")
    assert times(directory) == after


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--landscape", "bimodl"), ("'bimodl'", "did you mean bimodal?", "crescent")),
        (("--methods", "isotropc"), ("'isotropc'", "did you mean isotropic?")),
        (("--seeds", "0"), ("--seeds", "at least 1")),
        (("--steps", "-1"), ("--steps", "not negative")),
        (("--workers", "-1"), ("--workers", "not be negative")),
    ],
)
def test_bad_options_are_reported_and_nothing_is_written(cli, tmp_path, options, words):
    check_error(cli("geometry", "run", "--out", "lab", *options), 2, *words)
    assert not (tmp_path / "lab").exists()


def test_one_theorem_as_table_picture_and_json(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("fidec.geometry.theorems.gap.DRAWS", 1)
    code, out, err = cli("geometry", "theorems", "--which", "d", "--json")
    assert code == 0, err
    results = json.loads(out)
    assert list(results) == ["d"]
    assert list(tmp_path.iterdir()) == []  # no picture unless asked for
    code, out, err = cli("geometry", "theorems", "--which", "d", "--out", "pictures")
    assert code == 0, err
    assert out.startswith(f"(d) {results['d']['title']}\n")
    assert all(f"- {note}" in out for note in results["d"]["notes"])
    assert "picture: pictures/theorem-d.png" in out
    assert (tmp_path / "pictures" / "theorem-d.png").exists()
    check_error(cli("geometry", "theorems", "--which", "d", "e"), 2, "no theorem 'e'", "a, b, c, d")


def test_the_subcommands_are_listed_and_mistakes_get_a_hint(cli):
    code, out, _ = cli("geometry", "--help")
    assert code == 0
    assert all(name in out for name in ("run", "theorems", "calibration", "list"))
    check_error(cli("geometry", "theorem"), 2, "no command 'theorem'", "did you mean theorems?")
