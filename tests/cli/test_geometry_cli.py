"""`fidec geometry`: what it lists, runs and writes, what it does not run again, and what it says to bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fidec.geometry import experiment, landscapes

RUN = ("geometry", "run", "--landscape", "bimodal", "--methods", "isotropic", "fql", "--steps", 2, "--workers", 1)


def check_error(found, *words: str) -> None:
    assert found[0] == 2, found
    assert found[1] == ""
    assert "Traceback" not in found[2]
    for word in words:
        assert word in found[2], found[2]


def files(directory: Path) -> dict[str, int]:
    """Names and times of change."""
    return {str(p.relative_to(directory)): p.stat().st_mtime_ns for p in directory.rglob("*") if p.is_file()}


def test_list_names_all_landscapes_and_methods(cli):
    code, out, err = cli("geometry", "list")
    assert (code, err) == (0, "")
    names = [line.split()[0] for line in out.splitlines()[1 : 1 + len(landscapes.LANDSCAPES)]]
    assert names == list(landscapes.LANDSCAPES)
    assert out.splitlines()[-1] == f"methods: {', '.join(experiment.METHODS)}"
    found = json.loads(cli("geometry", "list", "--json")[1])
    assert found["landscapes"] == {name: landscape.title for name, landscape in landscapes.LANDSCAPES.items()}
    assert found["methods"] == list(experiment.METHODS)


@pytest.mark.slow
def test_a_run_writes_results_figures_and_table_and_is_not_repeated(cli, tmp_path):
    code, out, err = cli(*RUN, "--seeds", 1, "--out", "lab")
    assert code == 0, err
    done = [line for line in err.splitlines() if line.startswith("bimodal")]
    assert done == ["bimodal: 1 flows fitted", "bimodal: isotropic", "bimodal: fql"]
    directory = tmp_path / "lab"
    results = {"bimodal/settings.json", "bimodal/flows.safetensors", "bimodal/isotropic.json", "bimodal/fql.json"}
    outputs = {"bimodal-samples.png", "bimodal-frontier.png", "summary.json", "summary.md"}
    before = files(directory)
    assert set(before) == results | outputs

    for name in ("bimodal-samples.png", "bimodal-frontier.png"):
        assert (directory / name).read_bytes().startswith(b"\x89PNG")
    table = (directory / "summary.md").read_text()
    assert out == f"{table}\nfigures and table: lab\n"
    lines = [line for line in table.splitlines() if line.startswith("|")]
    assert lines[0] == "| method | KL 0.5 | off | KL 1 | off | KL 2 | off |"
    assert {line.split("|")[1].strip() for line in lines[2:]} == {"isotropic", "fql"}
    assert len({line.count("|") for line in lines}) == 1
    isotropic = json.loads((directory / "bimodal" / "isotropic.json").read_text())
    assert [row["budget"] for row in isotropic["rows"]] == list(experiment.FORMS)
    assert {(row["method"], row["unit"], row["seed"]) for row in isotropic["rows"]} == {("isotropic", "penalty", 0)}
    assert isotropic["drawn"] in isotropic["rows"]
    assert all(len(point) == 2 for point in isotropic["samples"])
    one_step = json.loads((directory / "bimodal" / "fql.json").read_text())
    assert [row["budget"] for row in one_step["rows"]] == list(experiment.ONE_STEP)
    assert {row["unit"] for row in one_step["rows"]} == {"alpha"}

    # Again: only figures and table are drawn anew, from the same results.
    code, again, err = cli(*RUN, "--seeds", 1, "--out", "lab", "--json")
    assert (code, err) == (0, "")
    after = files(directory)
    assert set(after) == set(before)
    assert {name: after[name] for name in results} == {name: before[name] for name in results}
    assert json.loads(again) == json.loads((directory / "summary.json").read_text())
    assert (directory / "summary.md").read_text() == table
    at = json.loads(again)["bimodal"]["at"]
    assert set(at) == {"0.5", "1", "2"}
    assert set(at["1"]) == {"isotropic", "fql"}

    # Fewer methods, one of them twice: the table keeps what is there.
    some = ("geometry", "run", "--landscape", "bimodal", "bimodal", "--methods", "fql", "fql", "--steps", 2)
    code, out, err = cli(*some, "--seeds", 1, "--out", "lab")
    assert (code, err) == (0, "")
    assert out == f"{table}\nfigures and table: lab\n"
    after = files(directory)

    # Other settings must not be mixed with these.
    for change in (("--seeds", 2), ("--seeds", 1, "--steps", 3)):
        check_error(cli(*RUN, *change, "--out", "lab"), "bimodal", "other settings", change[-2][2:], "--out")
    assert files(directory) == after


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--landscape", "bimodl"), ("'bimodl'", "did you mean bimodal?", "crescent")),
        (("--landscape", "7"), ("'7'", "The landscapes are bimodal")),
        (("--methods", "isotropc"), ("'isotropc'", "isotropic")),
        (("--seeds", "-1"), ("--seeds", "at least 1")),
        (("--seeds", "0"), ("--seeds", "at least 1")),
        (("--steps", "-1"), ("--steps", "not negative")),
        (("--workers", "-1"), ("--workers", "not be negative")),
    ],
)
def test_what_cannot_be_run_is_said_and_leaves_nothing_behind(cli, tmp_path, options, words):
    check_error(cli("geometry", "run", "--out", "lab", *options), *words)
    assert not (tmp_path / "lab").exists()


def test_calibration_refuses_what_run_refuses(cli, tmp_path):
    check_error(cli("geometry", "calibration", "--out", "lab", "--landscape", "thinn"), "did you mean thin?")
    check_error(cli("geometry", "calibration", "--out", "lab", "--seeds", 0), "--seeds")
    assert not (tmp_path / "lab").exists()


def test_one_theorem_as_table_picture_and_json(cli, tmp_path):
    code, out, err = cli("geometry", "theorems", "--which", "d", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert list(found) == ["d"]
    assert {"title", "columns", "rows", "notes"} <= set(found["d"])
    assert list(tmp_path.iterdir()) == []  # no picture unless asked for
    code, out, err = cli("geometry", "theorems", "--which", "d", "--out", "pictures")
    assert code == 0, err
    assert out.startswith(f"(d) {found['d']['title']}\n")
    assert all(f"- {note}" in out for note in found["d"]["notes"])
    assert "picture: pictures/theorem-d.png" in out
    assert (tmp_path / "pictures" / "theorem-d.png").read_bytes().startswith(b"\x89PNG")


def test_an_unknown_theorem_is_named(cli):
    check_error(cli("geometry", "theorems", "--which", "d", "e"), "no theorem 'e'", "a, b, c, d")


def test_the_subcommands_are_listed_and_mistakes_get_a_hint(cli):
    code, out, _ = cli("geometry", "--help")
    assert code == 0
    assert all(name in out for name in ("run", "theorems", "calibration", "list"))
    check_error(cli("geometry", "theorem"), "no command 'theorem'", "did you mean theorems?")
