"""Several seeds in one program: each run is the run that its seed makes alone."""

from __future__ import annotations

import json
import shutil

import jax
import numpy as np
import pytest

from fidec import algos, dataset_from_arrays, fit, resume
from fidec.data.batches import AHEAD_BYTES, PLAIN, Data
from fidec.errors import ConfigError, RunError
from fidec.store.checkpoint import Checkpoints
from fidec.train import dispatch, loop
from fidec.train.run import Preempted, resume_all
from helpers.algorithms import assert_close, equal
from helpers.runs import check_error, fingerprint, random_columns, read_rows

STEPS, SEEDS = 60, (0, 1, 5)
SETTINGS = {
    "algo": "tiny",
    "steps": STEPS,
    "batch_size": 8,
    "log_interval": 15,
    "checkpoint_interval": 20,
    "eval_interval": 30,
    "eval_episodes": 2,
    "eval_envs": 1,
    "quiet": True,
}


@pytest.fixture
def dataset(tiny, compile_cache):
    return dataset_from_arrays(**random_columns())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return tmp_path_factory.mktemp("singles"), {}


@pytest.fixture
def single(dataset, made):
    """single(seed): the fingerprint of a run of this seed alone, without an environment."""
    directory, found = made

    def run(seed: int) -> dict[str, str]:
        if seed not in found:
            result = fit(dataset, directory / f"{seed}", seed=seed, **SETTINGS)
            found[seed] = fingerprint(result.directory, STEPS)
        return found[seed]

    return run


def make_runs(seeds) -> tuple:
    """An algorithm, which draws numbers and has targets, and its runs before the first step."""
    dataset = dataset_from_arrays(**random_columns())
    algorithm = algos.make("rebrac", dataset.spec, hidden=(8,))
    data = Data.of([dataset], PLAIN)
    runs = []
    for seed in seeds:
        feed = data.feed(seed, 8, PLAIN)
        start = loop.start(algorithm, seed, loop.example_batch(feed.example))
        runs.append(dispatch.Run(keys=loop.keys_of(seed), feed=feed, carry=start))
    return algorithm, dataset.spec, runs


def test_a_program_of_several_runs_is_the_program_of_each(compile_cache):
    """In threads, as on a CPU, bit for bit; as one stacked program, for other devices, up to rounding."""
    algorithm, spec, alone = make_runs((3, 4))
    steps = dispatch.Program(algorithm, PLAIN, spec, alone[:1])
    for run in alone:
        dispatch.run_for(steps, [run], 12, dispatch.Pace(), loop.Signals(), lambda: None)
    first, second = (jax.tree.leaves(run.carry.state.params) for run in alone)
    assert not all(np.array_equal(*each) for each in zip(first, second, strict=True))
    for stacked in (False, True):
        runs = make_runs((3, 4))[2]
        program = dispatch.Program(algorithm, PLAIN, spec, runs, stacked=stacked)
        dispatch.run_for(program, runs[1:], 2, dispatch.Pace(), loop.Signals(), lambda: None)  # one may be ahead
        dispatch.run_for(program, runs, 10, dispatch.Pace(), loop.Signals(), lambda: None)
        dispatch.run_for(program, runs[:1], 2, dispatch.Pace(), loop.Signals(), lambda: None)  # and another one last
        program.close()
        for ours, theirs in zip(runs, alone, strict=True):
            assert ours.step == theirs.step == 12
            if stacked:
                assert_close(ours.carry.state.params, theirs.carry.state.params, rtol=1e-3, atol=1e-5)
            else:
                assert equal(ours.carry, theirs.carry)


def test_each_run_is_the_run_of_its_seed(dataset, single, tmp_path):
    results = fit(dataset, tmp_path / "runs", seeds=SEEDS, **SETTINGS)
    assert [result.directory.name for result in results] == ["seed000", "seed001", "seed005"]
    for seed, result in zip(SEEDS, results, strict=True):
        assert fingerprint(result.directory, STEPS) == single(seed)
        assert json.loads((result.directory / "config.json").read_text())["seed"] == seed


def test_evaluations_share_environments_and_are_those_of_single_runs(dataset, tiny_env, tmp_path):
    settings = {**SETTINGS, "env": tiny_env}
    results = fit(dataset, tmp_path / "runs", seeds=(1, 2), **settings)
    alone = fit(dataset, tmp_path / "alone", seed=2, **settings)
    assert fingerprint(results[1].directory, STEPS) == fingerprint(alone.directory, STEPS)
    assert results[1].evaluation == alone.evaluation != results[0].evaluation


@pytest.mark.slow
def test_the_flow_first_with_several_seeds(tmp_path, compile_cache):
    dataset = dataset_from_arrays(**random_columns(rows=440))
    settings = {**SETTINGS, "algo": "fidec", "flow_updates": 20, "steps": 20}
    settings["options"] = {"hidden": (8,), "flow_steps": 2, "proposals": 2}
    results = fit(dataset, tmp_path / "runs", seeds=(0, 1), **settings)
    alone = fit(dataset, tmp_path / "alone", seed=1, **settings)
    assert fingerprint(results[1].directory, 20) == fingerprint(alone.directory, 20)
    assert fingerprint(results[1].directory / "flow", 20) == fingerprint(alone.directory / "flow", 20)


