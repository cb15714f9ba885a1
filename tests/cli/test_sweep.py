"""`fidec sweep`: the combinations, what is checked before the first run, and a sweep that is continued."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import replace

import pytest

from fidec.bench import schedule
from fidec.bench.sweep import combine, parse_vary, sweep_jobs
from fidec.errors import ConfigError, RunError
from fidec.store.checkpoint import Checkpoints
from fidec.train.config import RunConfig
from helpers.runs import check_error, fingerprint

TINY = ("--algos", "tiny", "--batch-size", 8, "--log-interval", 10, "--eval-interval", 10, "--eval-episodes", 2)
TINY += ("--eval_envs=1",)
# The process dies before the second checkpoint of one of its runs.
KILLED = """
import os, signal, sys
from fidec.cli import main
from fidec.store.checkpoint import Checkpoints
save = Checkpoints.save
def save_or_die(self, step, *others):
    if step == 20 and "seed001" in str(self.directory):
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, step, *others)
Checkpoints.save = save_or_die
main(sys.argv[1:])
"""


def test_combinations():
    made = combine(["--task", "T"], ["fql", "fidec:paper"], ["algo.hidden=64 64,8", "--batch_size=16,32"])
    assert len(made) == 8
    assert made[0].words == (*("--task", "T", "--algo", "fql"), *("--algo.hidden", "64", "64", "--batch-size", "16"))
    assert made[0].suffix == "hidden=64-64_batch-size=16"
    assert made[-1].words[2:6] == ("--algo", "fidec", "--preset", "paper")
    assert combine(["--algo", "bc"], [], []) == [(("--algo", "bc"), "")]
    assert parse_vary("data=npz:a.npz,npz:b.npz") == ("data", ["npz:a.npz", "npz:b.npz"])


@pytest.mark.parametrize(
    ("given", "algos", "vary", "words"),
    [
        ((), (), ("budget",), "'budget': expected OPTION=VALUE"),
        ((), (), ("budget=1,",), "'budget=1,': expected OPTION=VALUE"),
        ((), (), ("seed=1,2",), "seed cannot be varied: use --seeds"),
        ((), (), ("overwrite=1",), "overwrite cannot be varied: it has no meaning for a sweep"),
        (("--seed", "1"), (), (), "--seed: leave it out: --seeds gives its values"),
        (("--algo=bc",), ("fql",), (), "--algo: leave it out: --algos gives its values"),
        (("--batch_size", "8"), (), ("batch-size=1,2",), "--batch-size: leave it out: --vary"),
        (("--preset", "paper"), ("fql:paper",), (), "--preset: leave it out"),
        (
            (),
            ("bc", "fql:paper"),
            ("preset=paper",),
            "--vary preset: its values are given by --algos METHOD:PRESET too",
        ),
        ((), (), ("batch-size=1", "batch_size=2"), "--vary batch-size: its values are given by another --vary too"),
        (("--resume", "a"), (), (), "--resume: it has no meaning for a sweep"),
    ],
)
def test_options_that_contradict_the_sweep(given, algos, vary, words):
    with pytest.raises(ConfigError, match=words):
        combine(given, algos, vary)


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("--algos", "bc", "fqll"), 2, "did you mean fql?"),
        (("--algos", "bc:papper"), 2, "no preset of bc 'papper'"),
        (("--vary", "batch-size=8,0"), 2, "--batch-size 0: batch_size must be at least 1"),
        (("--vary", "algo.learning-rate=0.1,-1"), 2, "learning_rate must be positive"),
        (("--env", "Pendulm-v1"), 2, "Did you mean: `Pendulum`?"),
        (("--data", "npz:none.npz"), 1, "none.npz"),
        (("--algos", "bc", "bc"), 2, "would hold two runs"),
        (("--seeds", "1", "1"), 2, "would hold two runs"),
        (("--seeds",), 2, "--seeds is empty"),
        (("--seeds", "one"), 2, "fidec sweep: Error parsing --seeds: "),
        (("--workers", "0"), 2, "--workers must be at least 1"),
        (("--online-steps", "5"), 2, "needs an environment"),
    ],
)
def test_every_combination_is_checked_before_the_first_run(cli, here, npz, tmp_path, words, code, expected):
    data = () if "--data" in words else ("--data", f"npz:{npz}")
    result = cli("sweep", *data, *words, "--out", tmp_path / "out")
    check_error(result, code, expected)
    assert not here.started
    assert not (tmp_path / "out").exists()


def test_a_sweep_continues_and_compares(cli, here, tiny_env, npz, compile_cache, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(f'data = "npz:{npz}"\nenv = "{tiny_env}"\n[options]\njitter = 0.5\n')
    sweep = ("sweep", "--config", file, *TINY, "--steps", 20, "--seeds", 3, "--out", tmp_path / "out")
    sweep += ("--vary", "algo.learning-rate=0.01,0.1")
    code, out, _ = cli(*sweep, "--dry-run")
    first = shlex.split(out.splitlines()[0].partition("  #")[0])[1:]
    assert (code, len(out.splitlines())) == (0, 2)

    here.fail = True
    check_error(cli(*sweep[:-2]), 1, "1 of 1 runs failed: 1/1 tiny, seed 3. there is no finished run")
    here.started.clear()

    here.fail = True
    code, out, err = cli(*sweep)
    assert code == 1
    assert "1 of 2 runs failed: 1/2 tiny learning-rate=0.01, seed 3" in err
    assert list(here.started[0]) == first  # with its own number of environments
    assert len(here.started) == 2

    here.started.clear()
    code, out, err = cli(*sweep)
    assert (code, len(here.started)) == (0, 1), err
    places = sorted(path.parent.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("run.json"))
    assert [str(place) for place in places] == [
        f"tiny-recommended-learning-rate={rate}/seed003" for rate in ("0.01", "0.1")
    ]
    rows = [line.split()[:2] for line in out.splitlines()]
    assert ["tiny", "learning_rate=0.01"] in rows
    assert ["tiny", "learning_rate=0.1"] in rows
    assert "against tiny learning_rate=0.01" in out

    here.started.clear()
    assert cli(*sweep)[0] == 0
    assert not here.started
    check_error(cli(*sweep, "--algo.jitter", 0.1), 2, "another configuration", "algo.jitter 0.5, not 0.1")

    config = tmp_path / "out" / places[0] / "config.json"
    config.write_text('{"algo": "tiny", "no_option": 1}')  # no hash: as of an older version
    code, out, err = cli(*sweep)
    assert (code, here.started) == (1, [])
    assert f"is damaged and is not run. {config}: " in err
    assert "tiny  " in out  # the other run is still compared


@pytest.fixture
def given(npz, compile_cache, tiny):
    """Options of small runs without an environment."""
    return (
        *("--data", f"npz:{npz}", "--algo", "tiny", "--steps", 30, "--batch-size", 8),
        *("--log-interval", 10, "--checkpoint-interval", 10),
    )


@pytest.mark.slow
def test_killed_seeds_continue_in_one_process_and_end_like_single_runs(
    cli, given, plugin_site, tmp_path, monkeypatch, request
):
    sweep = ("sweep", *given, "--seeds", 0, 1, "--out", tmp_path / "out")
    places = [tmp_path / "out" / "tiny-recommended" / name for name in ("seed000", "seed001")]
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(plugin_site))
        patch.setattr(schedule, "PROGRAM", ("-c", KILLED))
        code, _, err = cli(*sweep)
    assert (code, err.count("was killed by SIGKILL")) == (1, 2), err
    saved = [max(int(path.name) for path in (place / "checkpoints").glob("[0-9]*")) for place in places]
    assert saved[0] >= saved[1] == 10

    here = request.getfixturevalue("here")
    assert cli(*sweep)[0] == 0
    assert here.started == [("train", "--resume", *map(str, places))]
    for seed, place in enumerate(places):
        alone = tmp_path / f"alone{seed}"
        assert cli("train", *given, "--seed", seed, "--out", alone)[0] == 0
        assert fingerprint(place, 30) == fingerprint(alone, 30)


def test_one_seed_that_fails_does_not_fail_the_others(cli, given, here, tmp_path, monkeypatch):
    sweep = ("sweep", *given, "--seeds", 0, 1, 5, "--out", tmp_path / "out")
    save = Checkpoints.save

    def fail(self, step, *others):
        if "seed001" in str(self.directory):
            raise RunError("the disk is full")
        save(self, step, *others)

    monkeypatch.setattr(Checkpoints, "save", fail)
    code, _, err = cli(*sweep)
    assert (code, len(here.started)) == (1, 1)
    assert "2/3 tiny, seed 1: FAILED: the disk is full" in err
    assert "1 of 3 runs failed: 2/3 tiny, seed 1" in err
    monkeypatch.setattr(Checkpoints, "save", save)
    assert cli(*sweep)[0] == 0
    assert here.started[1:] == [("train", "--resume", str(tmp_path / "out" / "tiny-recommended" / "seed001"))]


def test_a_run_that_ended_early_by_its_held_out_loss_is_the_one_that_was_asked_for(npz, tmp_path):
    for share, word in ((0.1, None), (0.0, "steps 50, not 100")):
        config = RunConfig(data=f"npz:{npz}", algo="flow_bc", steps=100, validation=share)
        (job,) = sweep_jobs(lambda words, config=config: config, combine([], [], []), [0], tmp_path)
        job.check_config(job.config, False)
        with nullcontext() if word is None else pytest.raises(ConfigError, match=word):
            job.check_config(replace(job.config, steps=50), False)
        with pytest.raises(ConfigError, match="steps 200, not 100"):
            job.check_config(replace(job.config, steps=200), False)
