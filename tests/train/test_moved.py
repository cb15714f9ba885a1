"""A run whose directory is moved, deleted or replaced stops, and changes nothing at its old path."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fidec import dataset_from_arrays, fit, resume
from fidec.errors import RunError
from fidec.store import trees
from fidec.store.checkpoint import Checkpoints
from fidec.store.logs import RunLog
from fidec.store.rundir import RunDirectory
from fidec.train.config import OnlineConfig
from fidec.train.policy import Policy
from helpers.faults import MOVES, contents, move_run
from helpers.online_envs import WALK
from helpers.runs import fingerprint, online_fingerprint, random_columns

STEPS = 60
SETTINGS: dict[str, Any] = {
    "algo": "tiny",
    "steps": STEPS,
    "batch_size": 8,
    "log_interval": 15,
    "checkpoint_interval": 20,
    "quiet": True,
}
# What is about to happen when the directory is moved.
MOMENTS = {
    "row": (RunLog, "train"),
    "checkpoint": (Checkpoints, "save"),
    "state": (trees, "save_flat"),  # inside a checkpoint, and inside a policy
    "removal": (Checkpoints, "_remove_old"),
    "policy": (Policy, "save"),
    "status": (RunDirectory, "write_status"),
}


@pytest.fixture
def dataset(tiny, compile_cache):
    return dataset_from_arrays(**random_columns())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("made"), {}


@pytest.fixture
def whole(dataset, made):
    """whole(seed): an uninterrupted run, which is also the other run that is put in the place of one."""
    directory, found = made

    def run(seed: int = 0) -> Path:
        if seed not in found:
            found[seed] = fit(dataset, directory / f"{seed}", seed=seed, **SETTINGS).directory
        return found[seed]

    return run


@pytest.fixture
def move_at(monkeypatch):
    """move_at(moment, how, run, other, begun): `move_run`, once, when the run is `begun`; a list of its result."""

    def arrange(moment: str, how: str, run: Path, other: Path, begun) -> list[Path | None]:
        target, name = MOMENTS[moment]
        real, places = getattr(target, name), []

        def moving(*arguments, **options):
            if not places and begun():
                places.append(move_run(how, run, other))
            return real(*arguments, **options)

        monkeypatch.setattr(target, name, moving)
        return places

    return arrange


def saved(run: Path, step: int) -> bool:
    """Whether the run has written its last file at this step."""
    return (run / "status.json").exists() and json.loads((run / "status.json").read_text())["step"] == step


def check_path(how: str, run: Path, other: Path) -> None:
    """There is what `move_run` put there, and nothing else."""
    if how in ("gone", "deleted"):
        assert not run.exists()
    else:
        assert contents(run) == ({} if how == "emptied" else contents(other))


CASES = [(how, moment) for how in MOVES for moment in ("row", "state")]
CASES += [("renamed", moment) for moment in MOMENTS if moment not in ("row", "state")]


@pytest.mark.parametrize(("how", "moment"), CASES)
def test_a_run_whose_directory_is_no_longer_there_stops(dataset, whole, move_at, tmp_path, how, moment):
    run, other = tmp_path / "runs" / "run", whole()
    run.parent.mkdir()
    if how == "linked":
        (tmp_path / "disk").mkdir()
        run.symlink_to(tmp_path / "disk")
    places = move_at(moment, how, run, other, lambda: saved(run, STEPS // 3))
    with pytest.raises(RunError, match=str(run)) as caught:
        fit(dataset, run, **SETTINGS)
    (place,) = places
    assert caught.value.exit_code == 1
    assert "deleted or replaced" in str(caught.value)
    check_path(how, run, other)
    if place is not None:
        assert f"--resume {place}" in str(caught.value)
        assert fingerprint(resume(place, dataset, quiet=True).directory, STEPS) == fingerprint(other, STEPS)
        check_path(how, run, other)


def test_a_run_that_is_moved_at_its_end_is_not_done(dataset, whole, move_at, tmp_path):
    """After the last checkpoint; the last status is still to be written."""
    run = tmp_path / "run"
    places = move_at("status", "renamed", run, whole(), lambda: saved(run, STEPS))
    with pytest.raises(RunError, match=f"no longer at {run}"):
        fit(dataset, run, **SETTINGS)
    check_path("renamed", run, whole())
    assert resume(places[0], dataset, quiet=True).step == STEPS


@pytest.mark.parametrize(("moment", "step"), [("state", STEPS // 3), ("status", STEPS)])
def test_the_other_seeds_go_on(dataset, whole, move_at, tmp_path, moment, step):
    run = tmp_path / "runs" / "seed000"
    places = move_at(moment, "renamed", run, whole(), lambda: saved(run, step))
    with pytest.raises(RunError, match="1 of 2 runs failed, the others are done") as caught:
        fit(dataset, run.parent, seeds=(0, 1), **SETTINGS)
    assert f"no longer at {run}" in str(caught.value)
    check_path("renamed", run, whole())
    assert json.loads((run.parent / "seed001" / "status.json").read_text())["state"] == "done"
    assert fingerprint(run.parent / "seed001", STEPS) == fingerprint(whole(1), STEPS)
    assert fingerprint(resume(places[0], dataset, quiet=True).directory, STEPS) == fingerprint(whole(0), STEPS)


def test_an_online_phase_stops_and_is_resumed_exactly(dataset, move_at, tmp_path):
    """The rows of its buffer are written before the checkpoint; `state` is in the first file of rows here."""
    settings = SETTINGS | {"env": WALK, "steps": 3, "online_steps": 20, "checkpoint_interval": 10, "eval_interval": 0}
    settings["online"] = OnlineConfig()
    other = fit(dataset, tmp_path / "other", **settings).directory
    run = tmp_path / "run"
    places = move_at("state", "renamed", run, other, lambda: saved(run, 10))
    with pytest.raises(RunError, match=f"no longer at {run}"):
        fit(dataset, run, **settings)
    check_path("renamed", run, other)
    resumed = resume(places[0], dataset, quiet=True).directory
    assert online_fingerprint(resumed, 23) == online_fingerprint(other, 23)


def test_a_run_that_is_reached_through_a_link_is_trained_as_before(dataset, whole, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    result = fit(dataset, tmp_path / "run", **SETTINGS)
    assert fingerprint(result.directory, STEPS) == fingerprint(whole(), STEPS)
    shutil.rmtree(tmp_path / "disk")
