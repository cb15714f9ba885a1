"""A resumed run continues its own checkpoints, with its own options, on its own data, or it says why not."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress

import numpy as np
import pytest

import fidec
from fidec.errors import EnvError, FidecError, RunError
from fidec.store import files
from fidec.store.rundir import RunDirectory
from fidec.store.schema import parse_json
from fidec.train.session import Session
from fidec.train.stored import config_of
from helpers.faults import mutated
from helpers.runs import random_columns


@pytest.fixture
def dataset():
    return fidec.dataset_from_arrays(**random_columns())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return tmp_path_factory.mktemp("trained") / "run"


@pytest.fixture
def run(trained, dataset, tmp_path, tiny, compile_cache):
    """A finished run of the tiny method, of which each test has a copy."""
    if not trained.exists():
        fidec.fit(dataset, trained, algo="tiny", steps=20, batch_size=8, checkpoint_interval=10, quiet=True)
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def contents(run):
    """The files of a run, except what every start writes."""
    return {
        path: path.read_bytes() for path in run.rglob("*") if path.is_file() and path.name not in ("lock", "run.log")
    }


def test_any_flipped_bit_of_the_configuration_is_noticed(run, dataset):
    path, dice = run / "config.json", np.random.default_rng(0)
    raw = path.read_bytes()
    for position in dice.choice(8 * len(raw), 150, replace=False):
        damaged = bytearray(raw)
        damaged[position // 8] ^= 1 << int(position % 8)
        path.write_bytes(damaged)
        try:
            same = json.loads(bytes(damaged)) == json.loads(raw)  # white space, or an escape of the same letter
        except ValueError:
            same = False
        if not same:
            with pytest.raises(FidecError):
                fidec.resume(run, dataset, steps=30, quiet=True)
    path.write_bytes(raw)
    assert fidec.resume(run, dataset, steps=22, quiet=True).step == 22


def test_the_configuration_of_another_run_is_refused(run, dataset, tmp_path):
    options = {"algo": "tiny", "steps": 20, "batch_size": 8, "checkpoint_interval": 10, "quiet": True}
    fidec.fit(dataset, tmp_path / "other", seed=7, **options)
    shutil.copy(tmp_path / "other" / "config.json", run / "config.json")
    before = contents(run)
    with pytest.raises(RunError, match="saved with seed 0, now 7"):
        fidec.resume(run, dataset, steps=30, quiet=True)
    assert contents(run) == before


def test_other_data_is_refused_without_the_record_of_the_environment(run):
    (run / "environment.json").unlink()
    columns = random_columns()
    columns["rewards"] = columns["rewards"] + 1
    with pytest.raises(RunError, match="data with SHA-256"):
        fidec.resume(run, fidec.dataset_from_arrays(**columns), steps=30, quiet=True)


@pytest.mark.parametrize("kept", ["policy", "status.json"])
def test_a_run_without_its_checkpoints_does_not_start_again(run, dataset, kept):
    shutil.rmtree(run / "checkpoints")
    if kept == "policy":
        files.write_json(run / "status.json", {"state": "failed", "step": 0})
    else:
        shutil.rmtree(run / "policy")
    before = contents(run)
    with pytest.raises(RunError, match="has no checkpoints, but it was saved before"):
        fidec.resume(run, dataset, steps=30, quiet=True)
    assert contents(run) == before


def test_a_policy_says_which_configuration_and_data_it_is_from(run, dataset):
    info, config = fidec.load_policy(run).info, RunDirectory.open(run, read_only=True).read_config()
    assert info["config_sha256"] == files.sha256_json(config_of(config).fixed())
    assert info["data_sha256"] == dataset.sha256


def test_a_run_without_its_configuration_is_neither_resumed_nor_replaced(run, dataset, tmp_path):
    (run / "config.json").unlink()
    before = contents(run)
    with pytest.raises(RunError, match=r"has no config\.json, but it has train.*policy.*status\.json of step"):
        fidec.resume(run, dataset, quiet=True)
    with pytest.raises(RunError, match="holds a run already"):
        fidec.fit(dataset, run, algo="tiny", steps=20, quiet=True)
    assert contents(run) == before


def test_a_replaced_run_stays_until_the_new_one_can_train(run, dataset, monkeypatch):
    def start(self):
        assert not (run / "policy").exists()
        raise EnvError("no licence")

    before = contents(run)
    monkeypatch.setattr(Session, "start_environments", start)
    with pytest.raises(EnvError, match="no licence"):
        fidec.fit(dataset, run, algo="tiny", steps=20, overwrite=True, quiet=True)
    assert contents(run) == before


def test_a_policy_or_checkpoint_with_another_description_is_an_error_of_fidec(run, dataset):
    """With hashes that fit: written by somebody else, or by another version."""
    card = run / "policy" / "policy.json"
    for text in mutated(card.read_text(), 60):
        card.write_text(text)
        files.write_manifest(card.parent)
        with suppress(FidecError):
            fidec.load_policy(run)
    shutil.rmtree(run / "checkpoints" / "00000010")
    newest = run / "checkpoints" / "00000020"
    extra = json.loads((newest / "manifest.json").read_text())["extra"]
    for text in mutated(json.dumps(extra), 12):
        with suppress(ValueError):
            files.write_manifest(newest, parse_json(text))
            with suppress(FidecError):
                fidec.resume(run, dataset, quiet=True)
