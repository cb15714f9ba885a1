"""A run that starts from another one (`init_from`): what it takes over, exact resume without it, what is refused."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from fidec import dataset_from_arrays, fit, load_policy, resume
from fidec.errors import CheckpointError, ConfigError, RunError
from fidec.store import files
from fidec.train.config import RunConfig
from fidec.train.resolve import resolve
from fidec.train.run import Together
from fidec.train.warm_start import with_initial
from helpers.runs import TASK, fingerprint, random_columns

TINY = {"algo": "tiny", "batch_size": 8, "log_interval": 10, "checkpoint_interval": 10, "quiet": True}


@pytest.fixture
def other():
    """Other data than that of the first run, with other means."""
    columns = random_columns(seed=1)
    return dataset_from_arrays(**{**columns, "observations": columns["observations"] + 3})


@pytest.fixture
def first(tiny, compile_cache, tmp_path):
    return fit(dataset_from_arrays(**random_columns()), tmp_path / "first", steps=20, **TINY).directory


def state(run, step):
    return load_file(run / "checkpoints" / f"{step:08d}" / "state.safetensors")


def test_a_run_starts_from_another_and_resumes_without_it(first, other, tmp_path, monkeypatch, capfd):
    options = {"jitter": 0.5}  # no network depends on it
    loud = {**TINY, "quiet": False, "options": options}
    whole = fit(other, tmp_path / "whole", steps=20, init_from=str(first), **loud).directory
    said = capfd.readouterr().err
    assert f"starts from step 20 of {first}" in said
    assert "normalised with the statistics of that run" in said
    assert json.loads((whole / "config.json").read_text())["init_from"] == str(first)
    old, new = load_policy(first), load_policy(whole)
    assert (old.spec.observation_mean, old.spec.observation_std) == (
        new.spec.observation_mean,
        new.spec.observation_std,
    )
    assert state(whole, 10)["state/count"] == 30  # twenty of the first run

    killed = tmp_path / "killed"

    def kill(self):
        raise KeyboardInterrupt

    advance = Together.advance
    monkeypatch.setattr(Together, "advance", kill)
    with pytest.raises(KeyboardInterrupt):
        fit(other, killed, steps=20, init_from=first, options=options, **TINY)
    monkeypatch.setattr(Together, "advance", advance)
    assert not list((killed / "checkpoints").iterdir())
    shutil.rmtree(first)
    assert resume(killed, other, quiet=True).step == 20
    assert fingerprint(killed, 20) == fingerprint(whole, 20)

    shutil.rmtree(killed / "checkpoints" / "00000020")  # a kill after the first checkpoint
    resume(killed, other, quiet=True)
    assert fingerprint(killed, 20) == fingerprint(whole, 20)
    files.write_manifest(killed / "init")  # intact, but without what a run writes
    with pytest.raises(CheckpointError, match=r"init/manifest\.json was not written by fidec: spec is missing"):
        resume(killed, other, quiet=True)
    shutil.rmtree(killed / "init")
    with pytest.raises(CheckpointError, match=r"init/manifest\.json is missing"):
        resume(killed, other, quiet=True)


def test_the_normalisation_is_that_of_the_other_run_unless_given(first):
    """The command line resolves a configuration before the run starts."""
    config = resolve(RunConfig(task=TASK, algo="tiny", init_from=first))  # a task's default is not to normalise
    assert with_initial(config)[0].normalize_observations is True


def test_the_state_is_part_of_a_checkpoints_identity(first, other, tmp_path):
    run = fit(other, tmp_path / "run", steps=10, init_from=first, **TINY).directory
    copy = fit(other, tmp_path / "copy", steps=10, init_from=run, **TINY).directory
    shutil.rmtree(run / "init")
    shutil.copytree(copy / "init", run / "init")
    with pytest.raises(RunError, match="init with SHA-256"):
        resume(run, other, steps=20, quiet=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algo": "bc"}, "its algo is tiny, here it is bc"),
        ({"normalize_observations": False}, "its normalize_observations is True, here it is False"),
        ({"init_from": "none"}, "there is no run at"),
    ],
)
def test_a_run_that_does_not_fit_is_refused_before_anything_is_written(first, other, tmp_path, change, words):
    with pytest.raises((ConfigError, RunError), match=words):
        fit(other, tmp_path / "run", steps=10, **{**TINY, "init_from": first, **change})
    assert not (tmp_path / "run").exists()


def test_other_shapes_and_bounds_are_named(first, tmp_path):
    columns = random_columns()
    wide = {**columns, "observations": np.hstack([columns["observations"]] * 2)}
    with pytest.raises(ConfigError, match=r"it has observation shape \(3,\) instead of \(6,\)"):
        fit(dataset_from_arrays(**wide), tmp_path / "run", steps=10, init_from=first, **TINY)
    bounds = dataset_from_arrays(**columns, action_low=[-2, -2], action_high=[2, 2])
    with pytest.raises(ConfigError, match=r"it has bounds .* instead of \(\(-2"):
        fit(bounds, tmp_path / "run", steps=10, init_from=first, **TINY)


def test_other_networks_are_named_by_their_options(tiny, compile_cache, other, tmp_path):
    small = {**TINY, "algo": "bc", "options": {"hidden": (8,)}}
    run = fit(other, tmp_path / "bc", steps=1, **small).directory
    with pytest.raises(ConfigError, match=r"it has hidden \(8,\) instead of \(9,\)\. .*--config .*bc/config\.json"):
        fit(other, tmp_path / "run", steps=1, init_from=run, **{**small, "options": {"hidden": (9,)}})
