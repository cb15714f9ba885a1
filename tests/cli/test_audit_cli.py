"""`fidec audit` on a small run, and its error messages."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from fidec.audit.text import end_of_training
from fidec.store.rundir import RunDirectory
from helpers.runs import check_error, random_columns

QUICK = ("--states", 6, "--samples", 8)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, npz, compile_cache):
    from fidec.cli import main

    out = tmp_path_factory.mktemp("runs") / "fidec"
    small = ("--batch-size", 8, "--algo.hidden", 8, "--algo.flow-steps", 2, "--steps", 2)
    argv = ("train", "--data", f"npz:{npz}", "--algo", "fidec", *small, "--out", out)
    assert main([str(word) for word in argv]) == 0
    return out


@pytest.fixture
def run(trained, tmp_path):
    """A copy, which a test may change."""
    return shutil.copytree(trained, tmp_path / "run")


def test_an_audit_writes_figure_and_numbers_and_repeats_with_its_seed(cli, run, npz, tmp_path):
    code, out, err = cli("audit", run, *QUICK)
    assert code == 0, err
    assert "measured as KL the policy spends" in out
    assert (run / "audit" / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in (run / "audit").iterdir()) == ["audit.json", "audit.png"]  # no leftovers
    result = json.loads((run / "audit" / "audit.json").read_text())
    assert result["algo"] == "fidec"
    assert (result["states"], result["samples"], result["action_dim"]) == (6, 8, 2)
    assert len(result["kl"]["of_each_state"]) == len(result["data"]["rows"]) == 6
    assert result["kl"]["low"] <= result["kl"]["mean"] <= result["kl"]["high"]
    assert set(result["neighbours"]) == {"data", "base", "refined"}
    assert result["packages"]["jax"]

    # A policy directory alone needs the data, and gives the same numbers.
    alone = tmp_path / "alone"
    (run / "policy").rename(alone)
    check_error(cli("audit", alone, *QUICK), 2, "without its run", "--data")
    code, out, err = cli("audit", alone, *QUICK, "--data", f"npz:{npz}", "--json", "--out", tmp_path / "out")
    assert code == 0, err
    again = json.loads(out)
    assert again == json.loads((tmp_path / "out" / "audit.json").read_text())
    assert {name: again[name] for name in ("kl", "data", "direction")} == {
        name: result[name] for name in ("kl", "data", "direction")
    }
    other = json.loads(cli("audit", alone, *QUICK, "--data", f"npz:{npz}", "--json", "--seed", 1)[1])
    assert other["data"]["rows"] != again["data"]["rows"]
    assert other["kl"]["mean"] != again["kl"]["mean"]


def test_the_end_of_training_says_how_the_budget_was_used(trained, capsys):
    from fidec.cli.train import _report
    from fidec.train.run import Result

    _report(Result(trained, 2, None), as_json=False)
    assert re.search(
        r"^trust region: penalty .*, budget 0.001 \(not in nats\)", capsys.readouterr().out, re.MULTILINE
    )
    run = RunDirectory.open(trained, read_only=True)
    assert end_of_training(run.path)
    (trained / "train.jsonl").rename(trained / "kept")
    (trained / "train.jsonl").write_text(json.dumps({"step": 2, "training/loss": 1.0}) + "\n")
    assert end_of_training(run.path) is None  # a method without a multiplier
    (trained / "kept").rename(trained / "train.jsonl")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--states", 1), ("--states", "at least 2")),
        (("--samples", 0), ("--samples", "at least 2")),
        (("--seed", -1), ("--seed", "-1")),
        (("--data", "npz:nowhere.npz"), ("nowhere.npz",)),
        (("--data", "npz:wide.npz"), ("observation shape", "(6,)", "(3,)")),
    ],
)
def test_bad_options_are_reported(cli, trained, tmp_path, options, words):
    columns = random_columns()
    np.savez(tmp_path / "wide.npz", **{**columns, "observations": np.tile(columns["observations"], 2)})
    code, out, err = cli("audit", trained, *options)
    assert code in (1, 2)
    assert out == ""
    assert "Traceback" not in err
    assert all(word in err for word in words), err
    assert not (trained / "audit").exists()


def test_a_method_without_a_residual_map_is_refused(cli, npz, tmp_path):
    import jax

    from fidec import algos
    from fidec.data import load_dataset
    from fidec.train.policy import Policy

    spec, method = load_dataset(f"npz:{npz}").spec, algos.get("bc")
    options = method.config(hidden=(8,))
    Policy("bc", options, spec, method.make(options, spec).init(jax.random.key(0))).save(tmp_path / "bc")
    result = cli("audit", tmp_path / "bc", *QUICK, "--data", f"npz:{npz}")
    check_error(result, 2, "policy of bc", "no residual map", "fidec and deflow")
    assert not (tmp_path / "bc" / "audit").exists()


def test_a_link_in_the_place_of_the_audit_is_not_followed(cli, run, tmp_path):
    (tmp_path / "outside").mkdir()
    (run / "audit").symlink_to(tmp_path / "outside")
    check_error(cli("audit", run, *QUICK), 1, "audit is a symbolic link")
    assert not list((tmp_path / "outside").iterdir())


def test_missing_and_changed_data_are_reported(cli, run, tmp_path):
    check_error(cli("audit", tmp_path / "nowhere"), 1, "nowhere", "no such directory")
    directory = RunDirectory.open(run, read_only=True)
    config = directory.read_config()
    own = tmp_path / "own.npz"
    directory.write_config({**config, "data": f"npz:{own}"})
    check_error(cli("audit", run, *QUICK), 1, "own.npz", "training data", "--data")
    np.savez(own, **random_columns(seed=5))
    check_error(cli("audit", run, *QUICK), 1, "other data", "SHA-256", "--data")
    directory.write_config({**config, "data": None})
    check_error(cli("audit", run, *QUICK), 2, "arrays given in Python", "--data")