def test_stopped_runs_continue_together_or_alone(dataset, single, tmp_path, monkeypatch, stop_at):
    """One of the copies is behind the others: a process may be killed between the checkpoints of two runs."""
    monkeypatch.setattr(dispatch.Pace, "next", lambda self, left: min(left, 7))
    out = tmp_path / "runs"
    stop_at(30)
    with pytest.raises(Preempted, match=r"--resume \S+seed000 \S+seed001 \S+seed005"):
        fit(dataset, out, seeds=SEEDS, **SETTINGS)
    places = [out / f"seed{seed:03d}" for seed in SEEDS]
    shutil.copytree(places[0], tmp_path / "alone")
    shutil.rmtree(max((places[1] / "checkpoints").iterdir()))
    assert [result.step for result in resume_all(places, dataset, quiet=True)] == [STEPS] * 3
    resume(tmp_path / "alone", dataset, quiet=True)
    for seed, place in zip(SEEDS, places, strict=True):
        assert fingerprint(place, STEPS) == single(seed)
    assert fingerprint(tmp_path / "alone", STEPS) == single(0)


def test_runs_that_do_not_fit_into_memory_together_take_turns(
    dataset, single, tmp_path, monkeypatch, capsys, stop_at
):
    monkeypatch.setattr("fidec.train.opening.free_memory", lambda: 3 * dataset.nbytes + 5 * 2 * AHEAD_BYTES)
    out = tmp_path / "runs"
    stop_at(20)
    with pytest.raises(Preempted, match=r"--resume \S+seed000 \S+seed001 \S+seed005"):
        fit(dataset, out, seeds=SEEDS, **SETTINGS)
    assert "memory for 2 of 3 runs at a time" in capsys.readouterr().err
    places = [out / f"seed{seed:03d}" for seed in SEEDS]
    resume_all(places, dataset, quiet=True)
    assert [fingerprint(place, STEPS) for place in places] == [single(seed) for seed in SEEDS]


def test_one_that_fails_does_not_stop_the_others(dataset, single, tmp_path, monkeypatch):
    save = Checkpoints.save

    def fail(self, step, *arguments):
        if step == 40 and "seed001" in str(self.directory):
            raise RunError("the disk is full")
        save(self, step, *arguments)

    monkeypatch.setattr(Checkpoints, "save", fail)
    with pytest.raises(RunError, match=r"1 of 3 runs failed, the others are done. \S+seed001: the disk is full"):
        fit(dataset, tmp_path / "runs", seeds=SEEDS, **SETTINGS)
    states = [json.loads((tmp_path / "runs" / f"seed{seed:03d}/status.json").read_text()) for seed in SEEDS]
    assert [status["state"] for status in states] == ["done", "failed", "done"]
    assert fingerprint(tmp_path / "runs" / "seed005", STEPS) == single(5)
    monkeypatch.setattr(Checkpoints, "save", save)
    resume(tmp_path / "runs" / "seed001", dataset, quiet=True)
    assert fingerprint(tmp_path / "runs" / "seed001", STEPS) == single(1)


def test_what_cannot_be_trained_together_is_refused(dataset, tmp_path, tiny_env):
    def refused(words, **changes):
        with pytest.raises(ConfigError, match=words):
            fit(dataset, tmp_path / "runs", **{**SETTINGS, "seeds": (0, 1), **changes})

    refused("at least one", seeds=())
    refused("each seed can be given once", seeds=(3, 3))
    refused("callback is for one run", callback=print)
    refused("seed is for one run", seed=3)
    refused("fidec sweep", env=tiny_env, online_steps=10)
    assert not (tmp_path / "runs").exists()
    for name, changes in (("a", {}), ("b", {"batch_size": 4})):
        fit(dataset, tmp_path / name, **{**SETTINGS, **changes, "steps": 2})
    with pytest.raises(ConfigError, match=r"a and \S+b differ in batch_size"):
        resume_all([tmp_path / "a", tmp_path / "b"], dataset, steps=4, quiet=True)


def test_the_command_line(cli, tiny, npz, tmp_path, single, compile_cache):
    given = ["--steps", STEPS, "--batch-size", 8, "--log-interval", 15, "--checkpoint-interval", 20]
    base = ["train", "--data", f"npz:{npz}", "--algo", "tiny", *given, "--out", tmp_path / "runs"]
    code, out, err = cli(*base, "--seeds", 0, 1, "--json")
    assert code == 0, err
    assert [row["directory"] for row in json.loads(out)] == [str(tmp_path / "runs" / f"seed00{i}") for i in (0, 1)]
    places = [tmp_path / "runs" / "seed000", tmp_path / "runs" / "seed001"]
    assert [read_rows(place / "train.jsonl")[-1]["step"] for place in places] == [STEPS, STEPS]
    code, out, _ = cli("train", "--resume", *places, "--steps", STEPS + 10)
    assert code == 0
    assert [f"{place}: {STEPS + 10} steps" in out for place in places] == [True, True]
    check_error(cli(*base, "--seeds", 0, "--seed", 1), 2, "both --seed and --seeds")
    check_error(cli(*base, "--seeds", 0, 1), 1, "seed000 holds a run already")
