"""`fidec audit` on small runs, and what it says to bad input."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from helpers.runs import random_columns

QUICK = ("--states", 6, "--samples", 8)
SMALL = ("--batch-size", 8, "--log-interval", 10, "--checkpoint-interval", 10, "--algo.hidden", 8, 8)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, npz, compile_cache):
    """A run of FiDec and one of a method without a residual map."""
    from fidec.cli import main

    directory = tmp_path_factory.mktemp("runs")
    for algo, options in (("fidec", ("--algo.flow-steps", 2)), ("bc", ())):
        out = directory / algo
        argv = ("train", "--data", f"npz:{npz}", "--algo", algo, *SMALL, *options, "--steps", 10, "--out", out)
        assert main([str(word) for word in argv]) == 0
    return directory


@pytest.fixture
def run(runs, tmp_path):
    """A copy, which a test may spoil."""
    shutil.copytree(runs / "fidec", tmp_path / "run")
    return tmp_path / "run"


def check_error(found, code: int, *words: str) -> None:
    assert found[0] == code, found
    assert found[1] == ""
    assert "Traceback" not in found[2]
    for word in words:
        assert word in found[2], found[2]


def test_an_audit_writes_picture_and_figures_and_says_what_they_mean(cli, run):
    code, out, err = cli("audit", run, *QUICK)
    assert code == 0, err
    assert "measured as KL the policy spends" in out
    assert "Distance to the closest data action" in out
    assert (run / "audit" / "audit.png").read_bytes().startswith(b"\x89PNG")
    figures = json.loads((run / "audit" / "audit.json").read_text())
    assert figures["algo"] == "fidec"
    assert (figures["states"], figures["samples"], figures["action_dim"]) == (6, 8, 2)
    assert len(figures["kl"]["of_each_state"]) == len(figures["data"]["rows"]) == 6
    assert figures["kl"]["low"] <= figures["kl"]["mean"] <= figures["kl"]["high"]
    assert set(figures["neighbours"]) == {"data", "base", "refined"}
    assert figures["packages"]["jax"]
    assert sorted(p.name for p in (run / "audit").iterdir()) == ["audit.json", "audit.png"]  # no leftovers


def test_json_alone_on_stdout_is_the_file_and_follows_the_seed(cli, run, tmp_path):
    first = cli("audit", run, *QUICK, "--json", "--out", tmp_path / "first")[1]
    assert json.loads(first) == json.loads((tmp_path / "first" / "audit.json").read_text())
    again = json.loads(cli("audit", run, *QUICK, "--json", "--out", tmp_path / "first")[1])
    assert again == json.loads(first)
    other = json.loads(cli("audit", run, *QUICK, "--json", "--seed", 1)[1])
    assert other["data"]["rows"] != again["data"]["rows"]
    assert other["kl"]["mean"] != again["kl"]["mean"]
    assert not (tmp_path / "first" / "audit").exists()


def test_a_policy_directory_needs_data_and_gives_the_same_numbers(cli, run, npz, tmp_path):
    check_error(cli("audit", run / "policy", *QUICK), 2, "without its run", "--data")
    alone = tmp_path / "alone"
    (run / "policy").rename(alone)
    code, out, err = cli("audit", alone, *QUICK, "--data", f"npz:{npz}", "--json", "--out", tmp_path / "out")
    assert code == 0, err
    assert json.loads(out)["states"] == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--states", 1), ("--states", "at least 2")),
        (("--samples", 0), ("--samples", "at least 2")),
        (("--seed", -1), ("--seed", "-1")),
        (("--data", "npz:nowhere.npz"), ("nowhere.npz",)),
    ],
)
def test_bad_options_are_refused(cli, run, options, words):
    code, out, err = cli("audit", run, *options)
    assert code in (1, 2)
    assert out == ""
    assert "Traceback" not in err
    assert all(word in err for word in words), err
    assert not (run / "audit").exists()


def test_a_method_without_a_residual_map_is_named(cli, runs):
    check_error(cli("audit", runs / "bc", *QUICK), 2, "policy of bc", "no residual map", "deflow, fidec")
    assert not (runs / "bc" / "audit").exists()


def test_what_is_not_a_run_is_said(cli, tmp_path):
    check_error(cli("audit", tmp_path / "nowhere"), 1, "nowhere", "no such directory")


def test_missing_and_changed_data_are_named(cli, run, tmp_path):
    config = json.loads((run / "config.json").read_text())
    own = tmp_path / "own.npz"
    (run / "config.json").write_text(json.dumps({**config, "data": f"npz:{own}"}))
    check_error(cli("audit", run, *QUICK), 1, "own.npz", "was trained on", "--data")
    np.savez(own, **random_columns(seed=5))
    check_error(cli("audit", run, *QUICK), 1, "other data", "SHA-256", "--data")
    assert cli("audit", run, *QUICK, "--data", f"npz:{own}")[0] == 0  # the user means it
    (run / "config.json").write_text(json.dumps({**config, "data": None}))
    check_error(cli("audit", run, *QUICK), 2, "arrays given in Python", "--data")


def test_data_of_another_shape_is_refused(cli, run, tmp_path):
    columns = random_columns()
    np.savez(tmp_path / "wide.npz", **{**columns, "observations": np.tile(columns["observations"], 2)})
    check_error(cli("audit", run, *QUICK, "--data", "npz:wide.npz"), 2, "observation shape", "(6,)", "(3,)")
