"""`fidec train --config`: which value wins, and what a wrong file says. Nothing is trained."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import gymnasium
import pytest

from fidec.cli.train import read_args
from fidec.envs.factory import describe_env
from fidec.errors import ConfigError, RunError
from fidec.store.rundir import RunDirectory
from fidec.train.config import RunConfig
from fidec.train.resolve import resolve
from helpers.runs import TASK

FILE = """
algo = "fidec"
env = "Own-v0"
data = "npz:mine.npz"
data_dir = "files"
steps = 500
batch_size = 32
action_low = [-1, 2.5]
normalize_observations = false
out = "from-file"

[options]
hidden = [64, 64]
budget = 0.02
t_eps = "auto"

[online]
updates = 2
"""


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "mine.toml") -> Path:
        path = tmp_path / "files" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def parse(*argv: object) -> RunConfig:
    return read_args([str(word) for word in argv], "fidec train")[0]


def test_the_command_line_wins_over_the_file_and_the_file_over_preset_and_task(write):
    path = write(FILE)
    config = parse("--config", path)
    assert (config.env, config.steps, config.batch_size, config.online.updates) == ("Own-v0", 500, 32, 2)
    assert (config.options.hidden, config.options.budget, config.options.t_eps) == ((64, 64), 0.02, "auto")
    assert config.data == f"npz:{path.parent / 'mine.npz'}"  # not that of the current directory
    assert (config.data_dir, config.out) == (path.parent / "files", Path("from-file"))
    assert (config.action_low, config.normalize_observations) == ((-1, 2.5), False)
    config = parse("--batch-size", 16, "--config", path, "--algo.budget", 0.5, "--online.updates", 3)
    assert (config.batch_size, config.options.budget, config.options.hidden) == (16, 0.5, (64, 64))
    assert (config.online.updates, config.steps) == (3, 500)
    preset = parse("--config", path, "--preset", "paper").options
    assert (preset.multiplier, preset.budget) == ("projected", 0.02)
    task = parse("--config", path, "--task", TASK)
    assert (task.task, task.env, task.data, task.options.budget) == (TASK, None, None, 0.02)
    assert parse("--config", path, "--env", "Other-v0").data == config.data
    of_task = write(f'task = "{TASK}"\nalgo = "fql"\n')
    assert parse("--config", of_task).options == resolve(RunConfig(task=TASK, algo="fql")).options
    assert parse("--config", of_task, "--env", "Own-v0").task is None
    assert parse("--config", write('algo = "rlpd"\nenv = "Own-v0"\nonline_steps = 9\nsteps = 0')).total == 9


def test_the_configuration_of_a_run_is_a_file_without_its_place(write, tmp_path):
    wanted = resolve(parse("--config", write(FILE), "--seed", 3, "--out", tmp_path / "run", "--algo.budget", 0.3))
    with RunDirectory.create(tmp_path / "run") as directory:
        directory.write_config(wanted.to_json())
    again = parse("--config", directory.config)
    assert again == dataclasses.replace(wanted, out=None)
    with pytest.raises(ConfigError, match="a value for each option of fidec: --preset paper would have no effect"):
        parse("--config", directory.config, "--preset", "paper")
    with pytest.raises(ConfigError, match=r"its options belong to fidec: bc has no option .*delete `options` \(and"):
        parse("--config", directory.config, "--algo", "bc")
    copy = {
        name: v for name, v in json.loads(directory.config.read_text()).items() if name not in ("options", "sha256")
    }
    other = parse("--config", write(json.dumps(copy), "copy.json"), "--algo", "bc")
    assert (other.algo, other.seed, other.options) == ("bc", 3, resolve(RunConfig(algo="bc")).options)
    other = parse("--config", directory.config, "--algo.constraint", "precision").options
    assert (other.hidden, other.budget, other.t_eps) == ((64, 64), None, "auto")  # 0.3 was of another unit
    text = directory.config.read_text()
    directory.config.write_text(text.replace('"seed": 3', '"seed": 4'))
    with pytest.raises(RunError, match=r"config\.json was changed or damaged"):
        parse("--config", directory.config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stepz = 5", "there is no key in the file 'stepz'; did you mean steps?"),
        ("[options]\nbudgt = 5.0", "there is no key in options 'budgt'; did you mean budget?"),
        ('algo = "bc"\n[options]\nbudget = 5.0', "there is no key in options 'budget'"),
        ("[online]\nupdate = 1", "there is no key in online 'update'; did you mean updates?"),
        ('steps = "many"', 'steps is "many", expected a whole number'),
        ("steps = true", "steps is true, expected a whole number"),
        ("steps = 2026-01-02", 'steps is "2026-01-02", expected a whole number'),
        ("eval_timeout = [1]", r"eval_timeout is \[1\], expected a number"),
        ("check_data = 1", "check_data is 1, expected true or false"),
        ("out = 3", "out is 3, expected a path as text"),
        ('success_timing = "late"', 'success_timing is "late", expected "pre" or "post"'),
        ("[options]\nhidden = [64, 0.5]", r"options.hidden\[1\] is 0.5, expected a whole number"),
        ("[options]\nbudget = '1'", 'options.budget is "1", expected a number'),
        ("online = 3", "online is 3, expected a table"),
        ("options = 3", "options is 3, expected a table"),
        ("batch_size = 0", "batch_size must be at least 1, not 0"),
        ("[online]\nupdates = 0", "updates must be at least 1, not 0"),
        ("[options]\nhidden = []", "every hidden width must be at least 1"),
        ('data = "npzz:a"', "data: there is no data source 'npzz'; did you mean npz?"),
        (f'env = "{describe_env(gymnasium.Env)}"', "which was given in Python: name another with --env"),
        ('buffer = "arrays:mine"', "which was given in Python: name another with --buffer"),
        ("steps =", "is not valid TOML"),
    ],
)
def test_an_error_names_the_file_and_the_key(write, text, words):
    path = write(text)
    with pytest.raises(ConfigError, match=words) as caught:
        parse("--config", path)
    assert str(caught.value).startswith(f"{path}: ")


def test_files_that_cannot_be_read(write, cli, tmp_path):
    for path, words in (
        (tmp_path / "none.toml", "cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (write("[1]", "list.json"), "is a list, expected a table"),
        (write("{", "half.json"), "is not valid JSON"),
    ):
        code, out, err = cli("train", "--config", path)
        assert (code, out) == (2, "")
        assert f"{path}: {words}" in err
